#include "outrider/generate/request_preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/logprobs_json.h"
#include "outrider/openai/raw_json.h"
#include "outrider/output/answer_scope.h"
#include "outrider/output/tool_grammar.h"
#include "outrider/output/white_space.h"
#include "outrider/text/bad_words.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

using openai::RequestError;
using openai::TokenRequest;
using openai::ToolChoice;

// Looked at before schemas are taken from the text one by one.
constexpr size_t kMaxForcedToolsBytes = GrammarLimits().max_spec_bytes;

// In an answer, of prompts: choices x tokens x (alternatives + 1). About 70 bytes of JSON each.
constexpr int64_t kMaxPromptLogprobs = int64_t{1} << 21;

// The tools that a forced call may name, with their schemas.
std::vector<CallableTool> CallableTools(const TokenRequest& request) {
  if (request.chat.tools_json.size() > kMaxForcedToolsBytes) {
    throw RequestError(ErrorCode::kInvalidArgument, "tools",
                       fmt::format("tools: have {} bytes; to force a call, at most {} are allowed",
                                   request.chat.tools_json.size(), kMaxForcedToolsBytes));
  }
  const std::vector<std::string_view> texts = openai::RawElements(request.chat.tools_json);
  std::vector<CallableTool> tools;
  for (size_t i = 0; i < request.tools.functions.size(); ++i) {
    const std::string& name = request.tools.functions[i];
    if (request.tools.choice == ToolChoice::kNamed && name != request.tools.named) continue;
    if (request.tools.allowed && !request.tools.allowed->contains(name)) continue;
    const std::string_view schema = openai::RawJson(texts[i], {"function", "parameters"});
    CallableTool& tool = tools.emplace_back();
    tool.name = name;
    if (schema != "null") tool.parameters = schema;
    const auto types = request.tools.types.find(name);
    if (types != request.tools.types.end()) tool.types = types->second;
    tool.is_strict = request.tools.strict.contains(name);
  }
  return tools;
}

// Drops tokens from the prompt's beginning, as asked for. True when there were too many.
bool Truncate(const TokenRequest& request, int32_t max_model_len, std::vector<int32_t>* prompt) {
  int64_t kept = request.truncate_prompt_tokens;
  if (kept == -1) kept = max_model_len - std::max(request.max_tokens.value_or(1), 1);
  if (kept <= 0 || static_cast<int64_t>(prompt->size()) <= kept) return false;
  prompt->erase(prompt->begin(), prompt->end() - kept);
  return true;
}

// Whether the prompt ends within the model's reasoning. What a user writes says nothing about that,
// be it the last words of the prompt: only what the assistant or the template wrote.
bool LeavesReasoningOpen(const ChatPrompt& chat, std::string_view prompt,
                         const PromptEncoder& encoder) {
  const nlohmann::json messages = nlohmann::json::parse(chat.messages_json);
  const nlohmann::json& last = messages.back();
  const bool is_assistants = last["role"] == "assistant";
  const std::string content = last.value("content", "");
  if (chat.continue_final_message) {
    if (!is_assistants) return false;
    // The message so far may have begun to reason, and may have stopped.
    const size_t begin = content.rfind(kReasoningBegin);
    const size_t end = content.rfind(kReasoningEnd);
    if (begin != std::string::npos) return end == std::string::npos || end < begin;
    if (end != std::string::npos) return false;
    // Before it stands what the template wrote.
    std::string_view before = Trimmed(prompt);
    const std::string_view shown = Trimmed(content);
    if (before.ends_with(shown)) before.remove_suffix(shown.size());
    return Trimmed(before).ends_with(kReasoningBegin);
  }
  if (!Trimmed(prompt).ends_with(kReasoningBegin)) return false;
  if (is_assistants || !Trimmed(content).ends_with(kReasoningBegin)) return true;
  // Either the template wrote the same after the user's words, or nothing.
  if (!chat.add_generation_prompt) return false;
  ChatPrompt without = chat;
  without.add_generation_prompt = false;
  const std::string unfinished = encoder.EncodeChat(without).text;
  return prompt.starts_with(unfinished) &&
         Trimmed(prompt.substr(unfinished.size())).ends_with(kReasoningBegin);
}

// Each choice tells the log-probabilities of its prompt.
void RefuseTooManyLogprobs(const TokenRequest& request, const openai::AnswerInfo& info) {
  if (!request.sampling.prompt_logprobs) return;
  int64_t tokens = 0;
  for (const std::vector<int32_t>& prompt : info.prompts) {
    tokens += static_cast<int64_t>(prompt.size());
  }
  const int64_t each = *request.sampling.prompt_logprobs + 1;
  if (tokens * request.n * each <= kMaxPromptLogprobs) return;
  const char* const field = request.answer.prompt_logprobs ? "prompt_logprobs" : "logprobs";
  throw RequestError(
      ErrorCode::kInvalidArgument, field,
      fmt::format("{}: {} tokens of prompts, {} choices and {} log-probabilities for each token "
                  "make {}; at most {} are allowed in one answer",
                  field, tokens, request.n, each, tokens * request.n * each, kMaxPromptLogprobs));
}

// Nothing ends it before its last token.
void GiveAnswer(const std::vector<int32_t>& answer, GenerationRequest* request) {
  request->grammar = {};
  request->grammar.forced_tokens = answer;
  request->sampling.ignore_eos = true;
  request->sampling.stop.clear();
  request->sampling.stop_token_ids.clear();
  request->stop_scope = {};
}

}  // namespace

void RequestPreparer::SettleTools(TokenRequest* request, bool can_constrain) const {
  if (request->tools.choice == ToolChoice::kNone) {
    if (!request->chat.tools_json.empty() && !encoder_.SupportsTools()) {
      request->chat.tools_json.clear();  // the model is not to call them anyway
    }
    return;
  }
  const auto refuse = [](const char* field, const char* what) {
    throw RequestError(
        ErrorCode::kInvalidArgument, field,
        fmt::format("{}: {}; leave out \"tools\" or set \"tool_choice\" to \"none\"", field, what));
  };
  if (!encoder_.SupportsTools()) {
    refuse("tools", "this model's chat template does not show tools to the model");
  }
  if (format_.tools == nullptr) {
    refuse("tools",
           "this server does not know how its model writes tool calls (--tool-call-parser)");
  }
  SetCallGrammar(request, can_constrain);
}

// Says what the text must be: with a call that has to come, whatever the answer should have been;
// with one that may come, if something is said of calls or of the answer.
void RequestPreparer::SetCallGrammar(TokenRequest* request, bool can_constrain) const {
  const bool one = request->tools.choice == ToolChoice::kNamed || !request->tools.parallel;
  const auto mark_tokens = [this](std::string_view mark) { return encoder_.AddedToken(mark); };
  if (request->tools.choice != ToolChoice::kAuto) {
    request->grammar = ForcedCalls(*format_.tools, CallableTools(*request), !one, mark_tokens);
    request->grammar_field = "tools";
  } else if (request->grammar && request->grammar->kind != GrammarKind::kStructuralTag) {
    // A structural tag says how calls are written, too.
    request->grammar->calls =
        ForcedCalls(*format_.tools, CallableTools(*request), !one, mark_tokens).text;
  } else if (!request->grammar && can_constrain &&
             (request->tools.allowed || !request->tools.strict.empty())) {
    request->grammar = FreeTextWithCalls(*format_.tools, CallableTools(*request));
    request->grammar_field = "tools";
  }
}

// The marks that tell the parts of the text apart and are special tokens.
std::vector<int32_t> RequestPreparer::MarkTokens(const OutputTask& task) const {
  std::vector<std::string_view> marks;
  if (task.tools != nullptr) marks = MarksOf(*task.tools);
  if (task.reasoning) marks.insert(marks.end(), {kReasoningBegin, kReasoningEnd});
  std::vector<int32_t> tokens;
  for (const std::string_view mark : marks) {
    const std::optional<int32_t> token = encoder_.AddedToken(mark);
    if (token && encoder_.IsSpecial(*token)) tokens.push_back(*token);
  }
  return tokens;
}

// The grammar of the answer. A model may think in any way; what it answers is constrained. Where
// nobody tells the thinking from the answer, it is part of it.
GrammarConstraint RequestPreparer::ConstraintOf(
    const OutputTask& task, const std::shared_ptr<const CompiledGrammar>& grammar) const {
  GrammarConstraint constraint{grammar, {}};
  if (grammar == nullptr || !task.reasoning || !task.reasoning_open) return constraint;
  constraint.start_after = encoder_.EncodeText(kReasoningEnd, /*add_special_tokens=*/false);
  if (task.tools == nullptr) return constraint;
  // A call would end the thinking, and the grammar would not have begun.
  for (const std::string_view mark :
       {task.tools->section_begin, task.tools->call_begin, task.tools->inner_mark}) {
    if (const auto token = encoder_.AddedToken(mark)) constraint.not_before.push_back(*token);
  }
  return constraint;
}

// What to tell apart in the answer to a conversation whose rendered prompt is `prompt`.
OutputTask RequestPreparer::TaskOf(const TokenRequest& request, std::string_view prompt) const {
  OutputTask task;
  task.reasoning = format_.reasoning;
  task.show_reasoning = request.include_reasoning;
  task.one_call = !request.tools.parallel;
  task.reasoning_open = LeavesReasoningOpen(request.chat, prompt, encoder_);
  if (request.tools.choice != ToolChoice::kNone) {
    task.tools = format_.tools;
    task.types = request.tools.types;
  }
  task.kept_special_tokens = MarkTokens(task);
  return task;
}

std::string RequestPreparer::TextOf(std::span<const int32_t> token_ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : token_ids) {
    if (!skip_special || !encoder_.IsSpecial(id)) bytes += encoder_.TokenBytes(id);
  }
  return ReplaceInvalidUtf8(bytes);
}

openai::EchoedPrompt RequestPreparer::EchoTokens(std::span<const int32_t> token_ids,
                                                 bool skip_special) const {
  openai::EchoedPrompt echo{TextOf(token_ids, skip_special), {}};
  for (const int32_t id : token_ids) {
    echo.token_characters.push_back(openai::TokenCharacters(id, encoder_, skip_special));
  }
  return echo;
}

// The text as it came, special tokens that it spells included; what the tokenizer put around it is
// no part of it.
openai::EchoedPrompt RequestPreparer::EchoText(const std::string& text,
                                               std::span<const int32_t> token_ids) const {
  const std::vector<int32_t> own = encoder_.EncodeText(text, /*add_special_tokens=*/false);
  const auto begin = std::search(token_ids.begin(), token_ids.end(), own.begin(), own.end());
  openai::EchoedPrompt echo{text, std::vector<int32_t>(token_ids.size(), 0)};
  auto characters = echo.token_characters.begin() + (begin - token_ids.begin());
  for (size_t i = 0; i < own.size() && characters != echo.token_characters.end(); ++i) {
    *characters++ = openai::TokenCharacters(own[i], encoder_, /*skip_special=*/false);
  }
  return echo;
}

// The most bytes that a prompt can have and fit, if its beginning is not to be cut off.
size_t RequestPreparer::MostBytes(const TokenRequest& request) const {
  const std::optional<size_t> longest = encoder_.LongestTokenBytes();
  if (!longest || request.truncate_prompt_tokens != 0) return SIZE_MAX;
  return *longest * static_cast<size_t>(max_model_len_ - 1);
}

// Tokens have a largest size in bytes: a prompt of too many bytes is refused without encoding it.
void RequestPreparer::RefuseTooLong(const char* field, size_t bytes) const {
  throw RequestError(
      ErrorCode::kInvalidArgument, field,
      fmt::format("{}: has {} bytes; the model's context of {} tokens holds prompts of at most {}, "
                  "of at most {} bytes each",
                  field, bytes, max_model_len_, max_model_len_ - 1, *encoder_.LongestTokenBytes()),
      "context_length_exceeded");
}

EncodedChat RequestPreparer::EncodeChat(TokenRequest* request) const {
  // A template may leave out some of a conversation, and JSON spells some characters with more
  // bytes, but it is not to work on what is far too long.
  constexpr size_t kMostLeftOut = 4;
  ChatPrompt& chat = request->chat;
  chat.max_bytes = MostBytes(*request);
  const size_t bytes = chat.messages_json.size() + chat.tools_json.size();
  if (bytes / kMostLeftOut > chat.max_bytes) RefuseTooLong("messages", bytes);
  try {
    return encoder_.EncodeChat(chat);
  } catch (const PromptTooLong& error) {
    RefuseTooLong("messages", error.bytes());
  }
}

// Fills info's prompts.
OutputTask RequestPreparer::EncodePrompts(TokenRequest* request, openai::AnswerInfo* info) const {
  OutputTask task;
  const size_t most_bytes = MostBytes(*request);
  for (const openai::CompletionPrompt& prompt : request->prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    if (text != nullptr && text->size() > most_bytes) RefuseTooLong("prompt", text->size());
  }
  if (request->answer.chat) {
    EncodedChat encoded = EncodeChat(request);
    task = TaskOf(*request, encoded.text);
    Truncate(*request, max_model_len_, &encoded.token_ids);
    info->prompts.push_back(std::move(encoded.token_ids));
  }
  for (openai::CompletionPrompt& prompt : request->prompts) {
    auto* text = std::get_if<std::string>(&prompt);
    std::vector<int32_t> ids = text != nullptr
                                   ? encoder_.EncodeText(*text, request->add_special_tokens)
                                   : std::move(std::get<std::vector<int32_t>>(prompt));
    const bool truncated = Truncate(*request, max_model_len_, &ids);
    if (request->answer.echo) {
      info->echoed_prompts.push_back(text != nullptr && !truncated
                                         ? EchoText(*text, ids)
                                         : EchoTokens(ids, request->sampling.skip_special_tokens));
    }
    info->prompts.push_back(std::move(ids));
  }
  return task;
}

std::vector<std::vector<int32_t>> RequestPreparer::Prompts(TokenRequest* request) const {
  openai::AnswerInfo info;
  EncodePrompts(request, &info);
  return std::move(info.prompts);
}

PreparedRequest RequestPreparer::Prepare(
    TokenRequest request, openai::AnswerInfo info,
    const std::shared_ptr<const CompiledGrammar>& grammar) const {
  OutputTask task = EncodePrompts(&request, &info);
  request.sampling.bad_words = EncodeBadWords(request.bad_words, encoder_);
  info.n = request.n;
  info.options = request.answer;
  info.options.skip_special_tokens = request.sampling.skip_special_tokens;
  request.sampling.kept_special_tokens = task.kept_special_tokens;
  RefuseTooManyLogprobs(request, info);
  const GrammarConstraint constraint = ConstraintOf(task, grammar);
  const MakeStopScope stop_scope =
      request.sampling.stop.empty() ? MakeStopScope() : MakeAnswerScope(task);
  PreparedRequest prepared;
  for (const std::vector<int32_t>& prompt : info.prompts) {
    const int32_t max_tokens =
        openai::ResolveMaxTokens(request, static_cast<int64_t>(prompt.size()), max_model_len_);
    for (int32_t choice = 0; choice < request.n; ++choice) {
      GenerationRequest& one = prepared.requests.emplace_back();
      one.prompt_token_ids = prompt;
      one.sampling = request.sampling;
      one.sampling.max_tokens = max_tokens;
      if (choice > 0) one.sampling.prompt_logprobs.reset();  // they are those of the first
      one.grammar = constraint;
      one.stop_scope = stop_scope;
      one.priority = request.priority;
      one.cache_salt = request.cache_salt;
      one.num_speculative_tokens = request.num_speculative_tokens;
      one.experts_from = request.experts_from;
      one.trace_steps = request.answer.speculation_metrics == openai::SpeculationMetrics::kDetailed;
      if (request.sampling.seed) one.sampling.seed = ChoiceSeed(*request.sampling.seed, choice);
      if (!request.given_answer.empty()) GiveAnswer(request.given_answer, &one);
    }
  }
  prepared.info = std::move(info);
  prepared.task = std::move(task);
  return prepared;
}

}  // namespace outrider
