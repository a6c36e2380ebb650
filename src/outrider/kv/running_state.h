// What a request keeps beside cache entries where a network has linear attention: the state that
// its tokens leave, and rows of its last tokens. Both lie in pages of the cache's pool.
//
// The state after n tokens is defined for multiples n of kStateBlock only. What a row gives is made
// of the state before its block and of the rows of its block, so it depends neither on how rows are
// cut into steps nor on drafts: drafts never write the state, and a rejected row is written over.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

/// Tokens from one state to the next.
inline constexpr int32_t kStateBlock = 16;
/// Rows that are kept: those since the last state, as many drafts as a step may have, and the
/// token before them.
inline constexpr int32_t kKeptStateRows = 32;
/// The most drafts of a step.
inline constexpr int32_t kMostStateDrafts = kKeptStateRows - kStateBlock;

/// The state of a network's linear attention in numbers. It is cut by head: every head of every
/// layer has a piece of the state, and one of the kept rows. All numbers are float32.
struct RunningStateSpec {
  int32_t heads = 0;     // of all layers together, those of this rank; 0: there is no state
  int32_t head_dim = 0;  // D
  int32_t conv = 0;      // rows that the short convolution reads, its own included

  /// The state [D, D], then the conv - 1 rows [3 D] before its position, as the convolution reads
  /// them. The state is by key and value channel, or in the order in which a device reads it.
  int64_t StateNumbers() const {
    return int64_t{head_dim} * head_dim + int64_t{conv - 1} * 3 * head_dim;
  }
  /// Rows [6 D] by position modulo kKeptStateRows: query, key and value before the convolution; the
  /// finished key, the row's decay by channel, and what the row adds to the state along the key.
  int64_t RowNumbers() const { return int64_t{kKeptStateRows} * 6 * head_dim; }

  int64_t StateBytes() const { return heads * StateNumbers() * int64_t{sizeof(float)}; }
  int64_t RowBytes() const { return heads * RowNumbers() * int64_t{sizeof(float)}; }
  /// A page holds whole pieces: the least number of bytes that it needs.
  int64_t LeastPageBytes() const;

  /// Pages that hold a state, or kept rows.
  int32_t StatePages(int64_t page_bytes) const { return PagesOf(StateNumbers(), page_bytes); }
  int32_t RowPages(int64_t page_bytes) const { return PagesOf(RowNumbers(), page_bytes); }

  bool operator==(const RunningStateSpec&) const = default;

 private:
  int32_t PagesOf(int64_t numbers, int64_t page_bytes) const;
};

/// A state that a step leaves behind it on its way, for requests that share the prompt so far.
struct StateCheckpoint {
  int32_t tokens = 0;
  std::vector<int32_t> pages;
};

/// The pages of a request's running state. Empty where a network keeps none.
struct StateTables {
  std::vector<int32_t> state;     // the request's own, which steps change
  std::vector<int32_t> rows;      // kept rows
  std::vector<int32_t> restored;  // the shared state that its first step starts from, if any
  std::vector<StateCheckpoint> checkpoints;  // that steps in flight leave, in order of tokens
};

/// How far the state of `tokens` tokens reaches.
constexpr int32_t StateTokens(int32_t tokens) { return tokens / kStateBlock * kStateBlock; }

}  // namespace outrider
