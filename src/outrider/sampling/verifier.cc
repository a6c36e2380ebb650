#include "outrider/sampling/verifier.h"

#include "outrider/base/error.h"

namespace outrider {

void Verifier::Verify(const VerifyInput& input, VerifiedTokens* result) {
  const MatrixView<const float> logits = input.logits;
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(input.drafts.size()) + 1);
  result->tokens.clear();
  result->logprobs.clear();
  result->num_accepted = 0;
  result->dead_end = false;
  const SamplingParams& params = *input.params;
  for (int64_t j = 0; j < logits.rows; ++j) {
    const auto accepted = static_cast<size_t>(j);
    const std::span<const float> raw(logits.row(j), static_cast<size_t>(logits.cols));
    std::span<const float> row = raw;
    if (input.processors != nullptr) {
      processed_.assign(raw.begin(), raw.end());
      input.processors->Apply({input.tokens, input.prompt_length, input.drafts.first(accepted)},
                              processed_);
      row = processed_;
    }
    const auto position = static_cast<int64_t>(input.tokens.size()) + j;
    const int32_t token = sampler_.Sample(params, input.seed, position, row);
    if (token == Sampler::kNoToken) {
      result->dead_end = true;
      break;
    }
    result->tokens.push_back(token);
    if (params.logprobs) result->logprobs.push_back(Logprobs(params, raw, row, token));
    if (j + 1 == logits.rows || token != input.drafts[accepted]) break;
    ++result->num_accepted;
  }
}

PositionLogprobs Verifier::Logprobs(const SamplingParams& params, std::span<const float> raw,
                                    std::span<const float> processed, int32_t token) {
  if (logprobs_mode_ == LogprobsMode::kRaw) return ComputeLogprobs(raw, token, *params.logprobs);
  cut_.resize(processed.size());
  sampler_.Process(params, processed, cut_);
  return ComputeLogprobs(cut_, token, *params.logprobs);
}

}  // namespace outrider
