// How a warp chooses the experts of one row, with the bits of RouteRows (ops/cpu/router.h). A lane
// has `kPerLane` neighbouring experts.
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/hopper/order_key.cuh"
#include "outrider/kernels/cuda/moe/expert_router.h"

namespace outrider::cuda {

/// What NaN counts as in the choice, as in RouteRows of the CPU.
inline constexpr float kLeastChoice = -1e38F;

/// A lane's experts: lane * kPerLane + i. Those past the end have choice -infinity.
template <int kPerLane>
struct LaneExperts {
  float score[kPerLane];
  uint32_t choice[kPerLane];  // OrderKey; 0: taken
};

/// The scores of a row of logits, as RouteRows makes them: a softmax's sum in order of expert.
template <int kPerLane>
__device__ __forceinline__ void Score(const ExpertRouterParams& params, const float* logits,
                                      float* row_scores, LaneExperts<kPerLane>& lane_experts) {
  const int lane = threadIdx.x % 32;
  float(&score)[kPerLane] = lane_experts.score;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane * kPerLane + i;
    score[i] = expert < params.experts ? logits[expert] : -INFINITY;
  }
  if (params.scores == ExpertScores::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = RoundedDiv(1.0f, RoundedAdd(1.0f, RoundedExp(-score[i])));
    }
    return;
  }
  if (params.scores == ExpertScores::kRootOfSoftplus) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = RootOfSoftplus(score[i]);
    return;
  }
  float max = score[0];
#pragma unroll
  for (int i = 1; i < kPerLane; ++i) max = fmaxf(max, score[i]);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, mask));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = RoundedExp(RoundedSub(score[i], max));  // 0 past the end
    row_scores[lane * kPerLane + i] = score[i];
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < 8 * kPerLane; ++i) {
    const float4 four = reinterpret_cast<const float4*>(row_scores)[i];
    sum = RoundedAdd(RoundedAdd(RoundedAdd(RoundedAdd(sum, four.x), four.y), four.z), four.w);
  }
  __syncwarp();  // before the next row
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) score[i] = RoundedDiv(score[i], sum);
}

/// Takes the experts of all but the best groups out of the choice. A group is `lanes` lanes.
template <int kPerLane>
__device__ __forceinline__ void DropGroups(const ExpertRouterParams& params, int lanes,
                                           LaneExperts<kPerLane>& experts) {
  const int lane = threadIdx.x % 32;
  uint32_t first = 0;
  uint32_t second = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const uint32_t key = experts.choice[i];
    second = max(second, min(first, key));
    first = max(first, key);
  }
  for (int step = 1; step < lanes; step *= 2) {
    const uint32_t other_first = __shfl_xor_sync(~0u, first, step);
    const uint32_t other_second = __shfl_xor_sync(~0u, second, step);
    second = max(min(first, other_first), max(second, other_second));
    first = max(first, other_first);
  }
  const bool two = params.group_rank == GroupRank::kBestTwo && params.experts > params.num_groups;
  const float sum = RoundedAdd(OfOrderKey(first), OfOrderKey(second));
  // A group's first lane has its score; no lane past the last group.
  const bool leads = lane % lanes == 0 && lane / lanes < params.num_groups;
  uint32_t key = !leads ? 0 : two ? OrderKey(sum) : first;
  bool kept = false;
  for (int i = 0; i < params.top_groups; ++i) {
    const uint32_t best = __reduce_max_sync(~0u, key);
    const int winner = __ffs(static_cast<int>(__ballot_sync(~0u, key == best))) - 1;
    if (lane == winner) key = 0;
    kept |= lane / lanes == winner / lanes;
  }
  if (kept) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) experts.choice[i] = 0;
}

/// A lane's best expert that is left: the lowest index among equals.
template <int kPerLane>
__device__ __forceinline__ uint32_t BestOfLane(const LaneExperts<kPerLane>& experts, int* index) {
  uint32_t keys[kPerLane];
  int indices[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    keys[i] = experts.choice[i];
    indices[i] = i;
  }
  // Neighbours, then pairs of neighbours, ...: the later one only if it is larger.
#pragma unroll
  for (int step = 1; step < kPerLane; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < kPerLane; i += 2 * step) {
      const bool later = keys[i + step] > keys[i];
      keys[i] = later ? keys[i + step] : keys[i];
      indices[i] = later ? indices[i + step] : indices[i];
    }
  }
  *index = indices[0];
  return keys[0];
}

/// Lane j < top_k gets choice j.
struct Choice {
  int expert;
  float weight;
};

/// The score of the expert number `index` of lane `owner`. All lanes.
template <int kPerLane>
__device__ __forceinline__ float ScoreOf(const LaneExperts<kPerLane>& experts, int owner,
                                         int index) {
  float score = experts.score[0];
#pragma unroll
  for (int i = 1; i < kPerLane; ++i) score = i == index ? experts.score[i] : score;
  return __shfl_sync(~0u, score, owner);
}

/// The choice's weights of scores whose sum, in order of choice, is `sum`.
__device__ __forceinline__ Choice WeighChoice(const ExpertRouterParams& params, Choice choice,
                                              float sum) {
  const float norm = params.normalise ? RoundedAdd(sum, 1e-20F) : 1.0f;
  choice.weight = RoundedMul(RoundedDiv(choice.weight, norm), params.scaling_factor);
  return choice;
}

/// The experts that the table has for a row's token.
template <int kPerLane>
__device__ __forceinline__ Choice ExpertsOfToken(const ExpertRouterParams& params, int row,
                                                 const LaneExperts<kPerLane>& experts) {
  const int lane = threadIdx.x % 32;
  int token = params.tokens[row];
  if (token < -1 && -2 - token < params.num_kept) token = max(params.kept_tokens[-2 - token], 0);
  if (token < 0) __trap();
  int own = 0;
  if (lane < params.top_k) own = params.table[static_cast<int64_t>(token) * params.top_k + lane];
  if (own < 0 || own >= params.experts) __trap();
  Choice result = {own, 0.0f};
  float sum = 0.0f;
  for (int j = 0; j < params.top_k; ++j) {
    const int expert = __shfl_sync(~0u, own, j);
    const float score = ScoreOf(experts, expert / kPerLane, expert % kPerLane);
    sum = RoundedAdd(sum, score);
    if (lane == j) result.weight = score;
  }
  return WeighChoice(params, result, sum);
}

template <int kPerLane>
__device__ __forceinline__ Choice ChooseExperts(const ExpertRouterParams& params, int group_lanes,
                                                int row, const float* logits, float* row_scores) {
  const int lane = threadIdx.x % 32;
  LaneExperts<kPerLane> experts;
  Score(params, logits, row_scores, experts);
  if (params.table != nullptr) return ExpertsOfToken(params, row, experts);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane * kPerLane + i;
    const bool exists = expert < params.experts;
    const float bias = params.bias != nullptr && exists ? params.bias[expert] : 0.0f;
    const float value =
        params.bias == nullptr ? experts.score[i] : RoundedAdd(experts.score[i], bias);
    // NaN counts as the least, but is not taken yet (0).
    experts.choice[i] = exists ? OrderKey(fmaxf(value, kLeastChoice)) : 0;
  }
  if (group_lanes > 0) DropGroups(params, group_lanes, experts);

  Choice result = {0, 0.0f};
  float sum = 0.0f;
  for (int j = 0; j < params.top_k; ++j) {
    int index;
    const uint32_t key = BestOfLane(experts, &index);
    const uint32_t best = __reduce_max_sync(~0u, key);
    const int winner = __ffs(static_cast<int>(__ballot_sync(~0u, key == best))) - 1;
    if (lane == winner) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) experts.choice[i] = i == index ? 0 : experts.choice[i];
    }
    const float score = ScoreOf(experts, winner, index);
    index = __shfl_sync(~0u, index, winner);
    sum = RoundedAdd(sum, score);
    if (lane == j) result = {winner * kPerLane + index, score};
  }
  return WeighChoice(params, result, sum);
}

}  // namespace outrider::cuda
