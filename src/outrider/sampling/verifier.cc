#include "outrider/sampling/verifier.h"

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/base/random.h"
#include "outrider/sampling/token_mask.h"

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
    const bool masked = input.masks.data != nullptr;
    if (masked || input.processors != nullptr) {
      processed_.assign(raw.begin(), raw.end());
      if (masked) {
        ApplyTokenMask({input.masks.row(j), static_cast<size_t>(input.masks.cols)}, processed_);
      }
      if (input.processors != nullptr) {
        input.processors->Apply({input.tokens, input.prompt_length, input.drafts.first(accepted)},
                                processed_);
      }
      row = processed_;
    }
    const auto [token, is_draft] = Judge(input, accepted, row);
    if (token == Sampler::kNoToken) {
      result->dead_end = true;
      break;
    }
    result->tokens.push_back(token);
    if (params.logprobs) result->logprobs.push_back(Logprobs(params, raw, row, token));
    if (!is_draft) break;
    ++result->num_accepted;
  }
}

// The token of row `index`, and whether it is the draft for that row; the last row has none.
Judgement Verifier::Judge(const VerifyInput& input, size_t index, std::span<const float> row) {
  const SamplingParams& params = *input.params;
  const auto position = static_cast<int64_t>(input.tokens.size() + index);
  const bool has_draft = index < input.drafts.size();
  if (has_draft && acceptance_.method == RejectionMethod::kSynthetic) {
    const double before = index == 0 ? 1 : acceptance_.rates[index - 1];
    const double u =
        UniformDouble(input.seed, static_cast<uint64_t>(position), RandomStream::kAccept);
    const int32_t draft = input.drafts[index];
    const bool forbidden = row[static_cast<size_t>(draft)] == kForbidden;
    if (!forbidden && u * before < acceptance_.rates[index]) return {draft, true};
    return {sampler_.Sample(params, input.seed, position, row), false};
  }
  if (has_draft && acceptance_.method == RejectionMethod::kStandard && params.temperature > 0 &&
      row[ArgMax(row)] != kForbidden) {
    const float* q =
        input.draft_probs == nullptr ? nullptr : input.draft_probs + index * row.size();
    return rejection_sampler_.Judge(params, input.seed, position, row, input.drafts[index], q);
  }
  const int32_t token = sampler_.Sample(params, input.seed, position, row);
  return {token, has_draft && token == input.drafts[index]};
}

PositionLogprobs Verifier::Logprobs(const SamplingParams& params, std::span<const float> raw,
                                    std::span<const float> processed, int32_t token) {
  if (logprobs_mode_ == LogprobsMode::kRaw) return ComputeLogprobs(raw, token, *params.logprobs);
  cut_.resize(processed.size());
  sampler_.Process(params, processed, cut_);
  return ComputeLogprobs(cut_, token, *params.logprobs);
}

}  // namespace outrider
