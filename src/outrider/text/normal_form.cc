#include "outrider/text/normal_form.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "outrider/text/normal_form_tables.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

// Below it no character is composed with the one before.
constexpr uint32_t kFirstMark = 0x300;
constexpr uint8_t kLeadOfFirstMark = 0xCC;  // its first byte; those of later characters are greater

// Hangul syllables: a leading consonant, a vowel, perhaps a trailing consonant.
constexpr uint32_t kSyllable = 0xAC00;
constexpr uint32_t kLeading = 0x1100;
constexpr uint32_t kVowel = 0x1161;
constexpr uint32_t kTrailing = 0x11A7;  // 0: there is none
constexpr uint32_t kLeadings = 19;
constexpr uint32_t kVowels = 21;
constexpr uint32_t kTrailings = 28;

struct Marked {
  uint32_t point;
  uint8_t kind;  // combining class
};

uint8_t KindOf(uint32_t point) {
  if (point < kFirstMark) return 0;
  const auto ranges = CombiningRanges();
  const auto range = std::ranges::lower_bound(ranges, point, {}, &CombiningRange::last);
  return range != ranges.end() && range->first <= point ? range->kind : 0;
}

void Decompose(uint32_t point, std::vector<Marked>* out) {
  if (point - kSyllable < kLeadings * kVowels * kTrailings) {
    const uint32_t number = point - kSyllable;
    out->push_back({kLeading + number / (kVowels * kTrailings), 0});
    out->push_back({kVowel + number / kTrailings % kVowels, 0});
    if (number % kTrailings != 0) out->push_back({kTrailing + number % kTrailings, 0});
    return;
  }
  const auto all = Decompositions();
  const auto found = point < all.front().point
                         ? all.end()
                         : std::ranges::lower_bound(all, point, {}, &Decomposition::point);
  if (found == all.end() || found->point != point) {
    out->push_back({point, KindOf(point)});
    return;
  }
  Decompose(found->first, out);
  if (found->second != 0) Decompose(found->second, out);
}

/// What stands for two characters; 0: nothing does.
uint32_t Composed(uint32_t first, uint32_t second) {
  if (second < kFirstMark) return 0;
  if (first - kLeading < kLeadings && second - kVowel < kVowels) {
    return kSyllable + ((first - kLeading) * kVowels + second - kVowel) * kTrailings;
  }
  const uint32_t number = first - kSyllable;
  if (number < kLeadings * kVowels * kTrailings && number % kTrailings == 0 &&
      second - kTrailing - 1 < kTrailings - 1) {
    return first + second - kTrailing;
  }
  static const auto kComposed = [] {
    std::unordered_map<uint64_t, uint32_t> composed;
    for (const Decomposition& d : Decompositions()) {
      if (d.composes) composed.emplace(uint64_t{d.first} << 32 | d.second, d.point);
    }
    return composed;
  }();
  const auto found = kComposed.find(uint64_t{first} << 32 | second);
  return found == kComposed.end() ? 0 : found->second;
}

/// Puts the marks behind each character into the order of their classes.
void Order(std::vector<Marked>* text) {
  const auto is_mark = [](const Marked& m) { return m.kind != 0; };
  for (auto at = text->begin(); at != text->end();) {
    const auto first = std::find_if(at, text->end(), is_mark);
    at = std::find_if_not(first, text->end(), is_mark);
    std::stable_sort(first, at, [](const Marked& a, const Marked& b) { return a.kind < b.kind; });
  }
}

/// Composes characters with marks behind them that no other mark keeps from them.
void Compose(std::vector<Marked>* text) {
  size_t size = 0;
  size_t starter = text->size();  // there is none yet
  for (const Marked m : *text) {
    if (starter < size) {
      const bool reaches = starter + 1 == size || (*text)[size - 1].kind < m.kind;
      const uint32_t composed = reaches ? Composed((*text)[starter].point, m.point) : 0;
      if (composed != 0) {
        (*text)[starter].point = composed;
        continue;
      }
    }
    if (m.kind == 0) starter = size;
    (*text)[size++] = m;
  }
  text->resize(size);
}

}  // namespace

std::string NormalFormC(std::string_view text) {
  const bool is_plain = std::ranges::none_of(
      text, [](char c) { return static_cast<uint8_t>(c) >= kLeadOfFirstMark; });
  if (is_plain) return std::string(text);
  std::vector<Marked> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t size = Utf8Size(static_cast<uint8_t>(text[at]));
    Decompose(CodePointOf(text.substr(at, size)), &points);
    at += size;
  }
  Order(&points);
  Compose(&points);
  std::string result;
  result.reserve(text.size());
  for (const Marked& m : points) AppendUtf8(m.point, &result);
  return result;
}

}  // namespace outrider
