// The byte-level alphabet of GPT-2 tokenizers: each byte is spelled as one printable character, so
// that a vocabulary file can hold any bytes as text ("Ġthe" spells " the").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

/// The character that spells `byte`, in UTF-8.
std::string_view ByteLevelCharacter(uint8_t byte);

/// The characters that spell `bytes`.
std::string SpellByteLevel(std::string_view bytes);

/// The bytes that `spelled` (valid UTF-8) spells; nothing if it has a character outside the
/// alphabet.
std::optional<std::string> ReadByteLevel(std::string_view spelled);

}  // namespace outrider
