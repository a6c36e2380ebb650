// Which tokens may be drawn from a row, one bit each: word i / 32, bit i % 32 is set for an allowed
// token i.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace outrider {

/// Words of a mask over a vocabulary of this size.
constexpr size_t MaskWords(int32_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}

inline bool Allows(std::span<const uint32_t> mask, int32_t token) {
  const auto i = static_cast<size_t>(token);
  return (mask[i / 32] >> (i % 32) & 1) != 0;
}

inline void SetAllowed(std::span<uint32_t> mask, int32_t token, bool allowed) {
  const auto i = static_cast<size_t>(token);
  const uint32_t bit = uint32_t{1} << (i % 32);
  mask[i / 32] = allowed ? mask[i / 32] | bit : mask[i / 32] & ~bit;
}

/// Gives forbidden tokens a logit of -infinity.
inline void ApplyTokenMask(std::span<const uint32_t> mask, std::span<float> logits) {
  for (size_t first = 0, word = 0; first < logits.size(); first += 32, ++word) {
    const uint32_t bits = mask[word];
    if (bits == ~uint32_t{0}) continue;
    const size_t count = std::min<size_t>(32, logits.size() - first);
    for (size_t i = 0; i < count; ++i) {
      if ((bits >> i & 1) == 0) logits[first + i] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace outrider
