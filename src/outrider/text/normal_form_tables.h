// What Normalization Form C decomposes, composes and orders. normal_form_tables.cc is written by
// tools/make_normal_form_tables.py; normal_form.h reads it.
#pragma once

#include <cstdint>
#include <span>

namespace outrider {

/// What stands for a character, which may be decomposed again.
struct Decomposition {
  uint32_t point;
  uint32_t first;
  uint32_t second;  // 0: none
  bool composes;    // the two become the character again
};

/// Characters of a combining class other than 0.
struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t kind;
};

/// Sorted by character, as the ranges; those of Hangul syllables are arithmetic.
std::span<const Decomposition> Decompositions();
std::span<const CombiningRange> CombiningRanges();

}  // namespace outrider
