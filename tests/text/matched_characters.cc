// Which characters patterns match, for published_tokenizers_test.py: answers each line of standard
// input, a pattern of one character, with the ranges of characters that it matches, in hexadecimal
// ("41-5a 61-7a"), or with "refused: " and the reason.
#include <fmt/format.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "outrider/base/error.h"
#include "outrider/text/splitter.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

std::string Utf8Of(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto tail = [&](int shift) { return byte(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {byte(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {byte(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

std::string AllCharacters() {
  std::string text;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) text += Utf8Of(c);
  }
  return text;
}

std::string Ranges(const std::string& pattern, const std::string& text) {
  const Splitter splitter({.pattern = pattern, .keep_between = false, .where = "pattern"});
  SplitWorkspace workspace;
  std::string ranges;
  uint32_t first = 1;  // after `last`: no range yet
  uint32_t last = 0;
  const auto close = [&] {
    if (last >= first) ranges += fmt::format("{}{:x}-{:x}", ranges.empty() ? "" : " ", first, last);
  };
  splitter.Split(text, &workspace, [&](std::string_view piece) {
    const uint32_t point = CodePointOf(piece);
    if (point != last + 1 || first > last) {
      close();
      first = point;
    }
    last = point;
  });
  close();
  return ranges;
}

}  // namespace
}  // namespace outrider

int main() {
  const std::string text = outrider::AllCharacters();
  std::string pattern;
  while (std::getline(std::cin, pattern)) {
    try {
      std::cout << outrider::Ranges(pattern, text) << '\n';
    } catch (const outrider::Error& error) {
      std::cout << "refused: " << error.what() << '\n';
    }
  }
  return 0;
}
