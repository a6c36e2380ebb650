#include "outrider/text/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "outrider/base/error.h"

namespace outrider {
namespace {

// Up to this many bytes a scan over the pairs beats the heap.
constexpr size_t kScanLimit = 48;
constexpr size_t kMaxWordBytes = size_t{1} << 30;

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids,
                                 std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * merges.size(), 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = PairKey(merges[rank].left, merges[rank].right);
    size_t at = Home(pair);
    while (slots_[at].pair != kNoPair && slots_[at].pair != pair) at = (at + 1) & (size - 1);
    slots_[at] = {pair, static_cast<uint32_t>(rank), merges[rank].merged};
  }
}

// The slot of the pair; an empty slot, whose rank is kNoRank, if there is no such merge.
const BytePairEncoder::Slot& BytePairEncoder::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairKey(left, right);
  size_t at = Home(pair);
  while (slots_[at].pair != pair && slots_[at].pair != kNoPair) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

void BytePairEncoder::Encode(std::string_view word, Workspace* workspace,
                             std::vector<int32_t>* ids) const {
  if (word.size() == 1) {
    ids->push_back(byte_ids_[static_cast<uint8_t>(word[0])]);
  } else if (word.size() <= kScanLimit) {
    EncodeByScan(word, workspace, ids);
  } else {
    EncodeByHeap(word, workspace, ids);
  }
}

void BytePairEncoder::EncodeByScan(std::string_view word, Workspace* workspace,
                                   std::vector<int32_t>* ids) const {
  std::vector<int32_t>& symbols = workspace->ids;
  std::vector<uint32_t>& ranks = workspace->ranks;  // ranks[i]: of symbols i and i + 1
  symbols.clear();
  ranks.clear();
  for (const char byte : word) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    ranks.push_back(Find(symbols[i], symbols[i + 1]).rank);
  }
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoRank) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    symbols[at] = Find(symbols[at], symbols[at + 1]).merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(best);
    if (at > 0) ranks[at - 1] = Find(symbols[at - 1], symbols[at]).rank;
    if (at + 1 < symbols.size()) ranks[at] = Find(symbols[at], symbols[at + 1]).rank;
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void BytePairEncoder::EncodeByHeap(std::string_view word, Workspace* workspace,
                                   std::vector<int32_t>* ids) const {
  if (word.size() > kMaxWordBytes) {
    throw Error(ErrorCode::kTooLarge, fmt::format("a word of {} bytes is over the limit of {}",
                                                  word.size(), kMaxWordBytes));
  }
  if (word.empty()) return;
  const auto count = static_cast<int32_t>(word.size());
  std::vector<Workspace::Symbol>& symbols = workspace->symbols;
  // Rank in the high half, position in the low half: the smallest entry is the next merge. Entries
  // whose pair has changed since are recognised by their rank, because a rank belongs to one pair.
  std::vector<uint64_t>& heap = workspace->heap;
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back(
        {byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto rank_at = [&](int32_t at) {
    const int32_t next = symbols[at].next;
    return symbols[at].id < 0 || next < 0 ? kNoRank : Find(symbols[at].id, symbols[next].id).rank;
  };
  const auto entry_at = [&](int32_t at, uint32_t rank) {
    return uint64_t{rank} << 32 | static_cast<uint32_t>(at);
  };
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const uint32_t rank = rank_at(i); rank != kNoRank) heap.push_back(entry_at(i, rank));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](int32_t at) {
    if (const uint32_t rank = rank_at(at); rank != kNoRank) {
      heap.push_back(entry_at(at, rank));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(static_cast<uint32_t>(entry));
    if (rank_at(at) != entry >> 32) continue;
    Workspace::Symbol& symbol = symbols[at];
    Workspace::Symbol& right = symbols[symbol.next];
    symbol.id = Find(symbol.id, right.id).merged;
    right.id = -1;
    symbol.next = right.next;
    if (symbol.next >= 0) symbols[symbol.next].previous = at;
    if (symbol.previous >= 0) push(symbol.previous);
    push(at);
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) ids->push_back(symbols[at].id);
}

}  // namespace outrider
