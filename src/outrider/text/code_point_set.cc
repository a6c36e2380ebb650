#include "outrider/text/code_point_set.h"

#include <algorithm>

namespace outrider {

bool CodePointSet::Contains(uint32_t point) const {
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), point,
      [](uint32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges_.begin() && point <= std::prev(after)->last;
}

void CodePointSet::Add(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> all = std::move(ranges_);
  all.insert(all.end(), ranges.begin(), ranges.end());
  std::sort(all.begin(), all.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  ranges_.clear();
  for (const CodePointRange& range : all) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

void CodePointSet::Add(uint32_t first, uint32_t last) {
  const CodePointRange range{first, last};
  Add(std::span(&range, 1));
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet complement;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) complement.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) complement.ranges_.push_back({next, kLast});
  return complement;
}

CodePointSet CodePointSet::Intersection(const CodePointSet& other) const {
  CodePointSet without = Complement();
  without.Add(other.Complement());
  return without.Complement();
}

}  // namespace outrider
