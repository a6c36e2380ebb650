// Gathers of much between GPUs that reach each other's memory: a rank reads the others' rows where
// they are, in chunks, in a stream beside the one that computes. So chunks travel while a product
// makes the next ones, or takes those that are there. On every rank, in this order:
//
//   Give(0) .. Give(n - 1)    each behind the launches that write a chunk of this rank's columns
//   Begin(rows, chunks)       the hosts meet once: all have given
//   Await(0) .. Await(n - 1)  each before the launches that read a chunk of all columns
//   End()                     the hosts meet once more: launches may overwrite what was read
//
// What a product makes of gathered rows may be given between the Awaits of these, to the next
// gather. One End is enough for both.
//
// A stream waits only for events that their ranks have recorded, so for work that will end. Where a
// rank has ended or does not come, the others' hosts are told so where they meet.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "outrider/checkpoint/rank_config.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/rows/copy_columns.h"
#include "outrider/ops/cuda/device_communicator.h"
#include "outrider/ops/cuda/row_chunks.h"

namespace outrider::cuda {

/// What moves chunks. A gather of one chunk has nothing beside it and goes by kernels.
enum class RowCarrier : uint8_t {
  kCopyEngines,  // need no multiprocessor: products fill these
  kKernels,
};

struct ChunkOptions {
  RowCarrier carrier = RowCarrier::kCopyEngines;
  /// Of what a rank gets in a chunk: one of fewer would take as long to begin as to travel.
  int64_t least_bytes = int64_t{4} << 20;
  /// Rows that a chunk is a multiple of are no more than these. For tests: fewer than a product
  /// wants leave multiprocessors without work.
  int64_t most_unit = std::numeric_limits<int64_t>::max();
};

class ChunkedGathers {
 public:
  /// One rank's events. Gather n uses what n % 2 says: before a rank records one anew, all ranks'
  /// hosts have begun gather n - 1, so their streams wait for what n - 2 recorded.
  struct Marks {
    std::array<std::array<DeviceEvent, RowChunks::kMost>, 2> given;
    std::array<DeviceEvent, 2> read;  // what it wanted of the others
  };

  /// marks: by rank, complete when the first gather begins. stream: the rank's, on the current
  /// device. All of them must outlive this.
  ChunkedGathers(DeviceCommunicator& ranks, std::span<const std::unique_ptr<Marks>> marks,
                 cudaStream_t stream, const ChunkOptions& options);
  ~ChunkedGathers();
  ChunkedGathers(const ChunkedGathers&) = delete;
  ChunkedGathers& operator=(const ChunkedGathers&) = delete;

  /// The chunks, `most` at most, of a gather in which a rank gets so many bytes. `unit`: rows that
  /// operations beside it take at a time.
  RowChunks Cut(int64_t rows, int64_t bytes, int64_t unit, int64_t most) const {
    return {rows, std::min(unit, options_.most_unit), std::min(most, bytes / options_.least_bytes)};
  }

  /// Chunk `chunk` of what this rank has in the next gather is written by what was launched so far,
  /// and what is to get that chunk of the others' columns is not used before. Chunks are given in
  /// order; all of them, or chunk 0 for all.
  void Give(int chunk);
  /// Begins the gather that was given. The first of `rows` goes in these chunks, which are the same
  /// on all ranks; the other rows go with the last one.
  void Begin(std::span<const GatheredRows> rows, const RowChunks& chunks);
  /// What is launched from now on finds chunks up to `chunk` of the gather that has begun last.
  void Await(int chunk);
  /// What is launched from now on may overwrite what this rank has given. Every chunk was awaited.
  void End();

 private:
  /// What a rank tells of its part.
  struct Told {
    RowChunks chunks;
    std::array<const std::byte*, kMostRanks> data = {};
    std::array<int64_t, kMostRanks> stride = {};
  };

  /// Lists what this rank wants of the others' rows [first, end).
  void List(const GatheredRows& rows, size_t number, int64_t first, int64_t end);
  void Carry(RowCarrier carrier);

  DeviceCommunicator& ranks_;
  std::span<const std::unique_ptr<Marks>> marks_;
  cudaStream_t stream_;
  ChunkOptions options_;
  std::unique_ptr<CUstream_st, cudaError_t (*)(cudaStream_t)> beside_;
  std::array<std::array<DeviceEvent, RowChunks::kMost>, 2> arrived_;
  uint64_t gathers_ = 0;  // that have begun
  int given_ = 0;         // chunks, of the next one
  // Kept to reuse memory.
  std::array<Told, kMostRanks> told_;
  std::vector<ColumnCopy> copies_;
};

}  // namespace outrider::cuda
