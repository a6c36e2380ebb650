#include "outrider/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace outrider {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Appends `bytes` with its invalid parts replaced, and returns where an unfinished last character
// begins (the size of `bytes` when there is none).
size_t AppendRepaired(std::string_view bytes, std::string* out) {
  size_t position = 0;
  while (position < bytes.size()) {
    const size_t valid = ValidUtf8Prefix(bytes.substr(position));
    out->append(bytes, position, valid);
    position += valid;
    if (position == bytes.size()) break;
    const Utf8Unit unit = ReadUtf8(bytes.substr(position));
    if (unit.kind == Utf8Kind::kIncomplete) return position;
    out->append(kReplacement);
    position += unit.size;
  }
  return position;
}

}  // namespace

uint32_t CodePointOf(std::string_view character) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(character[i]));
  };
  if (character.size() == 1) return byte(0);
  uint32_t point = byte(0) & (0x7FU >> character.size());
  for (size_t i = 1; i < character.size(); ++i) point = point << 6 | (byte(i) & 0x3F);
  return point;
}

void AppendUtf8(uint32_t point, std::string* out) {
  const auto trail = [&](uint32_t shift) {
    *out += static_cast<char>(0x80 | (point >> shift & 0x3F));
  };
  if (point < 0x80) {
    *out += static_cast<char>(point);
    return;
  }
  if (point < 0x800) {
    *out += static_cast<char>(0xC0 | point >> 6);
  } else {
    if (point < 0x10000) {
      *out += static_cast<char>(0xE0 | point >> 12);
    } else {
      *out += static_cast<char>(0xF0 | point >> 18);
      trail(12);
    }
    trail(6);
  }
  trail(0);
}

Utf8Unit ReadUtf8(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, size};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t position = 0;
  while (position < bytes.size()) {
    if (position + 8 <= bytes.size()) {
      uint64_t eight;
      std::memcpy(&eight, bytes.data() + position, sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {
        position += 8;
        continue;
      }
    }
    const Utf8Unit unit = ReadUtf8(bytes.substr(position));
    if (unit.kind != Utf8Kind::kValid) break;
    position += unit.size;
  }
  return position;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (AppendRepaired(bytes, &out) != bytes.size()) out.append(kReplacement);
  return out;
}

bool IsWhiteSpace(std::string_view character) {
  if (character.size() == 1) {
    return character[0] == ' ' || (character[0] >= '\t' && character[0] <= '\r');
  }
  static constexpr std::string_view kSpaces[] = {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001",
                                                 "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
                                                 "\u2007", "\u2008", "\u2009", "\u200A", "\u2028",
                                                 "\u2029", "\u202F", "\u205F", "\u3000"};
  // Most characters end here: those begin with one of four bytes.
  static constexpr std::string_view kFirstBytes = "\xC2\xE1\xE2\xE3";
  return kFirstBytes.find(character[0]) != std::string_view::npos &&
         std::find(std::begin(kSpaces), std::end(kSpaces), character) != std::end(kSpaces);
}

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined.append(bytes);
    bytes = joined;
  }
  const size_t rest = AppendRepaired(bytes, out);
  held_.assign(bytes.substr(rest));
}

void Utf8Stream::Flush(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

}  // namespace outrider
