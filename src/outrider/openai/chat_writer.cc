#include "outrider/openai/chat_writer.h"

#include <fmt/format.h>

#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/openai/logprobs_json.h"

namespace outrider::openai {
namespace {

using Kind = OutputPiece::Kind;

bool IsToolPiece(const OutputPiece& piece) {
  return piece.kind == Kind::kToolCall || piece.kind == Kind::kArguments;
}

// Both names that clients look for.
std::string ReasoningMembers(const std::string& text) {
  const std::string json = JsonString(text);
  return R"("reasoning":)" + json + R"(,"reasoning_content":)" + json;
}

}  // namespace

ChatWriter::ChatWriter(AnswerInfo info, OutputTask task, const PromptEncoder& encoder)
    : ChoicesWriter(std::move(info), encoder, {"chat.completion", "chat.completion.chunk"}),
      task_(std::move(task)) {
  for (int32_t i = 0; i < this->info().n; ++i) {
    choices_.push_back({OutputReader(task_, encoder, options().skip_special_tokens)});
  }
}

// The members that a call begins with; an open object.
std::string ChatWriter::CallHead(size_t index, const OutputPiece& call) {
  const int32_t number = choices_[index].tool_calls++;
  // Ids that the model does not give are unique through the answer's.
  const std::string id =
      call.call_id.empty()
          ? fmt::format("call_{}_{}_{}", info().id.substr(info().id.rfind('-') + 1), index, number)
          : call.call_id;
  return fmt::format(R"("id":{},"type":"function","function":{{"name":{},"arguments":)",
                     JsonString(id), JsonString(call.text));
}

// {"tool_calls":[...]} of a run of pieces: one entry for each call that they are about.
std::string ChatWriter::ToolCallsDelta(size_t index, const OutputPiece*& piece,
                                       const OutputPiece* end) {
  std::string entries;
  while (piece != end && IsToolPiece(*piece)) {
    if (!entries.empty()) entries += ',';
    std::string head = R"("function":{"arguments":)";
    int32_t number = choices_[index].tool_calls - 1;
    if (piece->kind == Kind::kToolCall) {
      ++number;
      head = CallHead(index, *piece++);
    }
    std::string arguments;
    while (piece != end && piece->kind == Kind::kArguments) arguments += (piece++)->text;
    entries += fmt::format(R"({{"index":{},{}{}}}}})", number, head, JsonString(arguments));
  }
  return R"({"tool_calls":[)" + entries + "]}";
}

std::vector<std::string> ChatWriter::Deltas(size_t index, const std::vector<OutputPiece>& pieces) {
  std::vector<std::string> deltas;
  const OutputPiece* const end = pieces.data() + pieces.size();
  for (const OutputPiece* piece = pieces.data(); piece != end;) {
    if (IsToolPiece(*piece)) {
      deltas.push_back(ToolCallsDelta(index, piece, end));
    } else if (piece->kind == Kind::kReasoning) {
      deltas.push_back('{' + ReasoningMembers((piece++)->text) + '}');
    } else {
      deltas.push_back(R"({"content":)" + JsonString((piece++)->text) + '}');
    }
  }
  return deltas;
}

// What follows the delta or message in a choice.
std::string ChatWriter::ChoiceTail(size_t index, const OutputDelta& delta) const {
  const bool logprobs = options().logprobs && !delta.logprobs.empty();
  std::string reason = "null";
  if (delta.finish_reason) {
    // A client runs the calls when this says so: all of them must be whole.
    const Choice& choice = choices_[index];
    const bool calls = choice.tool_calls > 0 && !choice.reader.call_cut_off() &&
                       *delta.finish_reason == FinishReason::kStop;
    reason = fmt::format("\"{}\"", calls ? "tool_calls" : FinishReasonName(*delta.finish_reason));
  }
  std::string out =
      fmt::format(R"(,"logprobs":{},"finish_reason":{},"stop_reason":{})",
                  logprobs ? ChatLogprobsJson(delta.logprobs, encoder()) : std::string("null"),
                  reason, StopReasonJson(delta));
  if (options().return_token_ids) out += R"(,"token_ids":)" + IdsJson(delta.token_ids);
  return out + LastChoiceMembers(delta) + '}';
}

// The delta without what is not to be shown; `own` has it if it differs.
const OutputDelta& ChatWriter::Shown(size_t index, const OutputDelta& delta, OutputDelta* own) {
  // NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): callers keep their delta
  if (task_.show_reasoning) return delta;
  *own = delta;
  choices_[index].reader.HideReasoning(own);
  return *own;
}

void ChatWriter::WriteChoice(size_t index, const OutputDelta& whole_delta, std::string* out) {
  if (!std::exchange(choices_[index].started, true)) {
    WriteChunk(
        fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},)"
                    R"("logprobs":null,"finish_reason":null}})",
                    index),
        options().return_token_ids ? R"(,"prompt_token_ids":)" + IdsJson(PromptOf(index)) : "",
        out);
    if (!options().echoed_message.empty()) {
      WriteChunk(fmt::format(R"({{"index":{},"delta":{{"content":{}}},)"
                             R"("logprobs":null,"finish_reason":null}})",
                             index, JsonString(options().echoed_message)),
                 "", out);
    }
  }
  std::vector<std::string> deltas = Deltas(index, choices_[index].reader.Take(whole_delta));
  OutputDelta own;
  const OutputDelta& delta = Shown(index, whole_delta, &own);
  if (deltas.empty()) {
    // Tokens can end inside a character, a marker or a possible stop string: no text is certain.
    if (!TellsTokens(delta)) return;
    deltas.emplace_back(R"({"content":""})");
  }
  // What one step gave can have parts of several kinds, in chunks of their own: the last of them
  // tells of the tokens.
  for (size_t i = 0; i + 1 < deltas.size(); ++i) {
    WriteChunk(fmt::format(R"({{"index":{},"delta":{},"logprobs":null,"finish_reason":null}})",
                           index, deltas[i]),
               "", out);
  }
  WriteChunk(
      fmt::format(R"({{"index":{},"delta":{})", index, deltas.back()) + ChoiceTail(index, delta),
      LastMembers(), out);
}

std::string ChatWriter::MessageJson(size_t index, const std::vector<OutputPiece>& pieces) {
  std::string content = options().echoed_message;
  std::string reasoning;
  std::string calls;
  for (size_t i = 0; i < pieces.size();) {
    const OutputPiece& piece = pieces[i++];
    if (piece.kind == Kind::kReasoning) reasoning += piece.text;
    if (piece.kind == Kind::kContent) content += piece.text;
    if (piece.kind != Kind::kToolCall) continue;
    std::string arguments;
    for (; i < pieces.size() && pieces[i].kind == Kind::kArguments; ++i) {
      arguments += pieces[i].text;
    }
    if (!calls.empty()) calls += ',';
    calls += '{' + CallHead(index, piece) + JsonString(arguments) + "}}";
  }
  std::string out = R"({"role":"assistant","content":)";
  out += content.empty() && !calls.empty() ? "null" : JsonString(content);
  if (!reasoning.empty()) out += ',' + ReasoningMembers(reasoning);
  if (!calls.empty()) out += R"(,"tool_calls":[)" + calls + ']';
  return out + '}';
}

std::string ChatWriter::WholeChoice(size_t index, const OutputDelta& whole) {
  const std::string message = MessageJson(index, choices_[index].reader.Take(whole));
  OutputDelta own;
  return fmt::format(R"({{"index":{},"message":{})", index, message) +
         ChoiceTail(index, Shown(index, whole, &own));
}

std::string ChatWriter::UsageDetails() const {
  if (!task_.reasoning) return "";
  int64_t tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.reader.reasoning_tokens();
  return fmt::format(R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})", tokens);
}

std::string ChatWriter::WholeMembers() {
  std::string out;
  if (options().return_token_ids) out += R"(,"prompt_token_ids":)" + IdsJson(info().prompts[0]);
  if (options().prompt_logprobs) out += R"(,"prompt_logprobs":)" + PromptLogprobsText(0);
  return out;
}

}  // namespace outrider::openai
