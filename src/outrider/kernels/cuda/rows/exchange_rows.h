// Columns of rows that GPUs of one host exchange in one launch, which can be recorded. No host
// takes part. There are two ways:
//   with flags  a GPU stores its columns in the others' memory, every 8 bytes beside the number of
//               the call, and reads its own memory until all numbers are there. One trip, but twice
//               the bytes: for few rows.
//   with posts  it stores them in memory of its own, tells the others by counters in their memory,
//               waits for theirs and reads the columns over peer memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "outrider/kernels/cuda/rows/copy_columns.h"

namespace outrider::cuda {

/// Blocks of an exchange at most, for each other rank. A block only waits for blocks of its number,
/// or of lower ones, on other GPUs.
inline constexpr int kMostExchangeBlocks = 128;
/// Where ranks share a GPU, for all other ranks together: few, so that kernels of several ranks fit
/// on it.
inline constexpr int kMostSharedExchangeBlocks = 16;

inline constexpr size_t kMostExchangeRanks = 8;
inline constexpr size_t kMostExchangeStores = 4;
inline constexpr size_t kMostExchangeLoads = 2 * (kMostExchangeRanks - 1);

/// What is wrong with an exchange, in memory of the host that all GPUs reach.
struct ExchangeState {
  uint32_t ended;  // not 0: nobody waits any more
  uint32_t late;   // not 0: the rank, plus 1, that another has waited for too long
};

/// One rank's counters, zeroed once. Whatever is launched or replayed, every launch takes the next
/// numbers from here.
struct ExchangeCounters {
  // That have ended on this rank. A server makes 2^32 calls within hours, so more bits: a block's
  // last post may be as many calls ago.
  uint64_t calls;
  uint32_t ended_blocks;  // of the call that runs
  uint32_t unused;
  // The last call whose columns the blocks of the other ranks have posted; they write it.
  uint64_t posted[kMostExchangeRanks][kMostExchangeBlocks];
};

struct ExchangeParams {
  int rank = 0;
  int ranks = 1;
  ExchangeCounters* counters[kMostExchangeRanks] = {};  // by rank
  ExchangeState* state = nullptr;
  uint64_t patience_ns = 0;  // that a GPU waits for another
  /// Of the columns of the rank that has most; all ranks say the same.
  int64_t bytes = 0;
  /// Whether columns go with flags; all ranks say the same. Only where every rank has some, and
  /// wants those of all others.
  bool with_flags = false;
  /// Whether ranks share a GPU.
  bool shares_gpu = false;
  /// By rank: memory for its posts, which is there twice, post_bytes apart, and used in turn.
  const std::byte* posts[kMostExchangeRanks] = {};
  int64_t post_bytes = 0;
  /// By rank, zeroed once: memory for what comes with flags: twice, in turn, inbox_bytes from each
  /// rank. Twice the bytes of a post.
  std::byte* inboxes[kMostExchangeRanks] = {};
  int64_t inbox_bytes = 0;
  /// Of this rank's columns: to its post. What others read of one copy begins at a multiple of 16
  /// bytes, and so do its rows.
  std::span<const ColumnCopy> stores;
  /// Copies of this rank's columns to where it wants them.
  std::span<const ColumnCopy> own;
  /// From the posts of other ranks. A copy has the rows and width of the store that it reads.
  std::span<const ColumnCopy> loads;
};

/// Every rank launches as many exchanges in the same order, each in one stream of its own. Ranks
/// may share a GPU if what else runs there ends without them. Throws Error for more copies or ranks
/// than there is room for; otherwise returns what the launch returned.
cudaError_t ExchangeRows(const ExchangeParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
