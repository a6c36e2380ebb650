// Columns of rows that GPUs of one host exchange in one launch, which can be recorded: each GPU
// stores its columns in memory of its own, tells the others by counters in their memory, waits for
// theirs and reads the columns over peer memory. No host takes part.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "outrider/kernels/cuda/rows/copy_columns.h"

namespace outrider::cuda {

/// Blocks of every exchange. A block only waits for the blocks of its number on other GPUs, and
/// they are few, so that kernels of several ranks fit on one GPU.
inline constexpr int kExchangeBlocks = 16;

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
  uint32_t calls[kExchangeBlocks];  // that the blocks of this rank have begun
  // Calls whose columns the blocks of the other ranks have stored; they write it.
  uint32_t stored[kMostExchangeRanks][kExchangeBlocks];
};

struct ExchangeParams {
  int rank = 0;
  int ranks = 1;
  ExchangeCounters* counters[kMostExchangeRanks] = {};  // by rank
  ExchangeState* state = nullptr;
  uint64_t patience_ns = 0;  // that a GPU waits for another
  /// Memory for stored columns is there twice, this many bytes apart, and used in turn.
  int64_t turn_bytes = 0;
  /// Of this rank's columns: to its memory for the others. What others read of one copy begins at a
  /// multiple of 16 bytes, and so do its rows.
  std::span<const ColumnCopy> stores;
  /// The same columns to where this rank wants them.
  std::span<const ColumnCopy> own;
  /// From the memory of other ranks. A copy has the rows and width of the store that it reads.
  std::span<const ColumnCopy> loads;
};

/// Every rank launches as many exchanges in the same order, each in one stream of its own. Ranks
/// may share a GPU if what else runs there ends without them. Throws Error for more copies or ranks
/// than there is room for; otherwise returns what the launch returned.
cudaError_t ExchangeRows(const ExchangeParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
