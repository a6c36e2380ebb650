#include "outrider/openai/response_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/json_text.h"

namespace outrider::openai {
namespace {

using Kind = OutputPiece::Kind;

// The events of one kind of item have one of these in their names.
std::string_view EventStem(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return "response.reasoning_text";
    case Kind::kContent:
      return "response.output_text";
    default:
      return "response.function_call_arguments";
  }
}

std::string_view StatusOf(std::optional<FinishReason> reason) {
  if (!reason) return "in_progress";
  return *reason == FinishReason::kStop ? "completed" : "incomplete";
}

std::string_view IncompleteDetails(std::optional<FinishReason> reason) {
  if (reason == FinishReason::kLength) return R"({"reason":"max_output_tokens"})";
  return reason == FinishReason::kAbort ? R"({"reason":"aborted"})" : "null";
}

std::string_view IdPrefix(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return "rs";
    case Kind::kContent:
      return "msg";
    default:
      return "fc";
  }
}

// What a custom tool gets of the arguments that the model wrote: the text "input", or, where there
// is none, all that it wrote.
std::string CustomInput(const std::string& arguments) {
  const auto parsed = nlohmann::json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("input")) return arguments;
  const nlohmann::json& input = parsed["input"];
  return input.is_string() ? input.get<std::string>() : input.dump();
}

}  // namespace

ResponseWriter::ResponseWriter(AnswerInfo info, OutputTask task, std::string members,
                               const PromptEncoder& encoder)
    : info_(std::move(info)),
      task_(std::move(task)),
      members_(std::move(members)),
      reader_(task_, encoder, info_.options.skip_special_tokens),
      totals_(info_.prompts, 1) {}

std::string ResponseWriter::PartJson(const Item& item, bool empty) const {
  const std::string text = JsonString(empty ? "" : item.text);
  return item.kind == Kind::kReasoning
             ? fmt::format(R"({{"type":"reasoning_text","text":{}}})", text)
             : fmt::format(R"({{"type":"output_text","text":{},"annotations":[],"logprobs":[]}})",
                           text);
}

// `empty`: as the item is before its text comes.
std::string ResponseWriter::ItemJson(const Item& item, std::string_view status, bool empty) const {
  const std::string parts = empty ? "[]" : '[' + PartJson(item, false) + ']';
  switch (item.kind) {
    case Kind::kReasoning:
      return fmt::format(R"({{"id":"{}","type":"reasoning","summary":[],"content":{},)"
                         R"("encrypted_content":null,"status":"{}"}})",
                         item.id, parts, status);
    case Kind::kContent:
      return fmt::format(
          R"({{"id":"{}","type":"message","role":"assistant","content":{},"status":"{}"}})",
          item.id, parts, status);
    default:
      if (IsCustom(item)) {
        return fmt::format(R"({{"id":"{}","type":"custom_tool_call","call_id":{},"name":{},)"
                           R"("input":{},"status":"{}"}})",
                           item.id, JsonString(item.call_id), JsonString(item.function),
                           JsonString(empty ? "" : CustomInput(item.text)), status);
      }
      return fmt::format(
          R"({{"id":"{}","type":"function_call","call_id":{},"name":{},"arguments":{},)"
          R"("status":"{}"}})",
          item.id, JsonString(item.call_id), JsonString(item.function),
          JsonString(empty ? "" : item.text), status);
  }
}

std::string ResponseWriter::ResponseJson(std::optional<FinishReason> reason) const {
  std::string usage = "null";
  if (reason) {
    const int64_t in = totals_.prompt_tokens();
    const int64_t out = totals_.completion_tokens();
    usage = fmt::format(
        R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},)"
        R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
        in, totals_.cached_tokens(), out, reader_.reasoning_tokens(), in + out);
  }
  return fmt::format(
      R"({{"id":{},"object":"response","created_at":{},"completed_at":{},"status":"{}","error":null,)"
      R"("incomplete_details":{},"model":{},"output":[{}],{},"usage":{}}})",
      JsonString(info_.id), info_.created,
      reason == FinishReason::kStop ? std::to_string(std::time(nullptr)) : "null", StatusOf(reason),
      IncompleteDetails(reason), JsonString(info_.model), fmt::join(done_, ","), members_, usage);
}

// `members`: after type and number, each with a comma before it.
void ResponseWriter::WriteEvent(std::string_view type, const std::string& members,
                                std::string* out) {
  if (!streams()) return;
  *out += fmt::format("event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{}{}}}\n\n", type,
                      type, sequence_number_++, members);
}

// Where in the output the open item is, or its only part.
std::string ResponseWriter::Place(bool part) const {
  return fmt::format(R"(,"item_id":"{}","output_index":{}{})", open_->id, done_.size(),
                     part ? R"(,"content_index":0)" : "");
}

void ResponseWriter::WriteStart(std::string* out) {
  const std::string response = R"(,"response":)" + ResponseJson(std::nullopt);
  WriteEvent("response.created", response, out);
  WriteEvent("response.in_progress", response, out);
}

void ResponseWriter::Begin(const OutputPiece& piece, std::string* out) {
  const Kind kind = piece.kind == Kind::kArguments ? Kind::kToolCall : piece.kind;
  const std::string number =
      fmt::format("{}_{}", info_.id.substr(info_.id.rfind('_') + 1), done_.size());
  Item item{kind, fmt::format("{}_{}", IdPrefix(kind), number), "", "", ""};
  if (kind == Kind::kToolCall) {
    item.function = piece.text;
    item.call_id = piece.call_id.empty() ? "call_" + number : piece.call_id;
  }
  open_ = std::move(item);
  WriteEvent("response.output_item.added",
             fmt::format(R"(,"output_index":{},"item":{})", done_.size(),
                         ItemJson(*open_, "in_progress", true)),
             out);
  if (kind == Kind::kToolCall) return;
  WriteEvent("response.content_part.added", Place(true) + R"(,"part":)" + PartJson(*open_, true),
             out);
}

void ResponseWriter::Add(const std::string& text, std::string* out) {
  Item& item = *open_;
  item.text += text;
  const bool is_call = item.kind == Kind::kToolCall;
  if (IsCustom(item)) return;  // its input is known at its end
  WriteEvent(fmt::format("{}.delta", EventStem(item.kind)),
             fmt::format(R"({},"delta":{}{})", Place(!is_call), JsonString(text),
                         item.kind == Kind::kContent ? R"(,"logprobs":[])" : ""),
             out);
}

void ResponseWriter::End(std::string_view status, std::string* out) {
  if (!open_) return;
  const Item& item = *open_;
  const std::string done = fmt::format("{}.done", EventStem(item.kind));
  const std::string text = JsonString(item.text);
  if (IsCustom(item)) {
    const std::string input = JsonString(CustomInput(item.text));
    WriteEvent("response.custom_tool_call_input.delta", Place(false) + R"(,"delta":)" + input, out);
    WriteEvent("response.custom_tool_call_input.done", Place(false) + R"(,"input":)" + input, out);
  } else if (item.kind == Kind::kToolCall) {
    WriteEvent(done,
               fmt::format(R"({},"name":{},"arguments":{})", Place(false),
                           JsonString(item.function), text),
               out);
  } else {
    WriteEvent(done,
               fmt::format(R"({},"text":{}{})", Place(true), text,
                           item.kind == Kind::kContent ? R"(,"logprobs":[])" : ""),
               out);
    WriteEvent("response.content_part.done", Place(true) + R"(,"part":)" + PartJson(item, false),
               out);
  }
  const std::string json = ItemJson(item, status, false);
  WriteEvent("response.output_item.done",
             fmt::format(R"(,"output_index":{},"item":{})", done_.size(), json), out);
  done_.push_back(json);
  open_.reset();
}

void ResponseWriter::Take(const OutputDelta& delta, std::string* out) {
  totals_.Add(0, delta);
  for (const OutputPiece& piece : reader_.Take(delta)) {
    const bool goes_on = open_ && (piece.kind == open_->kind || piece.kind == Kind::kArguments) &&
                         piece.kind != Kind::kToolCall;
    if (!goes_on) {
      End("completed", out);
      Begin(piece, out);
    }
    if (piece.kind != Kind::kToolCall) Add(piece.text, out);
  }
  if (!delta.finish_reason) return;
  const std::string_view status = StatusOf(delta.finish_reason);
  End(reader_.call_cut_off() ? "incomplete" : status, out);
  WriteEvent(fmt::format("response.{}", status),
             R"(,"response":)" + ResponseJson(delta.finish_reason), out);
}

void ResponseWriter::WriteDelta(size_t /*choice*/, const OutputDelta& delta, std::string* out) {
  Take(delta, out);
}

void ResponseWriter::WriteError(const ApiError& error, std::string* out) {
  WriteEvent(
      "error",
      fmt::format(R"(,"code":{},"message":{},"param":null)",
                  error.code.empty() ? "null" : JsonString(error.code), JsonString(error.message)),
      out);
}

std::string ResponseWriter::Body(std::vector<OutputDelta> choices) {
  std::string no_events;
  Take(choices.at(0), &no_events);
  return ResponseJson(choices[0].finish_reason);
}

}  // namespace outrider::openai
