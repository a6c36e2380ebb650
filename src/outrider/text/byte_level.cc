#include "outrider/text/byte_level.h"

#include <array>
#include <string>

#include "outrider/text/utf8.h"

namespace outrider {
namespace {

// Printable bytes of Latin-1 stand for themselves; the other 68 take U+0100, U+0101, ... in order.
struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes;  // by code point; -1 outside the alphabet

  Alphabet() {
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const int point = printable ? byte : next++;
      bytes.at(point) = byte;
      AppendUtf8(static_cast<uint32_t>(point), &characters.at(byte));
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet* const kAlphabet = new Alphabet;
  return *kAlphabet;
}

}  // namespace

std::string_view ByteLevelCharacter(uint8_t byte) { return GetAlphabet().characters.at(byte); }

std::string SpellByteLevel(std::string_view bytes) {
  std::string spelled;
  spelled.reserve(bytes.size() * 2);
  for (const char byte : bytes) spelled.append(ByteLevelCharacter(static_cast<uint8_t>(byte)));
  return spelled;
}

std::optional<std::string> ReadByteLevel(std::string_view spelled) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  bytes.reserve(spelled.size());
  for (size_t i = 0; i < spelled.size(); ++i) {
    size_t point = static_cast<uint8_t>(spelled[i]);
    if (point >= 0xC0) {
      if (point >= 0xE0 || i + 1 == spelled.size()) return std::nullopt;
      point = ((point & 0x1F) << 6) | (static_cast<uint8_t>(spelled[++i]) & 0x3F);
    }
    if (point >= alphabet.bytes.size() || alphabet.bytes.at(point) < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet.bytes.at(point)));
  }
  return bytes;
}

}  // namespace outrider
