#include "outrider/openai/message_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "outrider/base/json_text.h"

namespace outrider::openai {
namespace {

using Kind = OutputPiece::Kind;

// Arguments are a model's words. A client takes them for an object.
bool IsObject(const std::string& arguments) {
  return arguments.starts_with('{') && nlohmann::json::accept(arguments);
}

}  // namespace

MessageWriter::MessageWriter(AnswerInfo info, OutputTask task, const PromptEncoder& encoder)
    : info_(std::move(info)),
      task_(std::move(task)),
      reader_(task_, encoder, info_.options.skip_special_tokens),
      totals_(info_.prompts, 1) {}

// Tokens that the cache had count apart from the others of the prompt, as soon as they are known.
std::string MessageWriter::UsageJson() const {
  const int64_t cached = totals_.cached_tokens();
  const std::string details =
      task_.reasoning ? fmt::format(R"(,"output_tokens_details":{{"thinking_tokens":{}}})",
                                    reader_.reasoning_tokens())
                      : "";
  return fmt::format(R"({{"input_tokens":{},"cache_creation_input_tokens":0,)"
                     R"("cache_read_input_tokens":{},"output_tokens":{}{}}})",
                     totals_.prompt_tokens() - cached, cached, totals_.completion_tokens(),
                     details);
}

std::string MessageWriter::HeadMembers() const {
  return fmt::format(R"("id":{},"type":"message","role":"assistant","model":{})",
                     JsonString(info_.id), JsonString(info_.model));
}

std::string MessageWriter::StopMembers(const OutputDelta& last) const {
  std::string reason = "null";  // who ended it knows
  std::string sequence = "null";
  if (last.finish_reason == FinishReason::kLength) {
    reason = "\"max_tokens\"";
  } else if (last.finish_reason == FinishReason::kStop) {
    const auto* stop = std::get_if<std::string>(&last.stop_reason);
    if (stop != nullptr && *stop != kNoTokenAllowed) {
      reason = "\"stop_sequence\"";
      sequence = JsonString(*stop);
    } else {
      // A client runs the calls when this says so: all of them must be whole.
      reason = has_calls_ && !has_bad_calls_ ? "\"tool_use\"" : "\"end_turn\"";
    }
  }
  return fmt::format(R"("stop_reason":{},"stop_sequence":{})", reason, sequence);
}

void MessageWriter::WriteEvent(std::string_view type, const std::string& members,
                               std::string* out) {
  if (!streams()) return;
  *out += fmt::format("event: {}\ndata: {{\"type\":\"{}\"{}}}\n\n", type, type, members);
}

void MessageWriter::WriteStart(std::string* out) {
  WriteEvent("message_start",
             fmt::format(R"(,"message":{{{},"content":[],"stop_reason":null,)"
                         R"("stop_sequence":null,"usage":{}}})",
                         HeadMembers(), UsageJson()),
             out);
}

void MessageWriter::Begin(const OutputPiece& piece, std::string* out) {
  Block block{piece.kind == Kind::kArguments ? Kind::kToolCall : piece.kind};
  std::string json = R"({"type":"text","text":""})";
  if (block.kind == Kind::kReasoning) json = R"({"type":"thinking","thinking":"","signature":""})";
  if (block.kind == Kind::kToolCall) {
    block.function = piece.text;
    block.call_id =
        piece.call_id.empty()
            ? fmt::format("toolu_{}_{}", info_.id.substr(info_.id.rfind('_') + 1), num_blocks_)
            : piece.call_id;
    json = fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{{}}}})",
                       JsonString(block.call_id), JsonString(block.function));
  }
  open_ = std::move(block);
  WriteEvent("content_block_start",
             fmt::format(R"(,"index":{},"content_block":{})", num_blocks_++, json), out);
}

void MessageWriter::Add(const std::string& text, std::string* out) {
  open_->text += text;
  const char* delta = R"("type":"text_delta","text")";
  if (open_->kind == Kind::kReasoning) delta = R"("type":"thinking_delta","thinking")";
  if (open_->kind == Kind::kToolCall) delta = R"("type":"input_json_delta","partial_json")";
  WriteEvent(
      "content_block_delta",
      fmt::format(R"(,"index":{},"delta":{{{}:{}}})", num_blocks_ - 1, delta, JsonString(text)),
      out);
}

void MessageWriter::End(bool whole, std::string* out) {
  if (!open_) return;
  const Block& block = *open_;
  const std::string text = JsonString(block.text);
  if (block.kind == Kind::kReasoning) {
    whole_.push_back(fmt::format(R"({{"type":"thinking","thinking":{},"signature":""}})", text));
  } else if (block.kind == Kind::kContent) {
    whole_.push_back(fmt::format(R"({{"type":"text","text":{}}})", text));
  } else if (whole && IsObject(block.text)) {
    has_calls_ = true;
    whole_.push_back(fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})",
                                 JsonString(block.call_id), JsonString(block.function),
                                 block.text));
  } else {
    has_bad_calls_ = true;
  }
  open_.reset();
  WriteEvent("content_block_stop", fmt::format(R"(,"index":{})", num_blocks_ - 1), out);
}

void MessageWriter::Take(const OutputDelta& delta, std::string* out) {
  totals_.Add(0, delta);
  for (const OutputPiece& piece : reader_.Take(delta)) {
    const bool goes_on = open_ && (piece.kind == open_->kind || piece.kind == Kind::kArguments) &&
                         piece.kind != Kind::kToolCall;
    if (!goes_on) {
      End(/*whole=*/true, out);
      Begin(piece, out);
    }
    if (piece.kind != Kind::kToolCall) Add(piece.text, out);
  }
  if (delta.finish_reason) End(!reader_.call_cut_off(), out);
}

void MessageWriter::WriteDelta(size_t /*choice*/, const OutputDelta& delta, std::string* out) {
  Take(delta, out);
  if (!delta.finish_reason) return;
  WriteEvent("message_delta",
             fmt::format(R"(,"delta":{{{}}},"usage":{})", StopMembers(delta), UsageJson()), out);
  WriteEvent("message_stop", "", out);
}

void MessageWriter::WriteError(const ApiError& error, std::string* out) {
  *out += "event: error\n" + Event(ErrorJson(error, ErrorForm::kAnthropic));
}

std::string MessageWriter::Body(std::vector<OutputDelta> choices) {
  std::string no_events;
  Take(choices.at(0), &no_events);
  return fmt::format(R"({{{},"content":[{}],{},"usage":{}}})", HeadMembers(),
                     fmt::join(whole_, ","), StopMembers(choices[0]), UsageJson());
}

}  // namespace outrider::openai
