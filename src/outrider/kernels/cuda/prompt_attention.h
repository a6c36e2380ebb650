// Attention of prompts in the expanded form, through cuDNN, which is loaded when the first object
// is made.
//
// Row invariance: only plans with a padding mask and lengths on the device are used, one prompt at
// a time. With those a row's bits were equal in a batch, alone and in chunks cut anywhere
// (bench/results/hopper_step_around_decode.md), which no promise of cuDNN says: so a constructor
// compares bits and refuses a version that gives others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace outrider::cuda {

struct PromptAttentionShape {
  int heads = 0;
  int key_width = 0;    // of queries and keys, a multiple of 8 up to 256
  int value_width = 0;  // a multiple of 8 up to 256
  float scale = 1.0F;
  int max_queries = 0;  // of one call
  int max_keys = 0;
};

/// Query i of a prompt's piece sees keys j <= num_keys - num_queries + i:
///   out[i, h] = sum_j softmax_j(scale <q[i, h], k[j, h]>) v[j, h].
/// All bf16, 16-byte aligned; row strides in elements, multiples of 8.
///
/// cuDNN reads q, and writes out, up to PaddedQueries(num_queries) rows, and reads k and v up to
/// PaddedKeys(num_keys): memory must reach so far. Rows of out past the end are overwritten; rows
/// of v past the end must be finite.
struct PromptAttentionParams {
  int num_queries = 0;  // 1 .. max_queries
  int num_keys = 0;     // num_queries .. max_keys
  const void* q =
      nullptr;  // [num_queries, heads, key_width] with the stride below; 0: none between
  int64_t q_row_stride = 0;
  const void* k = nullptr;  // [num_keys, heads, key_width]
  const void* v = nullptr;  // [num_keys, heads, value_width] with the strides below
  int64_t v_row_stride = 0;
  int64_t v_head_stride = 0;
  void* out = nullptr;  // [num_queries, heads, value_width]
};

class PromptAttention {
 public:
  /// Loads cuDNN and compares bits of prompts in one piece, in pieces and with room for more.
  /// Throws Error where there is no cuDNN, where it has no plan for the shape, and where bits
  /// differ.
  explicit PromptAttention(const PromptAttentionShape& shape);
  ~PromptAttention();
  PromptAttention(const PromptAttention&) = delete;
  PromptAttention& operator=(const PromptAttention&) = delete;

  /// Rows that a call needs memory for.
  int PaddedQueries(int num_queries) const;
  int PaddedKeys(int num_keys) const;

  /// May be captured once it has run with the same padded sizes and strides, which is when its plan
  /// is made and compared; that takes memory of the padded sizes for a moment. One stream at a
  /// time. Throws Error for parameters outside the ranges above and for what cuDNN says.
  void Run(const PromptAttentionParams& params, cudaStream_t stream);

 private:
  class Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace outrider::cuda
