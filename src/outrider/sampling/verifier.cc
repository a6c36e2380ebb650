#include "outrider/sampling/verifier.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/base/random.h"
#include "outrider/sampling/token_mask.h"

namespace outrider {

namespace {

/// What drawing `token` at row `index` says of the draft for that row.
Judgement Match(const VerifyInput& input, size_t index, int32_t token) {
  if (input.num_accepted >= 0) return {token, std::cmp_less(index, input.num_accepted)};
  return {token, index < input.drafts.size() && token == input.drafts[index].token()};
}

/// Whether the model's numbers have overflown in the row: nothing may be drawn from it.
bool Overflown(const VerifyInput& input, size_t index) {
  const float* data = input.logits.row(static_cast<int64_t>(index));
  const std::span<const float> row(data, static_cast<size_t>(input.logits.cols));
  return HasNan(row) || !std::isfinite(row[ArgMax(row)]);
}

/// Whether the row at `index` cannot give `token`, by its mask or its logits.
bool Forbids(const VerifyInput& input, size_t index, std::span<const float> row, int32_t token) {
  if (!row.empty()) return row[static_cast<size_t>(token)] == kForbidden;
  if (input.masks.data == nullptr) return false;
  return !Allows(
      {input.masks.row(static_cast<int64_t>(index)), static_cast<size_t>(input.masks.cols)}, token);
}

}  // namespace

bool Verifier::NeedsLogits(const SamplingParams& params, bool with_logprobs) const {
  if (acceptance_.method == RejectionMethod::kStandard && params.temperature > 0) return true;
  // A synthetic acceptance emits drafts that were not drawn.
  const bool emits_drawn = acceptance_.method != RejectionMethod::kSynthetic;
  return params.logprobs && !(with_logprobs && emits_drawn);
}

void Verifier::Verify(const VerifyInput& input, VerifiedTokens* result) {
  result->tokens.clear();
  result->logprobs.clear();
  result->num_accepted = 0;
  result->dead_end = false;
  result->overflown = false;
  const SamplingParams& params = *input.params;
  const size_t num_rows = input.drafts.size() + 1;
  const bool has_logits = input.drawn.empty();
  OUTRIDER_CHECK(has_logits ? input.logits.rows == static_cast<int64_t>(num_rows)
                            : input.drawn.size() == num_rows);
  for (size_t j = 0; j < num_rows; ++j) {
    if (has_logits && Overflown(input, j)) {
      result->dead_end = result->overflown = true;
      break;
    }
    const std::span<const float> row =
        has_logits ? Processed(input, static_cast<int64_t>(j)) : std::span<const float>();
    const auto [token, is_draft] = Judge(input, j, row);
    if (token < 0) {
      result->dead_end = true;
      result->overflown = token == kOverflownRow;
      break;
    }
    result->tokens.push_back(token);
    if (params.logprobs && !has_logits) {
      const auto num_top = static_cast<size_t>(*params.logprobs);
      const LogprobRows& rows = input.drawn_logprobs;
      result->logprobs.push_back(rows.At(j, token, std::min(num_top, rows.columns)));
    } else if (params.logprobs) {
      const std::span<const float> raw(input.logits.row(static_cast<int64_t>(j)), row.size());
      result->logprobs.push_back(Logprobs(params, raw, row, token));
    }
    if (!is_draft) break;
    ++result->num_accepted;
  }
}

int32_t Verifier::GivenCount(const VerifyInput& input) const {
  if (acceptance_.method != RejectionMethod::kSynthetic) return -1;
  size_t count = 0;
  while (count < input.drafts.size() && AcceptsByRate(input, count)) ++count;
  return static_cast<int32_t>(count);
}

bool Verifier::AcceptsByRate(const VerifyInput& input, size_t index) const {
  const double before = index == 0 ? 1 : acceptance_.rates[index - 1];
  const double u = UniformDouble(input.seed, input.tokens.size() + index, RandomStream::kAccept);
  return u * before < acceptance_.rates[index];
}

std::span<const float> Verifier::Processed(const VerifyInput& input, int64_t j) {
  const std::span<const float> raw(input.logits.row(j), static_cast<size_t>(input.logits.cols));
  const bool masked = input.masks.data != nullptr;
  if (!masked && input.processors == nullptr) return raw;
  processed_.assign(raw.begin(), raw.end());
  if (masked) {
    ApplyTokenMask({input.masks.row(j), static_cast<size_t>(input.masks.cols)}, processed_);
  }
  if (input.processors != nullptr) {
    input.processors->Apply({KnownTokens(input.tokens), input.prompt_length,
                             KnownTokens(input.drafts.first(static_cast<size_t>(j)))},
                            processed_);
  }
  return processed_;
}

// The token of row `index`, and whether it is the draft for that row; the last row has none. `row`
// is empty where drawn tokens are given in place of logits.
Judgement Verifier::Judge(const VerifyInput& input, size_t index, std::span<const float> row) {
  const SamplingParams& params = *input.params;
  const auto position = static_cast<int64_t>(input.tokens.size() + index);
  const auto draw = [&] {
    return row.empty() ? input.drawn[index] : sampler_.Sample(params, {input.seed, position}, row);
  };
  const bool has_draft = index < input.drafts.size();
  if (has_draft && acceptance_.method == RejectionMethod::kSynthetic) {
    const int32_t draft = input.drafts[index].token();
    if (!Forbids(input, index, row, draft) && AcceptsByRate(input, index)) return {draft, true};
    return {draw(), false};
  }
  if (has_draft && acceptance_.method == RejectionMethod::kStandard && params.temperature > 0 &&
      std::isfinite(row[ArgMax(row)])) {
    const float* q =
        input.draft_probs == nullptr ? nullptr : input.draft_probs + index * row.size();
    return rejection_sampler_.Judge(params, input.seed, position, row, input.drafts[index].token(),
                                    q);
  }
  return Match(input, index, draw());
}

PositionLogprobs Verifier::Logprobs(const SamplingParams& params, std::span<const float> raw,
                                    std::span<const float> processed, int32_t token) {
  if (logprobs_mode_ == LogprobsMode::kRaw) return ComputeLogprobs(raw, token, *params.logprobs);
  cut_.resize(processed.size());
  sampler_.Process(params, processed, cut_);
  return ComputeLogprobs(cut_, token, *params.logprobs);
}

}  // namespace outrider
