#include "outrider/kernels/cuda/host/multiprocessors.h"

#include <cuda_runtime_api.h>

#include "outrider/kernels/cuda/host/device_memory.h"

namespace outrider::cuda {

int NumMultiprocessors() {
  static const int count = [] {
    int device = 0;
    int value = 1;
    CheckCuda(cudaGetDevice(&device), "the current device");
    CheckCuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
              "number of multiprocessors");
    return value;
  }();
  return count;
}

}  // namespace outrider::cuda
