// Byte-pair encoding of one word: starts with a token per byte and merges, again and again, the
// neighbouring pair of lowest rank (the leftmost of equals) until no neighbours form a pair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace outrider {

/// Tokens `left` and `right` may become `merged`. Its rank is its index in the list of merges.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t merged;
};

class BytePairEncoder {
 public:
  /// Buffers that a thread keeps between calls.
  struct Workspace {
    struct Symbol {
      int32_t id;  // -1 once merged into its left neighbour
      int32_t previous;
      int32_t next;
    };
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  /// `byte_ids[b]` is the token of byte b. When a pair is listed twice the later rank holds.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  /// Appends the tokens of `word` (up to 2^30 bytes) to `ids`. O(n log n) for long words.
  void Encode(std::string_view word, Workspace* workspace, std::vector<int32_t>* ids) const;

  /// The two ways to do it, equal in result: a scan over all pairs, fastest for short words, and a
  /// heap.
  void EncodeByScan(std::string_view word, Workspace* workspace, std::vector<int32_t>* ids) const;
  void EncodeByHeap(std::string_view word, Workspace* workspace, std::vector<int32_t>* ids) const;

 private:
  struct Slot {
    uint64_t pair = kNoPair;
    uint32_t rank = kNoRank;
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  const Slot& Find(int32_t left, int32_t right) const;
  size_t Home(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15U) >> shift_; }

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_;                // 64 - log2(slots)
};

}  // namespace outrider
