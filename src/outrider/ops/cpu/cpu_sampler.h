// The CPU's StepSampler: logits a tile of rows at a time, requests spread over the threads.
#pragma once

#include <vector>

#include "outrider/ops/step_sampler.h"

namespace outrider::cpu {

class CpuSampler : public StepSampler {
 public:
  /// verifier: how drafts are verified.
  CpuSampler(int num_threads, const Verifier& verifier)
      : verifiers_(static_cast<size_t>(num_threads), verifier),
        samplers_(static_cast<size_t>(num_threads)),
        by_token_(static_cast<size_t>(num_threads)) {}

  void Verify(const Context& context, const HeadRows& rows,
              std::span<const VerifyRequest> requests) override;
  void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
            const DraftTokens& among, std::span<TokenRef> tokens) override;
  void Score(const Context& context, const HeadRows& rows,
             std::span<const ScoreRequest> requests) override;

 protected:
  /// logits[i] = head x[rows[i]] of the first logits.cols tokens, in the host's memory.
  virtual void MakeLogits(const Context& context, const HeadRows& rows, MatrixView<float> logits);

 private:
  /// Draw on the first rank.
  void DrawFirst(const Context& context, const HeadRows& rows,
                 std::span<const DrawRequest> requests, const DraftTokens& among,
                 std::span<TokenRef> tokens);
  /// Logits of rows [first, first + count) of `rows`, for the first num_tokens tokens.
  MatrixView<float> Logits(const Context& context, const HeadRows& rows, size_t first, size_t count,
                           int64_t num_tokens);
  void Choose(const Context& context, const HeadRows& rows, int32_t num_tokens,
              std::span<int32_t> tokens);
  void VerifyLikeliest(const Context& context, const HeadRows& rows,
                       std::span<const VerifyRequest> requests);
  /// The logits of a row by token, -infinity where `among` has none.
  std::span<const float> ByToken(const DraftTokens& among, const float* logits, int thread);

  std::vector<Verifier> verifiers_;           // one per thread, all alike
  std::vector<Sampler> samplers_;             // one per thread
  std::vector<std::vector<float>> by_token_;  // one per thread, [vocab]
  // Kept to reuse memory.
  std::vector<float> logits_;       // [tile rows, vocab]
  std::vector<int32_t> likeliest_;  // [rows]
  std::vector<size_t> group_;       // requests of one kind
  std::vector<int32_t> group_rows_;
};

}  // namespace outrider::cpu
