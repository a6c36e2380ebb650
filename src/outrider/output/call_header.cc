#include "outrider/output/call_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "outrider/output/marker.h"
#include "outrider/output/white_space.h"

namespace outrider {
namespace {

constexpr size_t kMaxHeaderBytes = 256;

// The name in "functions.NAME:NUMBER", of which either side may be missing.
std::string_view NameInId(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const size_t colon = id.rfind(':');
  const bool numbered = colon != std::string_view::npos && colon + 1 < id.size() &&
                        id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return numbered ? id.substr(0, colon) : id;
}

constexpr size_t kMaxNameBytes = 128;

}  // namespace

bool IsFunctionName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_' || c == '.';
         });
}

CallHeader::Status CallHeader::Read(std::string_view* text, std::span<const std::string_view> ends,
                                    bool final) {
  const MarkerMatch match = FindMarker(*text, ends, final);
  size_t size = std::min(match.begin, kMaxHeaderBytes - text_.size());
  // Not inside a character, wherever the text was cut.
  while (size < match.begin && size > 0 && (static_cast<uint8_t>((*text)[size]) & 0xC0) == 0x80) {
    --size;
  }
  text_ += text->substr(0, size);
  text->remove_prefix(size);
  if (size < match.begin) return Status::kTooLong;
  return match.marker ? Status::kEnded : Status::kNeedsMore;
}

ToolCallReader::Status CallHeader::ReadCall(const ToolFormat& format, std::string_view* text,
                                            bool final, std::vector<OutputPiece>* pieces) {
  using Reader = ToolCallReader::Status;
  const std::array ends = {format.header_end, format.call_end, format.section_end,
                           format.call_begin};
  const Status status = Read(text, ends, final);
  if (status == Status::kNeedsMore && !final) return Reader::kNeedsMore;
  if (status != Status::kEnded || !text->starts_with(format.header_end)) return Reader::kMalformed;
  // The mark too, so that `text()` is all that was taken.
  text_ += format.header_end;
  text->remove_prefix(format.header_end.size());
  std::optional<OutputPiece> call = Call(format);
  if (!call) return Reader::kMalformed;
  pieces->push_back(std::move(*call));
  return Reader::kEnded;
}

std::optional<OutputPiece> CallHeader::Call(const ToolFormat& format) const {
  std::string_view header = text_;
  if (header.ends_with(format.header_end)) header.remove_suffix(format.header_end.size());
  OutputPiece call = {OutputPiece::Kind::kToolCall, ""};
  switch (format.header) {
    case HeaderKind::kName:
      call.text = Trimmed(header);
      break;
    case HeaderKind::kTypeThenName: {
      const size_t type_end = header.find(format.type_end);
      if (type_end == std::string_view::npos) return std::nullopt;
      call.text = Trimmed(header.substr(type_end + format.type_end.size()));
      break;
    }
    case HeaderKind::kId:
      call.call_id = Trimmed(header);
      call.text = NameInId(call.call_id);
      // An id is repeated by clients: no mark, no space.
      if (call.call_id.find_first_of(" \t\r\n<>") != std::string::npos) return std::nullopt;
      break;
  }
  return IsFunctionName(call.text) ? std::optional(std::move(call)) : std::nullopt;
}

}  // namespace outrider
