// The GPU's StepSampler. Tokens are drawn on the device. They are those that a CPU draws from equal
// logits. A token per row comes back, and log-probabilities where they are asked for. Drafts come
// back with the tokens that verify them.
//
// The host draws from rows of logits what the kernel cannot: rejection sampling, synthetic
// acceptance with log-probabilities, and more than kMaxTopLogprobs of these. A request's own fields
// alone decide who draws.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "outrider/ops/cpu/cpu_sampler.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/row_drawer.h"

namespace outrider::cuda {

class CudaSampler : public StepSampler {
 public:
  CudaSampler(const CudaOps& ops, int num_threads, const Verifier& verifier,
              int64_t tile_bytes = kLogitsTileBytes)
      : ops_(ops),
        verifier_(verifier),
        host_(num_threads, verifier),
        drawer_(ops, verifier.logprobs_mode(), tile_bytes) {}

  void Verify(const Context& context, const HeadRows& rows,
              std::span<const VerifyRequest> requests) override;
  std::optional<Ticket> Launch(const Context& context, const HeadRows& rows,
                               std::span<const VerifyRequest> requests) override;
  bool Ready(Ticket ticket) const override { return drawer_.Ready(LaunchedBy(ticket).drawing); }
  void Wait(Ticket ticket) override;
  void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
            const DraftTokens& among, std::span<TokenRef> tokens) override;
  void Score(const Context& context, const HeadRows& rows,
             std::span<const ScoreRequest> requests) override;

 private:
  /// Draws from logits that are read from the device.
  class HostSampler : public cpu::CpuSampler {
   public:
    using CpuSampler::CpuSampler;

   private:
    void MakeLogits(const Context& context, const HeadRows& rows,
                    MatrixView<float> logits) override;
  };

  /// Copies of the requests of a call.
  struct VerifyCopies {
    std::vector<VerifyRequest> requests;  // with drafts in:
    std::vector<TokenRef> drafts;         // of all of them

    void Assign(std::span<const VerifyRequest> originals);
    /// All drafts are on the host then.
    void ReadDrafts(const CudaOps& ops);
  };

  /// A call of Launch that was not waited for.
  struct LaunchedVerify {
    VerifyCopies copies;
    RowDrawer::Drawing drawing;
    bool gives_results = false;  // on the first rank
  };

  LaunchedVerify& LaunchedBy(Ticket ticket) {
    return launched_[static_cast<size_t>(ticket) % launched_.size()];
  }
  const LaunchedVerify& LaunchedBy(Ticket ticket) const {
    return launched_[static_cast<size_t>(ticket) % launched_.size()];
  }
  /// The result of the nth request that was drawn, from `first_row` of what was drawn.
  void GiveResult(const VerifyRequest& request, VerifyInput input,
                  const RowDrawer::HostResults& drawn, size_t n, size_t first_row);
  /// Draws what the kernel draws, at the requests' places; notes the rest in host_draws_.
  void DrawToPlaces(const Context& context, const HeadRows& rows,
                    std::span<const DrawRequest> requests, const DraftTokens& among,
                    std::span<TokenRef> tokens);
  /// What the kernel draws for `request`; false: the host draws.
  bool Describe(const VerifyRequest& request, DrawnRows* drawn);
  /// Replaces the masks of requests whose processors forbid tokens: the grammar's and theirs.
  void AddForbidden(int32_t vocab_size);
  /// From all of drawn_rows_.
  RowDrawer::HostResults DrawNow(const Context& context, const HeadRows& rows);
  /// Returns a copy on the device, which is kept for the next call with this span.
  const int32_t* OnDevice(std::span<const int32_t> ids);

  const CudaOps& ops_;
  Verifier verifier_;
  HostSampler host_;
  RowDrawer drawer_;
  const int32_t* ids_ = nullptr;  // what ids_on_device_ is a copy of
  DeviceMemory ids_on_device_;
  std::array<LaunchedVerify, 2> launched_;  // by ticket
  Ticket last_launched_ = 0;
  Ticket last_waited_ = 0;
  // Kept to reuse memory.
  VerifyCopies now_;
  std::vector<DrawnRows> drawn_rows_;
  std::vector<size_t> drawn_requests_;
  std::vector<VerifyRequest> host_requests_;
  std::vector<size_t> host_draws_;
  std::vector<DrawRequest> host_draw_requests_;
  std::vector<int32_t> host_rows_;
  std::vector<TokenRef> host_drafts_;
  std::vector<uint32_t> forbidden_;  // masks that AddForbidden made
  std::vector<ScoreRequest> host_scores_;
};

}  // namespace outrider::cuda
