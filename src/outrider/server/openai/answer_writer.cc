#include "outrider/server/openai/answer_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <utility>

#include "outrider/server/openai/json_text.h"
#include "outrider/server/openai/logprobs_json.h"

namespace outrider::openai {
namespace {

constexpr std::string_view kEventStart = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

std::string IdsJson(const std::vector<int32_t>& ids) {
  return fmt::format("[{}]", fmt::join(ids, ","));
}

std::string StopReasonJson(const OutputDelta& delta) {
  if (const auto* id = std::get_if<int32_t>(&delta.stop_reason)) return std::to_string(*id);
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return JsonString(*text);
  return "null";
}

std::string FinishReasonJson(const OutputDelta& delta) {
  if (!delta.finish_reason) return "null";
  return *delta.finish_reason == FinishReason::kStop ? "\"stop\"" : "\"length\"";
}

void Add(const SpeculationCounts& counts, SpeculationCounts* sum) {
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

AnswerWriter::AnswerWriter(AnswerInfo info, const PromptEncoder& encoder)
    : info_(std::move(info)),
      encoder_(encoder),
      choices_(info_.prompts.size() * static_cast<size_t>(info_.n)) {
  const char* object = !info_.options.chat    ? "text_completion"
                       : info_.options.stream ? "chat.completion.chunk"
                                              : "chat.completion";
  head_ = fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)",
                      JsonString(info_.id), object, info_.created, JsonString(info_.model));
}

void AnswerWriter::Count(size_t index, const OutputDelta& delta) {
  Choice& choice = choices_[index];
  choice.completion_tokens += static_cast<int64_t>(delta.token_ids.size());
  if (delta.finish_reason) {
    choice.stats = delta.stats;
    ++num_finished_;
  }
}

const std::vector<int32_t>& AnswerWriter::PromptOf(size_t index) const {
  return info_.prompts[index / static_cast<size_t>(info_.n)];
}

// Puts the prompt's text before the first delta's; echo_only leaves nothing else.
void AnswerWriter::Echo(size_t index, OutputDelta* delta) {
  if (info_.options.echo_only) {
    delta->text.clear();
    delta->token_ids.clear();
    delta->logprobs.clear();
    if (delta->finish_reason) delta->finish_reason = FinishReason::kLength;
    delta->stop_reason = std::monostate();
  }
  if (!std::exchange(choices_[index].echoed, true)) {
    delta->text.insert(0, info_.prompt_texts[index / static_cast<size_t>(info_.n)]);
  }
}

std::string AnswerWriter::LogprobsJson(size_t index, const OutputDelta& delta, bool first) {
  const bool echo = info_.options.echo && first;
  if (!info_.options.logprobs || (delta.logprobs.empty() && !echo)) return "null";
  if (info_.options.chat) return ChatLogprobsJson(delta.logprobs, encoder_);
  int64_t* const text_offset = &choices_[index].text_offset;
  if (!echo) {
    return CompletionLogprobsJson(std::nullopt, delta.logprobs, encoder_, text_offset);
  }
  std::vector<PositionLogprobs> positions = delta.prompt_logprobs;
  positions.insert(positions.end(), delta.logprobs.begin(), delta.logprobs.end());
  return CompletionLogprobsJson(PromptOf(index).front(), positions, encoder_, text_offset);
}

std::string AnswerWriter::ChoiceJson(size_t index, const OutputDelta& delta, bool chunk,
                                     bool first) {
  std::string out = fmt::format(R"({{"index":{},)", index);
  if (!info_.options.chat) {
    out += R"("text":)" + JsonString(delta.text);
  } else if (chunk) {
    out += R"("delta":{"content":)" + JsonString(delta.text) + "}";
  } else {
    out += R"("message":{"role":"assistant","content":)" + JsonString(delta.text) + "}";
  }
  fmt::format_to(std::back_inserter(out), R"(,"logprobs":{},"finish_reason":{},"stop_reason":{})",
                 LogprobsJson(index, delta, first), FinishReasonJson(delta), StopReasonJson(delta));
  if (info_.options.return_token_ids) {
    if (first && !info_.options.chat) {
      out += R"(,"prompt_token_ids":)" + IdsJson(PromptOf(index));
    }
    out += R"(,"token_ids":)" + IdsJson(delta.token_ids);
  }
  if (info_.options.prompt_logprobs && !info_.options.chat) {
    out += R"(,"prompt_logprobs":)" + PromptLogprobsJson(delta.prompt_logprobs, encoder_);
  }
  out += '}';
  return out;
}

std::string AnswerWriter::UsageJson() const {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  // A prompt counts once, however many choices answer it.
  for (const auto& prompt : info_.prompts) prompt_tokens += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    completion_tokens += choices_[i].completion_tokens;
    if (i % static_cast<size_t>(info_.n) == 0) cached_tokens += choices_[i].stats.cached_tokens;
  }
  return fmt::format(R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                     prompt_tokens, prompt_tokens + completion_tokens, completion_tokens,
                     cached_tokens);
}

// vLLM's fields. acceptance_histogram[j]: verify steps that accepted exactly j draft tokens.
std::string AnswerWriter::MetricsMember() const {
  if (!info_.options.speculation_metrics) return "";
  SpeculationCounts sum;
  for (const Choice& choice : choices_) Add(choice.stats.speculation, &sum);
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
      R"(,"metrics":{{"speculative_decoding":{{"mean_acceptance_length":{:.6g},)"
      R"("draft_acceptance_rate":{:.6g},)"
      R"("acceptance_histogram":[{}],"num_spec_steps":{},"num_accepted_draft_tokens":{},)"
      R"("num_draft_tokens":{},"num_spec_tokens":{}}}}})",
      sum.MeanAcceptanceLength(), rate, fmt::join(histogram, ","), sum.num_drafts,
      sum.num_accepted_tokens, sum.num_draft_tokens, sum.accepted_per_position.size());
}

// `extra`: further members of the object, each with a comma before it.
void AnswerWriter::WriteEvent(const std::string& choices, const std::string& extra,
                              std::string* out) {
  const AnswerOptions& options = info_.options;
  *out += kEventStart;
  *out += head_;
  *out += choices;
  *out += ']';
  if (options.continuous_usage || (options.include_usage && choices.empty())) {
    *out += R"(,"usage":)" + UsageJson();
  } else if (options.include_usage) {
    *out += R"(,"usage":null)";
  }
  *out += extra;
  *out += '}';
  *out += kEventEnd;
}

void AnswerWriter::WriteDelta(size_t index, const OutputDelta& delta, std::string* out) {
  if (!info_.options.echo) return WriteEvents(index, delta, out);
  OutputDelta echoed = delta;
  Echo(index, &echoed);
  WriteEvents(index, echoed, out);
}

void AnswerWriter::WriteEvents(size_t index, const OutputDelta& delta, std::string* out) {
  Choice& choice = choices_[index];
  const AnswerOptions& options = info_.options;
  Count(index, delta);
  if (options.chat && !choice.started) {
    choice.started = true;
    WriteEvent(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},)"
                           R"("logprobs":null,"finish_reason":null}})",
                           index),
               options.return_token_ids ? R"(,"prompt_token_ids":)" + IdsJson(PromptOf(index)) : "",
               out);
  }
  // Tokens can end inside a character or a possible stop string: then there is no text yet.
  const bool has_news = !delta.text.empty() || delta.finish_reason || !delta.logprobs.empty() ||
                        (options.return_token_ids && !delta.token_ids.empty());
  if (!has_news) return;
  const bool first = !std::exchange(choice.started, true);
  const bool last = num_finished_ == choices_.size() && !options.include_usage;
  WriteEvent(ChoiceJson(index, delta, true, first), last ? MetricsMember() : "", out);
}

void AnswerWriter::WriteEnd(std::string* out) {
  if (info_.options.include_usage) WriteEvent("", MetricsMember(), out);
  *out += "data: [DONE]\n\n";
}

void AnswerWriter::Collect(size_t index, OutputDelta delta) {
  if (info_.options.echo) Echo(index, &delta);
  Count(index, delta);
  OutputDelta& whole = choices_[index].whole;
  whole.text += delta.text;
  whole.token_ids.insert(whole.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  whole.logprobs.insert(whole.logprobs.end(), std::make_move_iterator(delta.logprobs.begin()),
                        std::make_move_iterator(delta.logprobs.end()));
  whole.prompt_logprobs.insert(whole.prompt_logprobs.end(),
                               std::make_move_iterator(delta.prompt_logprobs.begin()),
                               std::make_move_iterator(delta.prompt_logprobs.end()));
  if (delta.finish_reason) {
    whole.finish_reason = delta.finish_reason;
    whole.stop_reason = std::move(delta.stop_reason);
  }
}

std::string AnswerWriter::Body() {
  std::string out = head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    out += ChoiceJson(i, choices_[i].whole, false, true);
  }
  out += R"(],"usage":)" + UsageJson();
  if (info_.options.chat && info_.options.return_token_ids) {
    out += R"(,"prompt_token_ids":)" + IdsJson(info_.prompts[0]);
  }
  if (info_.options.chat && info_.options.prompt_logprobs) {
    out +=
        R"(,"prompt_logprobs":)" + PromptLogprobsJson(choices_[0].whole.prompt_logprobs, encoder_);
  }
  out += MetricsMember();
  out += '}';
  return out;
}

std::string ErrorEvent(const std::string& error_json) {
  return fmt::format("{}{}{}", kEventStart, error_json, kEventEnd);
}

}  // namespace outrider::openai
