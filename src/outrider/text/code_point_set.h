// A set of characters (Unicode code points), as sorted ranges.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

struct CodePointRange {
  uint32_t first;
  uint32_t last;  // included
};

class CodePointSet {
 public:
  static constexpr uint32_t kLast = 0x10FFFF;

  CodePointSet() = default;
  CodePointSet(uint32_t first, uint32_t last) : ranges_{{first, last}} {}

  /// Sorted; no two overlap or touch.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool Contains(uint32_t point) const;

  void Add(std::span<const CodePointRange> ranges);
  void Add(uint32_t first, uint32_t last);
  void Add(const CodePointSet& other) { Add(other.ranges_); }
  CodePointSet Complement() const;
  CodePointSet Intersection(const CodePointSet& other) const;

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace outrider
