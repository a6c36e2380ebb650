#include "outrider/grpc/answer_frames.h"

#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

void AppendFrame(FrameKind kind, std::string_view bytes, std::string* out) {
  const uint64_t size = bytes.size();
  out->push_back(static_cast<char>(kind));
  out->append(reinterpret_cast<const char*>(&size), sizeof size);
  out->append(bytes);
}

std::optional<AnswerFrame> TakeFrame(std::string_view* body) {
  if (body->empty()) return std::nullopt;
  uint64_t size = 0;
  constexpr size_t kHead = 1 + sizeof size;
  OUTRIDER_CHECK(body->size() >= kHead);
  std::memcpy(&size, body->data() + 1, sizeof size);
  OUTRIDER_CHECK(body->size() - kHead >= size);
  AnswerFrame frame{static_cast<FrameKind>(body->front()), std::string(body->substr(kHead, size))};
  body->remove_prefix(kHead + size);
  return frame;
}

}  // namespace outrider
