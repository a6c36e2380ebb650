#include "outrider/execute/logits_pass.h"

#include <algorithm>
#include <numeric>

#include "outrider/sampling/token_mask.h"

namespace outrider {

namespace {

// Logits are made and sampled for about this many rows at a time, which bounds their memory.
constexpr int32_t kLogitsTile = 64;

}  // namespace

void LogitsPass::Verify(const LogitsInput& input, std::span<VerifiedTokens* const> verified) {
  const auto requests = input.layout.requests();
  const bool needs_logits = std::any_of(requests.begin(), requests.end(), [&](const auto& r) {
    return r.num_logits_rows > 0 && NeedsLogits(input.slot(r));
  });
  const auto all_rows = static_cast<int32_t>(input.layout.logits_rows().size());
  const int32_t most_rows = needs_logits ? kLogitsTile : all_rows;
  size_t first = 0;
  while (first < requests.size()) {
    size_t end = first;
    int32_t rows = 0;
    while (end < requests.size() &&
           (rows == 0 || rows + requests[end].num_logits_rows <= most_rows)) {
      rows += requests[end++].num_logits_rows;
    }
    if (rows > 0) VerifyTile(input, requests.subspan(first, end - first), needs_logits, verified);
    first = end;
  }
}

void LogitsPass::VerifyTile(const LogitsInput& input, std::span<const RequestRows> requests,
                            bool needs_logits, std::span<VerifiedTokens* const> verified) {
  const int32_t first_logits_row = requests.front().first_logits_row;
  const int32_t rows =
      requests.back().first_logits_row + requests.back().num_logits_rows - first_logits_row;
  const std::span<const int32_t> logits_rows = input.layout.logits_rows().subspan(
      static_cast<size_t>(first_logits_row), static_cast<size_t>(rows));
  MatrixView<float> logits;
  if (needs_logits) {
    const int64_t vocab = model_.vocab_size();
    logits_.resize(static_cast<size_t>(rows * vocab));
    logits = {logits_.data(), rows, vocab};
    model_.Logits(Network::kTarget, input.hidden, logits_rows, logits);
  } else {
    likeliest_.resize(static_cast<size_t>(rows));
    model_.ArgMaxTokens(Network::kTarget, input.hidden, logits_rows, model_.vocab_size(),
                        likeliest_);
  }
  const MatrixView<const uint32_t> masks = FillMasks(input, requests, rows);
  const auto verify = [&](int64_t i, int thread) {
    const RequestRows& request = requests[static_cast<size_t>(i)];
    if (request.num_logits_rows == 0) return;
    const auto index = static_cast<size_t>(request.work_index);
    RequestSlot& slot = input.slot(request);
    const int32_t first_row = request.first_logits_row - first_logits_row;
    VerifyInput rows_of_request{
        .params = &slot.sampling(),
        .seed = slot.parameters->seed,
        .tokens = slot.tokens,
        .prompt_length = static_cast<size_t>(slot.parameters->prompt_length),
        .processors = slot.processors ? &*slot.processors : nullptr,
        .drafts = input.work[index].draft_tokens,
        .draft_probs = slot.draft_probs.empty() ? nullptr : slot.draft_probs.data()};
    if (slot.grammar) {
      rows_of_request.masks = masks.Rows(first_row, request.num_logits_rows);
    }
    if (needs_logits) {
      rows_of_request.logits = logits.Rows(first_row, request.num_logits_rows);
    } else {
      rows_of_request.likeliest = std::span(likeliest_)
                                      .subspan(static_cast<size_t>(first_row),
                                               static_cast<size_t>(request.num_logits_rows));
    }
    verifiers_[static_cast<size_t>(thread)].Verify(rows_of_request, verified[index]);
  };
  const auto count = static_cast<int64_t>(requests.size());
  if (needs_logits) {
    pool_.ParallelFor(count, verify);
  } else {
    for (int64_t i = 0; i < count; ++i) verify(i, 0);  // a comparison each
  }
}

bool LogitsPass::NeedsLogits(const RequestSlot& slot) const {
  return verifiers_.front().NeedsLogits(slot.sampling(), slot.grammar || slot.processors);
}

MatrixView<const uint32_t> LogitsPass::FillMasks(const LogitsInput& input,
                                                 std::span<const RequestRows> requests,
                                                 int32_t num_rows) {
  masked_.clear();
  for (const RequestRows& request : requests) {
    if (request.num_logits_rows > 0 && input.slot(request).grammar) {
      masked_.push_back(&request);
    }
  }
  if (masked_.empty()) return {};
  const size_t words = MaskWords(model_.vocab_size());
  masks_.resize(static_cast<size_t>(num_rows) * words);
  const MatrixView<uint32_t> masks(masks_.data(), num_rows, static_cast<int64_t>(words));
  const int32_t first_row = requests.front().first_logits_row;
  pool_.ParallelFor(static_cast<int64_t>(masked_.size()), [&](int64_t i, int) {
    const RequestRows& request = *masked_[static_cast<size_t>(i)];
    const auto index = static_cast<size_t>(request.work_index);
    input.slot(request).grammar->FillMasks(
        input.work[index].draft_tokens,
        masks.Rows(request.first_logits_row - first_row, request.num_logits_rows));
  });
  return masks;
}

void LogitsPass::ScorePrompts(const LogitsInput& input) {
  for (const RequestRows& rows : input.layout.requests()) {
    if (rows.num_prompt_logits_rows == 0) continue;
    ScoreRows(input, rows, input.slot(rows));
  }
}

void LogitsPass::ScoreRows(const LogitsInput& input, const RequestRows& rows, RequestSlot& slot) {
  const int64_t vocab = model_.vocab_size();
  std::vector<PositionLogprobs>& scores = slot.prompt_logprobs;
  for (int32_t first = 0; first < rows.num_prompt_logits_rows; first += kLogitsTile) {
    const int32_t count = std::min(kLogitsTile, rows.num_prompt_logits_rows - first);
    score_rows_.resize(static_cast<size_t>(count));
    std::iota(score_rows_.begin(), score_rows_.end(), rows.first_row + first);
    logits_.resize(static_cast<size_t>(count * vocab));
    const MatrixView<float> logits(logits_.data(), count, vocab);
    model_.Logits(Network::kTarget, input.hidden, score_rows_, logits);
    const size_t done = scores.size();
    scores.resize(done + static_cast<size_t>(count));
    pool_.ParallelFor(count, [&](int64_t i, int) {
      const auto next = static_cast<size_t>(rows.context_length + first + i + 1);
      scores[done + static_cast<size_t>(i)] =
          ComputeLogprobs({logits.row(i), static_cast<size_t>(vocab)}, slot.tokens[next],
                          *slot.sampling().prompt_logprobs);
    });
  }
}

}  // namespace outrider
