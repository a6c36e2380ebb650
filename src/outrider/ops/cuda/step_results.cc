#include "outrider/ops/cuda/step_results.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

constexpr size_t kLeastBytes = 1 << 16;

}  // namespace

bool StepResults::Reserve(size_t num_drafts, size_t bytes, cudaStream_t stream) {
  OUTRIDER_CHECK(num_drafts >= num_drafts_);
  const size_t needed = DraftBytes(num_drafts) + bytes;
  const size_t kept = std::exchange(num_drafts_, num_drafts) * sizeof(int32_t);
  if (needed <= device_.bytes()) return false;
  const size_t room = std::max(2 * needed, kLeastBytes);
  DeviceMemory grown(room, "results of drawing");
  CheckCuda(cudaMemsetAsync(grown.data(), 0, room, stream), "results of drawing");
  if (kept > 0) {
    CheckCuda(cudaMemcpyAsync(grown.data(), device_.data(), kept, cudaMemcpyDeviceToDevice, stream),
              "results of drawing");
  }
  CheckCuda(cudaStreamSynchronize(stream), "results of drawing");
  PinnedMemory host(room);
  std::copy_n(host_.data(), kept, host.data());
  device_ = std::move(grown);
  host_ = std::move(host);
  return true;
}

void StepResults::Copy(size_t bytes, cudaStream_t stream) {
  CheckCuda(cudaMemcpyAsync(host_.data(), device_.data(), DraftBytes(num_drafts_) + bytes,
                            cudaMemcpyDeviceToHost, stream),
            "copying tokens to the host");
}

}  // namespace outrider::cuda
