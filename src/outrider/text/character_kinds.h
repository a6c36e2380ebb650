// Numbers characters so that a regular expression sees one byte for each. Characters that are in
// the same sets of a pattern are of one kind: to the pattern they are equal. ASCII characters are
// kinds of their own, with their codes as numbers, so ASCII text is its own kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/text/code_point_set.h"

namespace outrider {

class CharacterKinds {
 public:
  /// Throws Error (kInvalidArgument), prefixed by `where`, if the sets tell more than 128 kinds of
  /// characters beyond ASCII apart.
  CharacterKinds(std::span<const CodePointSet> sets, std::string_view where);

  uint8_t KindOf(uint32_t point) const {
    return kinds_[static_cast<size_t>(blocks_[point / kBlock]) * kBlock + point % kBlock];
  }

  /// The kinds of the characters of `set`, which is among those that this was made from: ascending.
  std::string KindsOf(const CodePointSet& set) const;

  /// The kind of each character of `text`, valid UTF-8.
  void Translate(std::string_view text, std::string* kinds) const;

 private:
  static constexpr size_t kBlock = 128;  // code points, of which many are alike

  std::vector<uint16_t> blocks_;   // of each block of code points: where in kinds_ it is
  std::vector<uint8_t> kinds_;     // different blocks, one after the other
  std::vector<uint32_t> example_;  // of each kind, a character
};

}  // namespace outrider
