#include "outrider/grammar/code_set.h"

#include <algorithm>

namespace outrider {

CodeSet Union(CodeSet a, const CodeSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end(), [](CodeRange x, CodeRange y) { return x.first < y.first; });
  CodeSet merged;
  for (const CodeRange range : a) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

CodeSet Complement(const CodeSet& set) {
  CodeSet others;
  uint32_t next = 0;
  for (const CodeRange range : set) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.push_back({next, kLastCodePoint});
  return others;
}

CodeSet Without(const CodeSet& a, const CodeSet& b) { return Complement(Union(Complement(a), b)); }

}  // namespace outrider
