// Sets of Unicode's code points, as the character classes of regular expressions.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

/// Code points from first to last.
struct CodeRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

/// Ranges in order, none touching another.
using CodeSet = std::vector<CodeRange>;

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

CodeSet Union(CodeSet a, const CodeSet& b);
CodeSet Complement(const CodeSet& set);
/// What is in a and not in b.
CodeSet Without(const CodeSet& a, const CodeSet& b);

}  // namespace outrider
