// RouteKernel is one cluster. A block has a range of rows, a warp one row at a time, a lane
// `kPerLane` neighbouring experts of it. With many rows ChooseKernel, on the whole GPU, chooses the
// experts before it.
//
// Grouping by expert without a sort: a block marks in a bit per (expert, row) of its range who goes
// where. An expert's count is the number of its bits, a pair's place among the expert's pairs the
// number of bits before its own. The blocks read each other's counts (distributed shared memory),
// and every one of them adds up all experts' counts to places and tiles by itself.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "outrider/kernels/cuda/hopper/cluster.cuh"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/moe/expert_choice.cuh"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/moe/expert_router_layout.h"

namespace outrider::cuda {
namespace {

constexpr int kChooseThreads = 256;
// With more, two launches take less time.
constexpr int kMostRowsOfOneLaunch = 256;

/// The sum of `value`, 0 in all but the first `warps` warps, over the threads before this one. All
/// threads; `sums` has a place per warp.
__device__ __forceinline__ uint64_t SumBefore(uint64_t value, int warps, uint64_t* sums) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  uint64_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t left = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  uint64_t before = sum - value;
#pragma unroll 4
  for (int i = 0; i < min(warp, warps); ++i) before += sums[i];
  return before;
}

/// A warp chooses the experts of `row`, and writes them with their weights and the shared ones'.
/// Returns those of lanes before top_k.
template <int kPerLane>
__device__ __forceinline__ int ChooseRow(const ExpertRouterParams& params,
                                         const ExpertRouting& routing, int group_lanes, int row,
                                         float* row_scores) {
  const int lane = threadIdx.x % 32;
  const int choices = params.top_k + params.shared_experts;
  const float* const logits = params.logits + static_cast<int64_t>(row) * params.experts;
  const Choice choice = ChooseExperts<kPerLane>(params, group_lanes, row, logits, row_scores);
  const int64_t at = static_cast<int64_t>(row) * choices + lane;
  if (lane < params.top_k) {
    routing.expert_ids[at] = choice.expert;
    routing.weights[at] = choice.weight;
  } else if (lane < choices) {
    routing.expert_ids[at] = params.experts + lane - params.top_k;
    routing.weights[at] = 1.0f;
  }
  return choice.expert;
}

template <int kPerLane>
__global__ void __launch_bounds__(kChooseThreads)
    ChooseKernel(const ExpertRouterParams params, const ExpertRouting routing, int group_lanes) {
  constexpr int kWarps = kChooseThreads / 32;
  __shared__ float scores[kWarps * 32 * kPerLane];
  LaunchDependents();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  WaitForPriorGrid();
  if (row >= params.num_rows || (params.true_rows != nullptr && row >= *params.true_rows)) return;
  ChooseRow<kPerLane>(params, routing, group_lanes, row, scores + warp * 32 * kPerLane);
}

/// kPerLane 0: ChooseKernel has written the choices.
template <int kPerLane>
__global__ void __launch_bounds__(kRouterThreads, 1)
    RouteKernel(const ExpertRouterParams params, const ExpertRouting routing,
                const RouterLayout layout, int group_lanes) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ int counts[kRouterExperts];
  __shared__ int places[kRouterExperts];  // of this block's first pair of an expert
  __shared__ uint64_t sums[kRouterThreads / 32];
  auto* marks = reinterpret_cast<uint32_t*>(memory + layout.marks);
  auto* prior = reinterpret_cast<uint16_t*>(memory + layout.prior);
  auto* ids = reinterpret_cast<uint16_t*>(memory + layout.ids);
  auto* scores = reinterpret_cast<float*>(memory + layout.scores);
  LaunchDependents();
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int rank = static_cast<int>(ClusterRank());
  const int blocks = static_cast<int>(gridDim.x);
  for (int i = thread; i < params.experts * layout.words; i += threads) marks[i] = 0;
  __syncthreads();
  WaitForPriorGrid();
  int rows = params.num_rows;
  if (params.true_rows != nullptr) rows = min(rows, *params.true_rows);

  const int first_row = rank * layout.rows;
  const int block_rows = max(0, min(layout.rows, rows - first_row));
  const int choices = params.top_k + params.shared_experts;
  // Remembers the expert of a pair of this block.
  const auto mark = [&](int local, int k, int expert) {
    ids[local * params.top_k + k] = static_cast<uint16_t>(expert);
    atomicOr(&marks[expert * layout.words + local / 32], 1u << local % 32);
  };
  if constexpr (kPerLane == 0) {
#pragma unroll 4
    for (int i = thread; i < block_rows * params.top_k; i += threads) {
      const int local = i / params.top_k;
      const int k = i % params.top_k;
      mark(local, k, routing.expert_ids[static_cast<int64_t>(first_row + local) * choices + k]);
    }
  } else {
    for (int local = warp; local < block_rows; local += threads / 32) {
      const int expert = ChooseRow<kPerLane>(params, routing, group_lanes, first_row + local,
                                             scores + warp * 32 * kPerLane);
      if (lane < params.top_k) mark(local, lane, expert);
    }
  }
  __syncthreads();

  // A thread per expert.
  if (thread < params.experts) {
    int count = 0;
    for (int i = thread * layout.words; i < (thread + 1) * layout.words; ++i) {
      prior[i] = static_cast<uint16_t>(count);
      count += __popc(marks[i]);
    }
    counts[thread] = count;
  }
  int total = 0;
  int in_blocks_before = 0;
  if (blocks > 1) {
    ClusterArrive();
    ClusterWait();
  }
  if (thread < params.experts && blocks == 1) {
    total = counts[thread];  // its own
  } else if (thread < params.experts) {
    for (int other = 0; other < blocks; ++other) {
      const int count = LoadRemote(&counts[thread], other);
      total += count;
      if (other < rank) in_blocks_before += count;
    }
  }
  if (blocks > 1) ClusterArrive();  // has read the others' counts
  const int tiles = (total + params.tile_rows - 1) / params.tile_rows;
  const uint64_t before =
      SumBefore(static_cast<uint64_t>(tiles) << 32 | static_cast<uint32_t>(total),
                (params.experts + 31) / 32, sums);
  const int offset = static_cast<int>(static_cast<uint32_t>(before));
  const int first_tile = static_cast<int>(before >> 32);
  const int routed_pairs = rows * params.top_k;
  if (thread < params.experts) {
    places[thread] = offset + in_blocks_before;
    if (thread % blocks == rank) {
      routing.offsets[thread] = offset;
      for (int i = 0; i < tiles; ++i) {
        const int done = i * params.tile_rows;
        routing.tiles[first_tile + i] = {thread, offset + done, min(params.tile_rows, total - done),
                                         0};
      }
    }
  }
  // The last thread has nothing after it but itself: what comes before its end is everything.
  __shared__ int routed_tiles;
  if (thread == threads - 1) routed_tiles = first_tile + tiles;
  __syncthreads();
  // Each shared expert has all rows.
  const int tiles_each = (rows + params.tile_rows - 1) / params.tile_rows;
  const int shared_tiles = params.shared_experts * tiles_each;
  if (rank == 0 && thread == 0) *routing.num_tiles = routed_tiles + shared_tiles;
  if (rank == 0 && thread <= params.shared_experts) {
    routing.offsets[params.experts + thread] = routed_pairs + thread * rows;
  }
  for (int i = rank * threads + thread; i < shared_tiles; i += blocks * threads) {
    const int shared = i / tiles_each;
    const int done = i % tiles_each * params.tile_rows;
    routing.tiles[routed_tiles + i] = {params.experts + shared, routed_pairs + shared * rows + done,
                                       min(params.tile_rows, rows - done), 0};
  }
  for (int i = thread; i < block_rows * params.top_k; i += threads) {
    const int local = i / params.top_k;
    const int word = ids[i] * layout.words + local / 32;
    const int place = places[ids[i]] + prior[word] + __popc(marks[word] & ((1u << local % 32) - 1));
    const int pair = (first_row + local) * choices + i % params.top_k;
    routing.pairs[place] = pair;
    if (routing.places != nullptr) routing.places[pair] = place;
  }
  for (int i = thread; i < block_rows * params.shared_experts; i += threads) {
    const int row = first_row + i / params.shared_experts;
    const int shared = i % params.shared_experts;
    const int place = routed_pairs + shared * rows + row;
    const int pair = row * choices + params.top_k + shared;
    routing.pairs[place] = pair;
    if (routing.places != nullptr) routing.places[pair] = place;
  }
  // The others may still be reading this block's counts.
  if (blocks > 1) ClusterWait();
}

template <int kPerLane>
cudaError_t Choose(const ExpertRouterParams& params, const ExpertRouting& routing,
                   cudaStream_t stream) {
  constexpr int kRows = kChooseThreads / 32;
  return LaunchDependent(ChooseKernel<kPerLane>, dim3((params.num_rows + kRows - 1) / kRows),
                         dim3(kChooseThreads), 0, stream, params, routing, GroupLanes(params));
}

template <int kPerLane>
cudaError_t Route(const ExpertRouterParams& params, const ExpertRouting& routing, int blocks,
                  cudaStream_t stream) {
  constexpr auto kKernel = RouteKernel<kPerLane>;
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(kRouterShared - kRouterFixedShared));
  });
  if (allowed != cudaSuccess) return allowed;
  const RouterLayout layout = MakeRouterLayout(params, blocks);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(layout.threads);
  config.dynamicSmemBytes = layout.bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(blocks);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = blocks > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kKernel, params, routing, layout, GroupLanes(params));
}

/// use(PerLane(experts)), as a constant.
template <typename Use>
cudaError_t WithPerLane(int experts, Use use) {
  switch (PerLane(experts)) {
    case 1:
      return use(std::integral_constant<int, 1>());
    case 2:
      return use(std::integral_constant<int, 2>());
    case 3:
      return use(std::integral_constant<int, 3>());
    case 4:
      return use(std::integral_constant<int, 4>());
    case 5:
      return use(std::integral_constant<int, 5>());
    case 6:
      return use(std::integral_constant<int, 6>());
    case 7:
      return use(std::integral_constant<int, 7>());
    case 8:
      return use(std::integral_constant<int, 8>());
    case 12:
      return use(std::integral_constant<int, 12>());
    default:
      return use(std::integral_constant<int, 16>());
  }
}

}  // namespace

cudaError_t RouteExperts(const ExpertRouterParams& params, const ExpertRouting& routing,
                         cudaStream_t stream) {
  // Blocks change nothing but who has which rows.
  int blocks = 1;
  while (blocks < kRouterBlocks && blocks * 16 < params.num_rows) blocks *= 2;
  CheckRouter(params, blocks);
  if (params.num_rows <= kMostRowsOfOneLaunch) {
    return WithPerLane(params.experts, [&](auto per_lane) {
      return Route<per_lane>(params, routing, blocks, stream);
    });
  }
  const cudaError_t error = WithPerLane(
      params.experts, [&](auto per_lane) { return Choose<per_lane>(params, routing, stream); });
  if (error != cudaSuccess) return error;
  return Route<0>(params, routing, blocks, stream);
}

}  // namespace outrider::cuda
