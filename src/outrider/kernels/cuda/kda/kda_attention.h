// The pass of Kimi Delta Attention over running states (ops/delta.h, kv/running_state.h): one code
// for rows of prompts, generated rows and verify rows.
//
// With S the state before a row's block of 16 tokens, e_i the decays of the block's rows by
// channel, and products of decays multiplied in order:
//   P_t = e_0 .. e_t,  K_tj = k_j e_{j+1} .. e_t,
//   u_t = b_t (v_t - (S^T (k_t P_t) + sum over j < t of (k_t . K_tj) u_j)),
//   out_t = S^T (q_t P_t) + sum over j <= t of (q_t . K_tj) u_j,
//   next state = P_15 S + sum over j of K_15j u_j^T.
// A row is computed from its own numbers, the state and the earlier rows of its block, each sum in
// one order: its bits do not depend on which rows run beside it, nor on whether the earlier ones
// run in the same step or are kept rows.
// Products with S and of K_15j and u_j are on tensor cores, of float32 numbers in two parts of
// TF32; all others are float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/kda/kda_rows.h"

namespace outrider::cuda {

/// Of a head and a block of 16 tokens: what its rows have to do with each other before the state
/// comes in.
struct alignas(16) KdaTokenBlock {
  float keys[kStateBlock][kStateBlock];     // k_t . K_tj, of row t those with j < t
  float queries[kStateBlock][kStateBlock];  // q_t . K_tj, j <= t
  float product[kKdaDim];                   // P_15
  float write[kStateBlock];                 // b
};

struct KdaAttentionParams {
  KdaRowsParams rows;            // KdaRows ran with them; decay is 16-byte aligned, its stride a
                                 // multiple of 4; all rows that KdaRows left may be written over
  const float* write = nullptr;  // [num_rows, write_stride], of heads numbers, before sigmoid
  int64_t write_stride = 0;
  float* out = nullptr;  // [num_rows, out_stride]
  int64_t out_stride = 0;
  // [num_rows / 16, heads], 16-byte aligned, where a request has many rows.
  KdaTokenBlock* blocks = nullptr;
};

/// Runs the rows of every request in order, in one block per request and head, of many rows two.
/// Leaves the state of all tokens that are no drafts, up to a multiple of 16, the checkpoints on
/// the way, and the last 32 rows of each request as kept rows. Where a request has many rows, a
/// launch before the pass computes what needs no state, for all blocks of 16 tokens of which all
/// rows run. Throws Error for parameters outside the ranges above; otherwise returns what the
/// launches returned.
cudaError_t KdaAttention(const KdaAttentionParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
