// What attention over lists of rows takes of the plan of MLA decode: rows as requests of one row
// each.
#pragma once

#include <algorithm>

#include "outrider/kernels/cuda/mla_decode/mla_decode_host.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention.h"
#include "outrider/kernels/cuda/sparse/listed_attention_task.cuh"

namespace outrider::cuda {

inline constexpr MlaSplits kListedSplits = {kListedSplit, 1 << 20, 1 << 20};

inline MlaDecodeLimits MlaLimitsOf(const ListedAttentionLimits& limits) {
  return {.max_tokens = limits.max_rows,
          .max_requests = limits.max_rows,
          .max_seq_len = std::max(limits.max_count, 1),
          .heads = limits.heads};
}

/// Params: ListedAttentionParams, CompressedAttentionParams.
template <typename Params>
MlaDecodeParams PlanParams(const Params& params) {
  MlaDecodeParams plan;
  plan.num_requests = params.num_rows;
  plan.num_tokens = params.num_rows;
  plan.heads = params.heads;
  plan.query_start_loc = params.rows.starts;
  plan.seq_lens = params.rows.counts + params.first_row;
  plan.one_token_each = true;
  plan.splits = kListedSplits;
  return plan;
}

/// What MlaDecodePlan takes two items that share a tile for.
template <typename Params>
bool SharedTiles(const Params& params) {
  const int tiles = params.num_rows * params.heads / kMlaTileRows + params.num_rows;
  return tiles > MlaBlocks();
}

}  // namespace outrider::cuda
