// The GPU's StepSampler. Tokens are drawn on the device, the CPU's from the same logits: what comes
// back is a token per row, and log-probabilities where they are asked for. Drafts come back with
// the tokens that verify them. What the kernel does not know is done by the host from rows of
// logits, as on the CPU: rejection sampling, synthetic acceptance with log-probabilities, and more
// than kMaxTopLogprobs of them; which requests these are is told by their own fields alone.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/draw.h"
#include "outrider/ops/cpu/cpu_sampler.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/staged_arrays.h"

namespace outrider::cuda {

class CudaSampler : public StepSampler {
 public:
  CudaSampler(const CudaOps& ops, int num_threads, const Verifier& verifier)
      : ops_(ops), verifier_(verifier), host_(num_threads, verifier), arrays_(ops.stream()) {}

  void Verify(const Context& context, const HeadRows& rows,
              std::span<const VerifyRequest> requests) override;
  bool VerifyLater(const Context& context, const HeadRows& rows,
                   std::span<const VerifyRequest> requests) override;
  bool CanCollect() const override { return ops_.CanFinishReading(); }
  void Collect() override;
  void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
            const DraftTokens& among, std::span<int32_t> tokens) override;
  /// Not reached: a drafter of blocks is refused at start (hopper_networks.h).
  void DrawFrom(const Context& context, Tensor logits, std::span<const DrawRequest> requests,
                std::span<int32_t> tokens) override;
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

  /// The rows of logits of one request, on the device.
  struct DrawnRows {
    RequestSampling sampling = {};
    int32_t first_row = 0;  // of HeadRows::rows
    int32_t num_rows = 1;
    int64_t position = 0;  // of the token that the first row predicts
    std::span<const int32_t> drafts = {};
    MatrixView<const uint32_t> masks = {};
    LogitsProcessors* processors = nullptr;
    std::span<const TokenCounts::Entry> counts = {};
    int32_t given_token = -1;  // negative: one is drawn
    int32_t place = -1;        // of a draft, or of a request's last token
  };

  /// Where results of rows are in the memory for them: all are numbers of four bytes.
  struct ResultLayout {
    size_t num_rows = 0;
    size_t num_requests = 0;
    size_t num_top = 0;  // columns of the most likely tokens
    bool logprobs = false;

    // Tokens, accepted drafts by request, log-probabilities, ranks, most likely tokens, theirs.
    size_t accepted() const { return num_rows; }
    size_t of_logprobs(size_t columns) const {
      return num_rows + num_requests + columns * num_rows;
    }
    size_t bytes() const { return of_logprobs(logprobs ? 2 + 2 * num_top : 0) * 4; }
  };

  struct DrawKind {
    bool by_place = false;            // drafts, whose tokens go to their places
    int32_t* num_accepted = nullptr;  // by request, on the device: drafts are verified
  };

  /// What was drawn, on the host.
  struct HostResults {
    std::span<const int32_t> tokens;    // [rows]
    std::span<const int32_t> accepted;  // [requests]
    LogprobRows logprobs;
  };

  /// A call of VerifyLater that was not collected.
  struct LaterVerify {
    std::vector<VerifyRequest> requests;
    ResultLayout layout;
  };

  /// Replaces requests_ by copies, whose drafts are in drafts_.
  void TakeRequests(std::span<const VerifyRequest> requests);
  /// All of drafts_ are on the host then.
  void ReadDrafts();
  /// What the kernel draws for `request`; false: the host draws.
  bool Describe(const VerifyRequest& request, DrawnRows* drawn);
  /// Replaces the masks of requests whose processors forbid tokens: the grammar's and theirs.
  void AddForbidden(int32_t vocab_size);
  /// Draws from all of drawn_rows_, among the first num_tokens tokens.
  void DrawRows(const Context& context, const HeadRows& rows, int32_t num_tokens,
                DrawResults results, DrawKind kind);
  /// The same, with results for the host, one after the other; begins to copy them.
  ResultLayout BeginDrawing(const Context& context, const HeadRows& rows, int32_t num_tokens);
  HostResults FinishDrawing(const ResultLayout& layout);
  void DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens, size_t first,
                size_t end, DrawResults results, DrawKind kind);
  /// A copy, which is kept for the next call with the same span.
  const int32_t* OnDevice(std::span<const int32_t> ids);
  /// Adds the lists of drawn.processors to those of the tile.
  void AddProcessors(const DrawnRows& drawn, RequestSampling& sampling);

  const CudaOps& ops_;
  Verifier verifier_;
  HostSampler host_;
  StagedArrays arrays_;
  const int32_t* ids_ = nullptr;  // what ids_on_device_ is a copy of
  DeviceMemory ids_on_device_;
  std::array<LaterVerify, 2> later_;
  size_t num_later_ = 0;  // of them; the first is the older one
  size_t num_top_ = 0;    // columns of the most likely tokens
  // Kept to reuse memory.
  std::vector<VerifyRequest> requests_;
  std::vector<int32_t> drafts_;  // of all requests
  std::vector<DrawnRows> drawn_rows_;
  std::vector<size_t> drawn_requests_;
  std::vector<VerifyRequest> host_requests_;
  std::vector<size_t> host_draws_;
  std::vector<DrawRequest> host_draw_requests_;
  std::vector<int32_t> host_rows_;
  std::vector<int32_t> host_drafts_;
  std::vector<RequestSampling> sampling_;
  std::vector<int32_t> logit_requests_;
  std::vector<int32_t> logit_positions_;
  std::vector<int32_t> logit_starts_;
  std::vector<int32_t> head_rows_;
  std::vector<int32_t> first_mask_;
  std::vector<uint32_t> masks_;
  std::vector<uint32_t> forbidden_;  // masks that AddForbidden made
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> bias_tokens_;
  std::vector<float> bias_values_;
  std::vector<int32_t> count_tokens_;
  std::vector<uint32_t> counts_;
  std::vector<int32_t> given_tokens_;
  std::vector<int32_t> places_;
  std::vector<ScoreRequest> host_scores_;
};

}  // namespace outrider::cuda
