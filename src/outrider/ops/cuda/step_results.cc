#include "outrider/ops/cuda/step_results.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

constexpr size_t kLeastBytes = 1 << 16;

}  // namespace

void StepResults::Reserve(size_t num_tokens, size_t bytes, cudaStream_t stream) {
  OUTRIDER_CHECK(num_tokens >= num_tokens_);
  const size_t kept = std::exchange(num_tokens_, num_tokens) * sizeof(int32_t);
  const size_t needed = TokenBytes() + bytes;
  if (needed <= device_.bytes()) return;
  const size_t room = std::max(2 * needed, kLeastBytes);
  DeviceMemory grown(room, "results of drawing");
  CheckCuda(cudaMemsetAsync(grown.data(), 0, room, stream), "results of drawing");
  if (kept > 0) {
    CheckCuda(cudaMemcpyAsync(grown.data(), device_.data(), kept, cudaMemcpyDeviceToDevice, stream),
              "results of drawing");
  }
  CheckCuda(cudaStreamSynchronize(stream), "results of drawing");
  device_ = std::move(grown);
  ++memory_version_;
}

Ticket StepResults::Launch(size_t bytes, cudaStream_t stream) {
  OUTRIDER_CHECK(launched_ < waited_ + 2);
  Copy& copy = CopyOf(++launched_);
  bytes += TokenBytes();
  if (bytes > copy.bytes) {
    copy.bytes = std::max(2 * bytes, kLeastBytes);
    copy.memory = PinnedMemory(copy.bytes);
  }
  CheckCuda(
      cudaMemcpyAsync(copy.memory.data(), device_.data(), bytes, cudaMemcpyDeviceToHost, stream),
      "copying tokens to the host");
  copy.done.Record(stream);
  return launched_;
}

void StepResults::Wait(Ticket ticket) {
  OUTRIDER_CHECK(ticket == ++waited_ && ticket <= launched_);
  CopyOf(ticket).done.Wait();
}

}  // namespace outrider::cuda
