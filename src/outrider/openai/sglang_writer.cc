#include "outrider/openai/sglang_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <variant>

#include "outrider/base/json_text.h"
#include "outrider/openai/experts_json.h"
#include "outrider/openai/logprobs_json.h"

namespace outrider::openai {
namespace {

std::string FinishJson(const OutputDelta& delta) {
  if (!delta.finish_reason) return "null";
  switch (*delta.finish_reason) {
    case FinishReason::kLength:
      return fmt::format(R"({{"type":"length","length":{}}})", delta.stats.completion_tokens);
    case FinishReason::kAbort:
      return R"({"type":"abort","message":"aborted"})";
    case FinishReason::kStop:
    case FinishReason::kError:  // is no answer
      return fmt::format(R"({{"type":"stop","matched":{}}})", StopReasonJson(delta));
  }
  return "null";
}

std::string ExpertMember(const OutputDelta& delta) {
  if (delta.experts == nullptr) return "";
  return fmt::format(R"(,"routed_experts":"{}")", ExpertsInt32(*delta.experts));
}

// Weights that nobody named have SGLang's name for them.
std::string VersionMembers(const OutputDelta& delta) {
  const std::string named = WeightMembers(delta);
  return named.empty() && delta.finish_reason ? R"(,"weight_version":"default")" : named;
}

}  // namespace

SglangWriter::SglangWriter(AnswerInfo info, const PromptEncoder& encoder)
    : info_(std::move(info)),
      encoder_(encoder),
      so_far_(info_.prompts.size() * static_cast<size_t>(info_.n)) {}

// [logprob, token id, text or null].
std::string SglangWriter::Entry(const TokenLogprob& token) const {
  std::string logprob;
  AppendLogprob(token.logprob, &logprob);
  return fmt::format("[{},{},{}]", logprob, token.token_id,
                     info_.options.text_in_logprobs
                         ? JsonString(encoder_.TokenBytes(token.token_id))
                         : std::string("null"));
}

std::string SglangWriter::Entries(const std::vector<PositionLogprobs>& positions,
                                  size_t first) const {
  std::vector<std::string> entries;
  for (size_t i = first; i < positions.size(); ++i) entries.push_back(Entry(positions[i].chosen));
  return fmt::format("{}", fmt::join(entries, ","));
}

std::string SglangWriter::TopEntries(const std::vector<PositionLogprobs>& positions,
                                     size_t first) const {
  std::vector<std::string> lists;
  for (size_t i = first; i < positions.size(); ++i) {
    std::vector<std::string> entries;
    for (const TokenLogprob& token : positions[i].top) entries.push_back(Entry(token));
    lists.push_back(fmt::format("[{}]", fmt::join(entries, ",")));
  }
  return fmt::format("{}", fmt::join(lists, ","));
}

// The first token that is told of a prompt has no log-probability: [null, token id, text].
std::string SglangWriter::LogprobMembers(size_t choice, const OutputDelta& so_far,
                                         const std::vector<PositionLogprobs>& prompt) const {
  const AnswerOptions& options = info_.options;
  if (!options.logprobs) return "";
  std::string out = R"(,"output_token_logprobs":[)" + Entries(so_far.logprobs, 0) + ']';
  if (*options.logprobs > 0) {
    out += R"(,"output_top_logprobs":[)" + TopEntries(so_far.logprobs, 0) + ']';
  }
  std::string scored;
  std::string tops;
  const std::vector<int32_t>& ids = info_.prompts[choice / static_cast<size_t>(info_.n)];
  const auto first = static_cast<size_t>(options.logprobs_from.value_or(0));
  if (options.logprobs_from && first < ids.size()) {
    scored = fmt::format("[null,{},{}]", ids[first],
                         options.text_in_logprobs ? JsonString(encoder_.TokenBytes(ids[first]))
                                                  : std::string("null"));
    tops = "null";
    if (first < prompt.size()) {  // positions begin with the second token's
      scored += ',' + Entries(prompt, first);
      tops += ',' + TopEntries(prompt, first);
    }
  }
  out += R"(,"input_token_logprobs":[)" + scored + ']';
  if (*options.logprobs > 0) out += R"(,"input_top_logprobs":[)" + tops + ']';
  return out;
}

std::string SglangWriter::AnswerJson(size_t choice, const OutputDelta& so_far,
                                     const std::vector<PositionLogprobs>& prompt) const {
  const bool several = so_far_.size() > 1;
  return fmt::format(
      R"({{"text":{},"output_ids":{},"meta_info":{{"id":{},"finish_reason":{},"prompt_tokens":{},)"
      R"("completion_tokens":{},"cached_tokens":{},"e2e_latency":{:.6g}{}{}{}}}{}}})",
      JsonString(so_far.text), IdsJson(so_far.token_ids), JsonString(info_.id), FinishJson(so_far),
      info_.prompts[choice / static_cast<size_t>(info_.n)].size(), so_far.token_ids.size(),
      so_far.stats.cached_tokens, so_far.stats.total_seconds,
      LogprobMembers(choice, so_far, prompt), VersionMembers(so_far), ExpertMember(so_far),
      several ? fmt::format(R"(,"index":{})", choice) : std::string());
}

void SglangWriter::WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) {
  OutputDelta& so_far = so_far_[choice];
  so_far.text += delta.text;
  so_far.token_ids.insert(so_far.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  so_far.logprobs.insert(so_far.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  if (delta.finish_reason) {
    so_far.finish_reason = delta.finish_reason;
    so_far.stop_reason = delta.stop_reason;
    so_far.stats = delta.stats;
    so_far.experts = delta.experts;
  }
  *out += Event(AnswerJson(choice, so_far, {}));
}

void SglangWriter::WriteEnd(std::string* out) { *out += Event("[DONE]"); }

std::string SglangWriter::Body(std::vector<OutputDelta> choices) {
  std::vector<std::string> answers;
  for (size_t i = 0; i < choices.size(); ++i) {
    const size_t first = i / static_cast<size_t>(info_.n) * static_cast<size_t>(info_.n);
    answers.push_back(AnswerJson(i, choices[i], choices[first].prompt_logprobs));
  }
  if (answers.size() == 1 && !info_.options.is_batch) return answers[0];
  return fmt::format("[{}]", fmt::join(answers, ","));
}

}  // namespace outrider::openai
