#include "outrider/ops/cuda/staged_arrays.h"

#include <cstring>

#include "outrider/base/error.h"

namespace outrider::cuda {

void StagedArrays::CopyFirst(size_t bytes) {
  if (bytes == 0) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(stream_, &status), "copying arrays to the device");
  OUTRIDER_CHECK(status == cudaStreamCaptureStatusNone, "a recorded step copies arrays");
  const size_t room = std::max<size_t>(2 * bytes_.size(), 1 << 16);
  if (bytes_.size() > device_.bytes()) {
    device_ = DeviceMemory();
    device_ = DeviceMemory(room, "inputs of a step");
  }
  Staged& staged = staged_[next_staged_];
  next_staged_ = 1 - next_staged_;
  staged.copied.Wait();
  if (bytes_.size() > staged.bytes) {
    staged.memory = PinnedMemory(room);
    staged.bytes = room;
  }
  std::memcpy(staged.memory.data(), bytes_.data(), bytes);
  CheckCuda(
      cudaMemcpyAsync(device_.data(), staged.memory.data(), bytes, cudaMemcpyHostToDevice, stream_),
      "copying arrays to the device");
  staged.copied.Record(stream_);
}

}  // namespace outrider::cuda
