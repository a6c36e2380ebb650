#include "outrider/execute/logits_pass.h"

#include <numeric>

#include "outrider/base/error.h"
#include "outrider/ops/tokens_on_device.h"
#include "outrider/sampling/token_mask.h"

namespace outrider {

void LogitsPass::Verify(const StepLayout& step, Tensor hidden) {
  Describe(step);
  FillMasks();
  model_.Verify(*sampler_, hidden, step.rows().logits_rows(), verify_);
}

std::optional<Ticket> LogitsPass::Launch(const StepLayout& step, Tensor hidden) {
  Describe(step);
  OUTRIDER_CHECK(masked_.empty());
  return model_.LaunchVerify(*sampler_, hidden, step.rows().logits_rows(), verify_);
}

void LogitsPass::Describe(const StepLayout& step) {
  verify_.clear();
  masked_.clear();
  masked_slots_.clear();
  for (const RequestRows& rows : step.requests()) {
    if (rows.num_logits_rows == 0) continue;
    RequestSlot& slot = step.slot(rows);
    if (slot.grammar) {
      masked_.push_back(verify_.size());
      masked_slots_.push_back(&slot);
    }
    verify_.push_back(
        {.input = {.params = &slot.sampling(),
                   .seed = slot.parameters->seed,
                   .tokens = slot.tokens,
                   .prompt_length = static_cast<size_t>(slot.parameters->prompt_length),
                   .processors = slot.processors ? &*slot.processors : nullptr,
                   .drafts = step.work(rows).draft_tokens,
                   .draft_probs = slot.draft_probs.empty() ? nullptr : slot.draft_probs.data()},
         .first_row = rows.first_logits_row,
         .result = &step.result(rows).verified,
         .places = SlotPlaces(rows.slot, max_drafts_).of_verification()});
  }
}

void LogitsPass::FillMasks() {
  const auto words = static_cast<int64_t>(MaskWords(model_.vocab_size()));
  int64_t num_rows = 0;
  for (const size_t i : masked_) num_rows += verify_[i].num_rows();
  masks_.resize(static_cast<size_t>(num_rows * words));
  int64_t first = 0;
  for (const size_t i : masked_) {
    verify_[i].input.masks = {masks_.data() + first * words, verify_[i].num_rows(), words};
    first += verify_[i].num_rows();
  }
  pool_.ParallelFor(static_cast<int64_t>(masked_.size()), [&](int64_t i, int /*thread*/) {
    const VerifyInput& request = verify_[masked_[static_cast<size_t>(i)]].input;
    uint32_t* const masks = masks_.data() + (request.masks.data - masks_.data());
    masked_slots_[static_cast<size_t>(i)]->grammar->FillMasks(
        KnownTokens(request.drafts), {masks, request.masks.rows, request.masks.cols});
  });
}

void LogitsPass::ScorePrompts(const StepLayout& step, Tensor hidden) {
  for (const RequestRows& rows : step.requests()) {
    if (rows.num_prompt_logits_rows > 0) ScoreRows(rows, hidden, step.slot(rows));
  }
}

void LogitsPass::ScoreRows(const RequestRows& rows, Tensor hidden, RequestSlot& slot) {
  const auto count = static_cast<size_t>(rows.num_prompt_logits_rows);
  std::vector<PositionLogprobs>& scores = slot.prompt_logprobs;
  const size_t done = scores.size();
  scores.resize(done + count);
  ListScoreRows(rows);
  score_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    score_[i] = {.token = slot.tokens[static_cast<size_t>(rows.context_length) + i + 1].token(),
                 .num_top = *slot.sampling().prompt_logprobs,
                 .result = &scores[done + i]};
  }
  model_.Score(*sampler_, hidden, score_rows_, score_);
}

void LogitsPass::ListScoreRows(const RequestRows& rows) {
  score_rows_.resize(static_cast<size_t>(rows.num_prompt_logits_rows));
  std::iota(score_rows_.begin(), score_rows_.end(), rows.first_row);
}

void LogitsPass::FollowVerify(const StepLayout& step, Tensor hidden) {
  model_.Verify(*sampler_, hidden, step.rows().logits_rows(), {});
}

void LogitsPass::FollowScores(const StepLayout& step, Tensor hidden) {
  for (const RequestRows& rows : step.requests()) {
    if (rows.num_prompt_logits_rows == 0) continue;
    ListScoreRows(rows);
    model_.Score(*sampler_, hidden, score_rows_, {});
  }
}

}  // namespace outrider
