#include "outrider/sampling/verifier.h"

#include "outrider/base/error.h"

namespace outrider {

void Verifier::Verify(const SamplingParams& params, uint64_t seed, int64_t first_position,
                      MatrixView<const float> logits, std::span<const int32_t> drafts,
                      VerifiedTokens* result) {
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(drafts.size()) + 1);
  result->tokens.clear();
  result->logprobs.clear();
  result->num_accepted = 0;
  for (int64_t j = 0; j < logits.rows; ++j) {
    const std::span<const float> row(logits.row(j), static_cast<size_t>(logits.cols));
    const int32_t token = sampler_.Sample(params, seed, first_position + j, row);
    result->tokens.push_back(token);
    if (params.logprobs) result->logprobs.push_back(ComputeLogprobs(row, token, *params.logprobs));
    if (j + 1 == logits.rows || token != drafts[static_cast<size_t>(j)]) break;
    ++result->num_accepted;
  }
}

}  // namespace outrider
