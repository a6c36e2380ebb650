// What kinds of entries a network keeps in the KV cache, as numbers: which tokens' entries later
// rows still read, and how many tokens a block has. Layers whose entries live equally long form a
// group, which has one table of blocks per request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "outrider/kv/running_state.h"

namespace outrider {

enum class CacheGroupKind : uint8_t {
  kFullHistory,    // a row reads the entries of all tokens up to its own
  kSlidingWindow,  // a row reads the entries of the last `window` tokens, its own included
};

/// One group of layers. In a layer of ratio r, entry e stands for tokens [e * r, (e + 1) * r) of a
/// request and is written when the last of them is computed.
///
/// The kinds that networks need map to it like this:
///   attention over everything          kFullHistory, r = 1
///   sliding-window attention           kSlidingWindow, r = 1
///   compressed history (DeepSeek-V4)   kFullHistory, r = 4 and 128
///   running state of a compressor      kSlidingWindow, r = 1, window ratio * (1 + overlap): one
///   row
///                                      per position, so a rejected draft leaves nothing to undo
struct CacheGroupSpec {
  std::string name = {};  // for `outrider explain`
  CacheGroupKind kind = CacheGroupKind::kFullHistory;
  int32_t tokens_per_block = 1;  // a multiple of unit_tokens
  int32_t window = 0;            // kSlidingWindow: tokens, at least 1
  int32_t unit_tokens = 1;       // a multiple of the ratios of all layers
  int64_t unit_bytes = 0;        // of the entries of all layers for unit_tokens tokens
  int32_t layers = 1;

  int64_t bytes_per_block() const { return tokens_per_block / unit_tokens * unit_bytes; }

  /// The first token whose entry a row at `position`, or a later one, reads.
  int32_t FirstTokenRead(int32_t position) const {
    return kind == CacheGroupKind::kSlidingWindow ? std::max(0, position - window + 1) : 0;
  }
  /// Blocks that cover tokens [0, end).
  int32_t BlocksBefore(int32_t end) const {
    return (end + tokens_per_block - 1) / tokens_per_block;
  }
  /// Leading blocks that no row at `position` or later reads.
  int32_t BlocksUnreadFrom(int32_t position) const {
    return FirstTokenRead(position) / tokens_per_block;
  }
};

/// The groups of a network over one pool of pages. A block of any group takes one page.
struct CacheConfig {
  std::vector<CacheGroupSpec> groups = {};  // at least one
  int32_t num_pages = 0;
  /// Positions before the first new row that may run again, in a drafter's layers (the rows of a
  /// chain of k modules: k - 1). They still read their windows.
  int32_t rerun_tokens = 0;
  /// What linear attention keeps of a request, in pages of the same pool.
  RunningStateSpec state = {};

  /// Bytes of a page: those of the largest block.
  int64_t PageBytes() const;

  /// Pages of a state, and of a request's kept rows; 0 without linear attention.
  int32_t StatePages() const { return state.StatePages(PageBytes()); }
  int32_t StateRowPages() const { return state.RowPages(PageBytes()); }
  /// Tokens from one state that is kept for other requests to the next: their entries take as many
  /// pages as a state. A multiple of TokensPerResume().
  int32_t TokensPerCheckpoint() const;

  /// Tokens between the keys of a request's prefix: the smallest tokens_per_block, which divides
  /// all others.
  int32_t TokensPerKey() const;

  /// Tokens between the places where a request can resume: the largest tokens_per_block.
  int32_t TokensPerResume() const;

  /// Most pages that a request of `tokens` tokens holds while it runs, with steps of up to
  /// `step_tokens` rows; a state that it starts from included.
  int64_t MostPages(int32_t tokens, int32_t step_tokens) const;

  /// Most tokens, up to kMostTokens, that a request can have so that `pages` pages hold it.
  int64_t MostTokens(int64_t pages, int32_t step_tokens) const;
  static constexpr int32_t kMostTokens = 1 << 30;

  /// Checks what the members say of each other (OUTRIDER_CHECK).
  void Check() const;
};

/// A cache of one full-history group.
CacheConfig FullHistoryCache(int32_t num_pages, int32_t tokens_per_block);

}  // namespace outrider
