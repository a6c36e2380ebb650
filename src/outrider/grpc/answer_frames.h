// How a writer hands messages to a call: the body of an answer is a row of frames.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

enum class FrameKind : uint8_t {
  kMessage,  // a serialized vllm.GenerateResponse
  kError,    // the JSON text of an error's status and its object: [503, {"error": ...}]
};

struct AnswerFrame {
  FrameKind kind;
  std::string bytes;
};

void AppendFrame(FrameKind kind, std::string_view bytes, std::string* out);

/// Takes the first frame off `body`, which AppendFrame made; nothing when it is empty.
std::optional<AnswerFrame> TakeFrame(std::string_view* body);

}  // namespace outrider
