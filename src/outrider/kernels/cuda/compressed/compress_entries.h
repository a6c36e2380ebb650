// The compressors of DeepSeek-V4: the entries that the rows of tokens complete.
//
// A token leaves a row of float32 values and as many gates in the cache, by its position; the
// products that make them write them there (MatMulDestination). Entry j stands for tokens
// [j * ratio, (j + 1) * ratio): in every channel the mean of the values, weighted by the softmax of
// the gates with the bias of each position in a group; then normalised, and its last 64 numbers
// rotated by the angles of position j * ratio. It is written where the last of its tokens is a row
// of the step, from the rows in the cache alone. So an entry does not depend on how tokens were cut
// into steps, and a rejected draft leaves nothing that is read before it is written again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/compressed/compressed_rows.h"

namespace outrider::cuda {

/// A compressor of a layer, its rows and entries. Ratio 4 with overlap, where an entry pools the
/// first half of the channels of the 4 tokens before its own, if there are any, and the second half
/// of its own 4; or ratio 128 without.
struct Compressor {
  int width = 0;  // of an entry: 128 or 512
  int ratio = 0;
  bool overlaps = false;

  constexpr int channels() const { return overlaps ? 2 * width : width; }

  // Rows of tokens: channels() values, then gates. float32, 16-byte aligned, 16 bytes' multiples
  // apart.
  const float* states = nullptr;      // of block 0
  int64_t state_block_stride = 0;     // bytes
  int state_block_size = 0;           // rows, which follow each other
  const int* state_blocks = nullptr;  // [requests, state_blocks_stride] on the device
  int state_blocks_stride = 0;
  int state_blocks_mask = -1;  // of the number of a block: its column

  const float* bias = nullptr;  // [ratio, channels()], added to gates
  const float* norm = nullptr;  // [width]
  // bf16 [width], of block 0; 16-byte aligned. With `codes` e4m3, of index keys as WriteIndexKeys
  // stores them: behind a Hadamard transform, with a scale each behind the block's codes.
  void* entries = nullptr;
  bool codes = false;
  // bf16: numbers are rounded first, as is published (published_rounding.cuh): to e4m3 all but the
  // rotated ones, index keys behind a Hadamard transform to e2m1.
  bool rounds = false;
  int64_t entry_block_stride = 0;        // bytes, a multiple of 16
  int entry_block_size = 0;              // entries, which follow each other
  const int64_t* entry_slots = nullptr;  // [rows], counted in tokens; negative: none is written
};

inline constexpr int kMaxCompressors = 2;  // of a launch: the attention's and the indexer's

struct CompressParams {
  int num_rows = 0;
  const int32_t* positions = nullptr;   // [rows] on the device
  const CompressedRow* rows = nullptr;  // [rows]: whose rows they are (PlanCompressedRows)
  int count = 0;                        // of compressors, which have one ratio
  Compressor compressors[kMaxCompressors];
  float epsilon = 1e-6F;
  float frequencies[32] = {};  // of the rotation
  float magnitude = 1.0F;      // of its cos and sin
};

/// Writes the entries whose last tokens are rows of the step; the rows of its tokens must be in the
/// cache. An entry's bits depend on its tokens' rows and its position alone. Throws Error for
/// parameters outside the ranges above; otherwise returns what the launch returned.
cudaError_t CompressEntries(const CompressParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
