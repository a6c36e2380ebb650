#include "outrider/text/character_kinds.h"

#include <algorithm>
#include <map>

#include "outrider/base/error.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

constexpr size_t kAscii = 128;
constexpr size_t kMaxKinds = 256;

}  // namespace

CharacterKinds::CharacterKinds(std::span<const CodePointSet> sets, std::string_view where) {
  // Where membership in a set may change. Between two such places all characters are of one kind.
  std::vector<uint32_t> starts = {kAscii};
  for (const CodePointSet& set : sets) {
    for (const CodePointRange& range : set.ranges()) {
      if (range.first > kAscii) starts.push_back(range.first);
      if (range.last >= kAscii) starts.push_back(range.last + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (starts.back() <= CodePointSet::kLast) starts.push_back(CodePointSet::kLast + 1);

  std::vector<uint8_t> of_point(CodePointSet::kLast + 1);
  for (size_t c = 0; c < kAscii; ++c) {
    of_point[c] = static_cast<uint8_t>(c);
    example_.push_back(static_cast<uint32_t>(c));
  }
  std::map<std::vector<bool>, uint8_t> kinds;  // by the sets that a character is in
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    std::vector<bool> member;
    member.reserve(sets.size());
    for (const CodePointSet& set : sets) member.push_back(set.Contains(starts[i]));
    auto known = kinds.find(member);
    if (known == kinds.end()) {
      if (example_.size() == kMaxKinds) {
        throw InvalidArgument(
            "{}: the regular expression tells more than {} kinds of characters beyond ASCII apart",
            where, kMaxKinds - kAscii);
      }
      known = kinds.emplace(std::move(member), static_cast<uint8_t>(example_.size())).first;
      example_.push_back(starts[i]);
    }
    std::fill(of_point.begin() + starts[i], of_point.begin() + starts[i + 1], known->second);
  }

  std::map<std::string_view, uint16_t> places;
  for (size_t start = 0; start < of_point.size(); start += kBlock) {
    const std::string_view block(reinterpret_cast<const char*>(&of_point[start]), kBlock);
    const auto [place, is_new] =
        places.emplace(block, static_cast<uint16_t>(kinds_.size() / kBlock));
    if (is_new) kinds_.insert(kinds_.end(), block.begin(), block.end());
    blocks_.push_back(place->second);
  }
}

std::string CharacterKinds::KindsOf(const CodePointSet& set) const {
  std::string kinds;
  for (size_t kind = 0; kind < example_.size(); ++kind) {
    if (set.Contains(example_[kind])) kinds += static_cast<char>(kind);
  }
  return kinds;
}

void CharacterKinds::Translate(std::string_view text, std::string* kinds) const {
  kinds->resize(text.size());  // at most
  char* out = kinds->data();
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < kAscii) {
      *out++ = text[at++];
      continue;
    }
    const size_t size = Utf8Size(byte);
    *out++ = static_cast<char>(KindOf(CodePointOf(text.substr(at, size))));
    at += size;
  }
  kinds->resize(static_cast<size_t>(out - kinds->data()));
}

}  // namespace outrider
