// Attention of prompts in the expanded form, through cuDNN, which is loaded when the first object
// is made: all prompts of a step in one call, whose rows follow each other.
//
// Row invariance: only plans with a padding mask and lengths on the device are used. With those a
// row's bits were equal in batches, alone and in pieces cut anywhere
// (bench/results/hopper_step_around_decode.md), which no promise of cuDNN says: so a constructor
// compares bits and refuses a version that gives others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace outrider::cuda {

inline constexpr int kMostPrompts = 256;          // of one call
inline constexpr int kMostPromptQueries = 16384;  // of one prompt's piece
inline constexpr int kMostPromptKeys = 1 << 20;
/// cuDNN reads this many rows of q, k and v past the last prompt's.
inline constexpr int kPromptSlackRows = 256;

struct PromptAttentionShape {
  int heads = 0;
  // Of the model, of which `heads` are a rank's: their bits must be those of a call with all. 0:
  // these are all.
  int model_heads = 0;
  int key_width = 0;    // of queries and keys, a multiple of 8 up to 256
  int value_width = 0;  // a multiple of 8 up to 256
  // In elements, multiples of 8; 0: rows and heads with nothing between them.
  int64_t q_row_stride = 0;
  int64_t v_row_stride = 0;
  int64_t v_head_stride = 0;
  float scale = 1.0F;
};

/// Query i of a prompt's piece sees keys j <= num_keys - num_queries + i of the prompt:
///   out[i, h] = sum_j softmax_j(scale <q[i, h], k[j, h]>) v[j, h].
/// All bf16, 16-byte aligned. Memory of q, k and v must reach kPromptSlackRows past the last row;
/// of k and v, values there must be finite.
struct PromptAttentionParams {
  // Not 0: a call with the same number, to the same object, has the same number of prompts and the
  // same values in query_start_loc and key_start_loc. What follows from them is not made again.
  uint64_t batch = 0;
  int num_prompts = 0;  // 1 .. kMostPrompts
  int max_queries = 0;  // of a prompt, 1 .. kMostPromptQueries
  int max_keys = 0;     // of a prompt, max_queries .. kMostPromptKeys
  // On the device, [num_prompts + 1], from 0: prompt i has rows start[i] .. start[i + 1] - 1, of
  // keys as many as of queries or more.
  const int32_t* query_start_loc = nullptr;
  const int32_t* key_start_loc = nullptr;
  const void* q = nullptr;  // [queries, heads, key_width] with the shape's stride
  const void* k = nullptr;  // [keys, heads, key_width]
  const void* v = nullptr;  // [keys, heads, value_width] with the shape's strides
  void* out = nullptr;      // [queries, heads, value_width]; rows past the last are not written
};

class PromptAttention {
 public:
  /// Loads cuDNN, makes the plans and compares bits of prompts in one piece, in pieces and in
  /// batches, over all plans, and of heads among those of the model. Takes half a second and more.
  /// Throws Error where there is no cuDNN, where it has no plan for the shape, and where bits
  /// differ.
  explicit PromptAttention(const PromptAttentionShape& shape);
  ~PromptAttention();
  PromptAttention(const PromptAttention&) = delete;
  PromptAttention& operator=(const PromptAttention&) = delete;

  /// May be captured. One stream at a time. Throws Error for parameters outside the ranges above
  /// and for what cuDNN says.
  void Run(const PromptAttentionParams& params, cudaStream_t stream);

 private:
  class Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace outrider::cuda
