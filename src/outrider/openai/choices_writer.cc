#include "outrider/openai/choices_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/openai/experts_json.h"
#include "outrider/openai/logprobs_json.h"
#include "outrider/openai/steps_json.h"

namespace outrider::openai {

std::string IdsJson(const std::vector<int32_t>& ids) {
  return fmt::format("[{}]", fmt::join(ids, ","));
}

std::string StopReasonJson(const OutputDelta& delta) {
  if (const auto* id = std::get_if<int32_t>(&delta.stop_reason)) return std::to_string(*id);
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return JsonString(*text);
  return "null";
}

ChoicesWriter::ChoicesWriter(AnswerInfo info, const PromptEncoder& encoder, ObjectNames names)
    : info_(std::move(info)),
      encoder_(encoder),
      totals_(info_.prompts, info_.n),
      scored_(info_.prompts.size()) {
  const char* object = info_.options.stream ? names.chunk : names.whole;
  head_ = fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)",
                      JsonString(info_.id), object, info_.created, JsonString(info_.model));
}

const std::vector<int32_t>& ChoicesWriter::PromptOf(size_t index) const {
  return info_.prompts[index / static_cast<size_t>(info_.n)];
}

std::string ChoicesWriter::MetricsMember() const {
  const SpeculationMetrics level = info_.options.speculation_metrics;
  if (level == SpeculationMetrics::kOff) return "";
  return R"(,"metrics":)" + totals_.MetricsJson(level == SpeculationMetrics::kDetailed);
}

bool ChoicesWriter::TellsTokens(const OutputDelta& delta) const {
  return delta.finish_reason || !delta.logprobs.empty() || !delta.steps.empty() ||
         (info_.options.return_token_ids && !delta.token_ids.empty());
}

std::string ChoicesWriter::LastChoiceMembers(const OutputDelta& delta) const {
  std::string of_end = WeightMembers(delta) + ExpertMembers(delta, info_.options.sglangs_experts);
  if (info_.options.speculation_metrics != SpeculationMetrics::kDetailed) return of_end;
  return R"(,"speculative_steps":)" + StepsJson(delta, encoder_) + of_end;
}

std::string WeightMembers(const OutputDelta& delta) {
  const std::vector<WeightSpan>& spans = delta.stats.weight_spans;
  if (!delta.finish_reason || spans.empty() || spans.back().version.empty()) return "";
  std::string out = R"(,"weight_version":)" + JsonString(spans.back().version);
  if (spans.size() == 1) return out;
  std::vector<std::string> items;
  items.reserve(spans.size());
  for (const WeightSpan& span : spans) {
    items.push_back(
        fmt::format(R"({{"version":{},"tokens":{}}})", JsonString(span.version), span.tokens));
  }
  return out + fmt::format(R"(,"weight_versions":[{}])", fmt::join(items, ","));
}

std::string ChoicesWriter::LastMembers() const {
  return totals_.all_finished() && !info_.options.include_usage ? MetricsMember() : "";
}

std::span<const PositionLogprobs> ChoicesWriter::PromptLogprobsOf(size_t index) const {
  return scored_[index / static_cast<size_t>(info_.n)].logprobs;
}

const std::string& ChoicesWriter::PromptLogprobsText(size_t index) {
  ScoredPrompt& scored = ScoredOf(index);
  if (scored.json.empty()) scored.json = PromptLogprobsJson(scored.logprobs, encoder_);
  return scored.json;
}

void ChoicesWriter::TakeScores(size_t choice, const OutputDelta& delta) {
  if (!IsFirstOfPrompt(choice) || ScoredOf(choice).done) return;
  ScoredOf(choice).done = !delta.token_ids.empty() || delta.finish_reason;
  if (!delta.prompt_logprobs.empty()) ScoredOf(choice).logprobs = delta.prompt_logprobs;
}

bool ChoicesWriter::MustWait(size_t choice) const {
  const bool tells_prompt = info_.options.echo && info_.options.logprobs;
  return tells_prompt && !IsFirstOfPrompt(choice) &&
         !scored_[choice / static_cast<size_t>(info_.n)].done;
}

void ChoicesWriter::WriteChunk(const std::string& choices, const std::string& extra,
                               std::string* out) const {
  const AnswerOptions& options = info_.options;
  std::string chunk = head_ + choices + ']';
  if (options.continuous_usage || (options.include_usage && choices.empty())) {
    chunk += R"(,"usage":)" + UsageJson();
  } else if (options.include_usage) {
    chunk += R"(,"usage":null)";
  }
  *out += Event(chunk + extra + '}');
}

void ChoicesWriter::WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) {
  totals_.Add(choice, delta);
  TakeScores(choice, delta);
  WriteChoice(choice, delta, out);
}

void ChoicesWriter::WriteEnd(std::string* out) {
  if (info_.options.include_usage) WriteChunk("", MetricsMember(), out);
  *out += Event("[DONE]");
}

std::string ChoicesWriter::Body(std::vector<OutputDelta> choices) {
  std::string out = head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    totals_.Add(i, choices[i]);
    TakeScores(i, choices[i]);
    if (i > 0) out += ',';
    out += WholeChoice(i, choices[i]);
  }
  out += R"(],"usage":)" + UsageJson() + WholeMembers() + MetricsMember() + '}';
  return out;
}

}  // namespace outrider::openai
