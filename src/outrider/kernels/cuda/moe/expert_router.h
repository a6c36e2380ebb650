// The router of a mixture of experts: from the router product's logits to the work list of the
// grouped expert products (expert_routing.h), in one launch; in two with many rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/moe/expert_routing.h"

namespace outrider::cuda {

/// How logits become scores.
enum class ExpertScores { kSoftmax, kSigmoid, kRootOfSoftplus };

/// What groups of experts are ranked by: their best expert, or the sum of their best two.
enum class GroupRank { kBest, kBestTwo };

struct ExpertRouterParams {
  int num_rows = 0;                    // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // optional [1] on the device
  int experts = 0;                     // routed: 1 .. 512
  int top_k = 0;                       // with shared_experts 1 .. 32
  // Every row also goes to experts experts .. experts + shared_experts - 1, with weight 1. A wide
  // shared MLP is several of them: its down product is the sum over parts of its columns.
  int shared_experts = 0;
  ExpertScores scores = ExpertScores::kSigmoid;
  int num_groups = 1;  // equal groups of experts; see RouteExperts
  int top_groups = 1;  // groups that a row chooses from
  GroupRank group_rank = GroupRank::kBestTwo;
  bool normalise = true;
  float scaling_factor = 1.0F;
  int tile_rows = 64;             // of the grouped product that reads the tiles
  const float* logits = nullptr;  // float32 [num_rows, experts]; 16-byte aligned
  const float* bias = nullptr;    // optional [experts]: e_score_correction_bias
  // Optional: the experts of each token, which are not chosen by scores then: [tokens, top_k],
  // different ones of a token. Without groups and bias. An expert outside is a bug and stops the
  // kernel with an error.
  const int32_t* table = nullptr;
  // With table: [num_rows] token ids. One below -1 stands for kept_tokens[-2 - id], or for 0 where
  // that is negative (tokens that are drawn on the device).
  const int32_t* tokens = nullptr;
  const int32_t* kept_tokens = nullptr;  // [num_kept]
  int num_kept = 0;
};

/// Chooses experts and weights as RouteRows, with a table as WeighRows (ops/cpu/router.h) does,
/// with the same bits, and writes everything that `routing` points to. Nothing of it need be
/// cleared before. A row's choice and weights depend on its logits (and token) alone; the list is
/// in order of (expert, row).
///
/// Throws Error for parameters outside the ranges above, where groups do not fit (equal ones, whose
/// size is ceil(experts / 32) times a power of two; top_groups of them have at least top_k
/// experts), and for more rows than fit: 16,384 with up to 384 experts. Otherwise returns what the
/// launches returned.
cudaError_t RouteExperts(const ExpertRouterParams& params, const ExpertRouting& routing,
                         cudaStream_t stream);

}  // namespace outrider::cuda
