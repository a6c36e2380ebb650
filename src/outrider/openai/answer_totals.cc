#include "outrider/openai/answer_totals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace outrider::openai {
namespace {

void AddCounts(const SpeculationCounts& counts, SpeculationCounts* sum) {
  sum->num_drafts += counts.num_drafts;
  sum->num_draft_tokens += counts.num_draft_tokens;
  sum->num_accepted_tokens += counts.num_accepted_tokens;
  const std::vector<int64_t>& accepted = counts.accepted_per_position;
  if (sum->accepted_per_position.size() < accepted.size()) {
    sum->accepted_per_position.resize(accepted.size());
  }
  for (size_t i = 0; i < accepted.size(); ++i) sum->accepted_per_position[i] += accepted[i];
}

}  // namespace

AnswerTotals::AnswerTotals(const std::vector<std::vector<int32_t>>& prompts, int32_t n)
    : n_(static_cast<size_t>(n)), choices_(prompts.size() * n_) {
  for (const auto& prompt : prompts) prompt_tokens_ += static_cast<int64_t>(prompt.size());
}

void AnswerTotals::Add(size_t index, const OutputDelta& delta) {
  Choice& choice = choices_[index];
  choice.completion_tokens += static_cast<int64_t>(delta.token_ids.size());
  for (const StepTrace& step : delta.steps) {
    if (step.drafts.empty()) continue;
    choice.per_step_drafted.push_back(static_cast<int32_t>(step.drafts.size()));
    choice.per_step_accepted.push_back(step.num_accepted);
  }
  if (delta.finish_reason) {
    choice.stats = delta.stats;
    ++num_finished_;
  }
}

int64_t AnswerTotals::completion_tokens() const {
  int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.completion_tokens;
  return sum;
}

int64_t AnswerTotals::cached_tokens() const {
  int64_t sum = 0;
  for (size_t i = 0; i < choices_.size(); i += n_) sum += choices_[i].stats.cached_tokens;
  return sum;
}

std::string AnswerTotals::UsageJson(const std::string& details) const {
  const int64_t completion = completion_tokens();
  return fmt::format(R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}}{}}})",
                     prompt_tokens_, prompt_tokens_ + completion, completion, cached_tokens(),
                     details);
}

// acceptance_histogram[j]: verify steps that accepted exactly j draft tokens.
std::string AnswerTotals::MetricsJson(bool per_step) const {
  SpeculationCounts sum;
  for (const Choice& choice : choices_) AddCounts(choice.stats.speculation, &sum);
  std::vector<int64_t> histogram;
  int64_t at_least = sum.num_drafts;
  for (const int64_t accepted : sum.accepted_per_position) {
    histogram.push_back(at_least - accepted);
    at_least = accepted;
  }
  histogram.push_back(at_least);
  const double rate = sum.num_draft_tokens == 0 ? 0
                                                : static_cast<double>(sum.num_accepted_tokens) /
                                                      static_cast<double>(sum.num_draft_tokens);
  return fmt::format(
      R"({{"speculative_decoding":{{"mean_acceptance_length":{:.6g},"draft_acceptance_rate":{:.6g},)"
      R"("acceptance_histogram":[{}],"num_spec_steps":{},"num_accepted_draft_tokens":{},)"
      R"("num_draft_tokens":{},"num_spec_tokens":{}{}}}}})",
      sum.MeanAcceptanceLength(), rate, fmt::join(histogram, ","), sum.num_drafts,
      sum.num_accepted_tokens, sum.num_draft_tokens, sum.accepted_per_position.size(),
      per_step ? PerStepMembers() : "");
}

// Choice after choice.
std::string AnswerTotals::PerStepMembers() const {
  std::vector<int32_t> drafted;
  std::vector<int32_t> accepted;
  for (const Choice& choice : choices_) {
    drafted.insert(drafted.end(), choice.per_step_drafted.begin(), choice.per_step_drafted.end());
    accepted.insert(accepted.end(), choice.per_step_accepted.begin(),
                    choice.per_step_accepted.end());
  }
  return fmt::format(R"(,"per_step_drafted":[{}],"per_step_accepted":[{}])",
                     fmt::join(drafted, ","), fmt::join(accepted, ","));
}

}  // namespace outrider::openai
