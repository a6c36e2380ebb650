// Hyper-connections (arXiv:2512.24880) between two parts of DeepSeek-V4's layers, in one launch:
// what an attention or MLP gave is added to the residual streams of a row, and the next part's
// input is mixed from them.
//
// For each row r with four streams X_j [hidden], in this order, each part where it is asked for:
//   add:  X_k = post_k y + sum over j of comb_jk X_j
//   mean: mean = sum over j of X_j / 4
//   mix:  m = fn X [24], n = 1 / sqrt(mean of X^2 + norm_epsilon);
//         pre = sigmoid(m n scale_0 + base) + epsilon, post = 2 sigmoid(m n scale_1 + base),
//         comb = Sinkhorn's normalisation of exp(m n scale_2 + base): a softmax of every row plus
//         epsilon, then columns and, in further iterations, rows and columns divided by their sums
//         plus epsilon; u = sum over j of pre_j X_j
//   contract: m = fn X [4], pre and u alone
//   norm: out = norm_weight * u / sqrt(mean of u^2 + norm_epsilon), rounded
//
// A row's bits depend on that row alone: its columns are cut into eight segments, one for each
// block of a cluster, whose sums are added in order; how many rows a cluster takes changes no sum.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

inline constexpr int kHyperStreams = 4;
inline constexpr int kHyperSums = (2 + kHyperStreams) * kHyperStreams;     // pre, post, comb
inline constexpr int kHyperWeights = (1 + kHyperStreams) * kHyperStreams;  // post, comb

/// What is made of the streams.
enum class HyperPart { kNothing, kMix, kContract };

struct HyperRowsParams {
  int num_rows = 0;                    // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // optional [1] on the device: rows from it on are left alone
  int hidden = 0;                      // a multiple of 4 in 4 .. 8192
  float* streams = nullptr;            // [num_rows, streams_stride], of 4 * hidden; 16-byte aligned
  int64_t streams_stride = 0;          // elements, a multiple of 4

  // Add, with y or terms.
  const void* y = nullptr;      // [num_rows, y_stride]
  DType y_dtype = DType::kF32;  // or kBF16
  int64_t y_stride = 0;         // elements, a multiple of 4
  // y = the sum of a row's terms times their weights, in order, then its last term; 16-byte
  // aligned.
  const float* terms = nullptr;  // [num_rows * num_terms, hidden]
  int num_terms = 0;
  const float* term_weights = nullptr;  // [num_rows, num_terms]
  const float* last_term = nullptr;     // optional [num_rows, hidden]
  const float* add_weights = nullptr;   // [num_rows, 20]: post, then comb [4, 4]

  // Optional: [num_rows, mean_stride].
  void* mean = nullptr;
  DType mean_dtype = DType::kF32;  // or kBF16
  int64_t mean_stride = 0;

  HyperPart part = HyperPart::kNothing;
  const float* fn = nullptr;     // [24 or 4, 4 * hidden]; 16-byte aligned
  const float* scale = nullptr;  // [3]; to contract [1]
  const float* base = nullptr;   // [24 or 4]
  int iterations = 0;            // of Sinkhorn's normalisation, at least 1
  float epsilon = 0;
  float norm_epsilon = 0;
  float* weights = nullptr;  // to mix: [num_rows, 20], may be add_weights
  // Optional: u as it is, [num_rows, mixture_stride].
  float* mixture = nullptr;
  int64_t mixture_stride = 0;
  // Optional: the norm of u.
  const float* norm_weight = nullptr;  // [hidden]
  void* out = nullptr;                 // bf16 [num_rows, out_stride]
  int64_t out_stride = 0;              // elements, a multiple of 4
};

/// Throws Error for parameters outside these ranges; otherwise returns what the launch returned.
cudaError_t HyperRows(const HyperRowsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
