// What kernels leave for the host: tokens by place (Ops::KeepTokens), and behind them what a
// sampler lays out for its call. One copy brings back both. The next call's copy may begin before
// the host has waited for this one's.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/ops/ticket.h"

namespace outrider::cuda {

class StepResults {
 public:
  /// Makes room for the places of tokens and `bytes` of results behind them, 256-byte aligned.
  /// Earlier results are lost, tokens are kept. Waits for the stream if it needs more memory.
  void Reserve(size_t num_tokens, size_t bytes, cudaStream_t stream);
  /// Changes whenever memory was moved that recorded steps refer to.
  int64_t memory_version() const { return memory_version_; }

  // On the device.
  int32_t* tokens() const { return device_.As<int32_t>(); }
  size_t num_tokens() const { return num_tokens_; }
  std::byte* results() const { return device_.As<std::byte>() + TokenBytes(); }

  /// Begins to copy tokens and the first `bytes` of the results to the host, in the stream. At most
  /// two copies are to be waited for.
  Ticket Launch(size_t bytes, cudaStream_t stream);
  /// Whether a copy is to be waited for.
  bool IsCopying() const { return waited_ < launched_; }
  bool Ready(Ticket ticket) { return CopyOf(ticket).done.IsDone(); }
  void Wait(Ticket ticket);
  /// A draft is drawn, which the host reads later: with the next copy.
  void DraftsAreDrawn() { copy_of_drafts_ = launched_ + 1; }
  /// Whether the host has all drafts.
  bool drafts_read() const { return waited_ >= copy_of_drafts_; }

  // What came with the copy that was waited for last: valid until the second copy after it is
  // launched.
  const int32_t* host_tokens() const {
    return reinterpret_cast<const int32_t*>(CopyOf(waited_).memory.data());
  }
  const std::byte* host_results() const { return CopyOf(waited_).memory.data() + TokenBytes(); }

 private:
  struct Copy {
    PinnedMemory memory;
    size_t bytes = 0;
    DeviceEvent done;
  };

  Copy& CopyOf(Ticket ticket) { return copies_[static_cast<size_t>(ticket) % copies_.size()]; }
  const Copy& CopyOf(Ticket ticket) const {
    return copies_[static_cast<size_t>(ticket) % copies_.size()];
  }
  size_t TokenBytes() const { return (num_tokens_ * sizeof(int32_t) + 255) / 256 * 256; }

  DeviceMemory device_;
  int64_t memory_version_ = 0;
  size_t num_tokens_ = 0;
  std::array<Copy, 2> copies_;  // the host's, by ticket
  Ticket launched_ = 0;
  Ticket waited_ = 0;
  Ticket copy_of_drafts_ = 0;
};

}  // namespace outrider::cuda
