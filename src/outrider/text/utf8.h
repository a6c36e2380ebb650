// UTF-8 as the Unicode standard reads it: finding invalid bytes and replacing each maximal invalid
// subpart by U+FFFD (Unicode 15, section 3.9, "best practice"; Rust's from_utf8_lossy does the
// same), for whole strings and for bytes that arrive in pieces; and white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

/// What stands at the start of some bytes.
enum class Utf8Kind {
  kValid,       // one complete character
  kInvalid,     // bytes that can never be part of a character: one U+FFFD
  kIncomplete,  // the beginning of a character, cut off by the end of the bytes
};

struct Utf8Unit {
  Utf8Kind kind;
  size_t size;  // bytes it covers, at least 1
};

/// Bytes of the character that begins with `lead`, in valid UTF-8.
inline size_t Utf8Size(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/// The code point of `character`, one valid character.
uint32_t CodePointOf(std::string_view character);

/// Appends the character of a code point.
void AppendUtf8(uint32_t point, std::string* out);

/// The first unit of `bytes`, which must not be empty.
Utf8Unit ReadUtf8(std::string_view bytes);

/// Length in bytes of the longest prefix of `bytes` that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view bytes);

/// `bytes` with every maximal invalid subpart replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

/// Whether `character`, one valid character, has Unicode's property White_Space.
bool IsWhiteSpace(std::string_view character);

/// ReplaceInvalidUtf8 for a stream: what the pushes and the flush append, put together, equals
/// ReplaceInvalidUtf8 of all the bytes, however they were cut.
class Utf8Stream {
 public:
  /// Appends to `out` what became certain; keeps back at most three bytes of an unfinished
  /// character.
  void Push(std::string_view bytes, std::string* out);
  /// Ends the stream: an unfinished character becomes U+FFFD. The object can be used again.
  void Flush(std::string* out);

 private:
  std::string held_;
};

}  // namespace outrider
