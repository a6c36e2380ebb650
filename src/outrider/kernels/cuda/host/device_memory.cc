#include "outrider/kernels/cuda/host/device_memory.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider::cuda {

void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw Error(ErrorCode::kUnavailable, fmt::format("{}: {}", what, cudaGetErrorString(error)));
  }
}

DeviceMemory::DeviceMemory(size_t bytes, const char* what) : bytes_(bytes) {
  const cudaError_t error = cudaMalloc(&data_, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told below, and not again by the next call
    size_t free = 0;
    size_t total = 0;
    CheckCuda(cudaMemGetInfo(&free, &total), "free device memory");
    throw OutOfMemory(fmt::format("{}: {} MiB of device memory are needed, {} of {} MiB are free",
                                  what, (bytes >> 20) + 1, free >> 20, total >> 20));
  }
  CheckCuda(error, what);
}

PinnedMemory::PinnedMemory(size_t bytes) {
  CheckCuda(cudaMallocHost(&data_, std::max<size_t>(bytes, 1)), "page-locked memory");
}

DeviceEvent::DeviceEvent() {
  CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
}

void DeviceEvent::Record(cudaStream_t stream) {
  CheckCuda(cudaEventRecord(event_, stream), "recording an event");
}

void DeviceEvent::Hold(cudaStream_t stream) {
  CheckCuda(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
}

bool DeviceEvent::IsDone() {
  const cudaError_t done = cudaEventQuery(event_);
  if (done != cudaErrorNotReady) CheckCuda(done, "an event");
  return done == cudaSuccess;
}

void DeviceEvent::Wait() { CheckCuda(cudaEventSynchronize(event_), "waiting for the device"); }

}  // namespace outrider::cuda
