// One launch of one cluster. A block has a range of rows, a warp one row at a time, a lane
// `kPerLane` neighbouring experts of it.
//
// Grouping by expert without a sort: a block marks in a bit per (expert, row) of its range who goes
// where. An expert's count is the number of its bits, a pair's place among the expert's pairs the
// number of bits before its own. The blocks read each other's counts (distributed shared memory),
// and every one of them adds up all experts' counts to places and tiles by itself.
#include <algorithm>

#include "outrider/kernels/cuda/expert_choice.cuh"
#include "outrider/kernels/cuda/expert_router.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"

namespace outrider::cuda {
namespace {

constexpr int kMaxBlocks = 8;  // of a cluster
constexpr int kMaxThreads = 1024;
constexpr int kMaxExperts = 512;
constexpr int kMaxChoices = 32;
constexpr size_t kMaxShared = 227 * 1024;
constexpr size_t kFixedShared = 5 * 1024;  // of arrays outside Layout

/// Experts of a lane.
int PerLane(int experts) {
  const int least = (experts + 31) / 32;
  return least <= 8 ? least : least <= 12 ? 12 : 16;
}

/// What a block has in shared memory besides fixed arrays.
struct Layout {
  int rows;         // of a block's range
  int words;        // of a row of marks, odd against bank conflicts
  uint32_t ids;     // offsets in bytes: uint16 [rows, top_k]
  uint32_t marks;   // uint32 [experts, words]
  uint32_t prior;   // uint16 [experts, words]: marks in the words before
  uint32_t scores;  // float32 [threads / 32, 32 * PerLane], softmax only
  uint32_t bytes;
  int threads;
};

Layout MakeLayout(const ExpertRouterParams& params, int blocks) {
  Layout layout;
  layout.rows = (params.num_rows + blocks - 1) / blocks;
  layout.words = (layout.rows + 31) / 32 | 1;
  // A thread per expert is needed, a warp per row wanted.
  const int warps = std::max((params.experts + 31) / 32, std::max(layout.rows, 1));
  layout.threads = layout.rows > 16 ? kMaxThreads : 32 * warps;
  const auto marks = static_cast<uint32_t>(params.experts * layout.words);
  layout.scores = 0;
  const bool softmax = params.scores == ExpertScores::kSoftmax;
  layout.marks = softmax ? static_cast<uint32_t>(layout.threads * PerLane(params.experts)) * 4 : 0;
  layout.prior = layout.marks + marks * 4;
  layout.ids = layout.prior + marks * 2;
  layout.bytes = layout.ids + static_cast<uint32_t>(layout.rows * params.top_k) * 2;
  return layout;
}

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ int LoadRemote(const int* local, uint32_t rank) {
  uint32_t address;
  int value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(SharedAddress(local)), "r"(rank));
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

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

template <int kPerLane>
__global__ void __launch_bounds__(kMaxThreads, 1)
    RouteKernel(const ExpertRouterParams params, const ExpertRouting routing, const Layout layout,
                int group_lanes) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ int counts[kMaxExperts];
  __shared__ int places[kMaxExperts];  // of this block's first pair of an expert
  __shared__ uint64_t sums[kMaxThreads / 32];
  auto* marks = reinterpret_cast<uint32_t*>(memory + layout.marks);
  auto* prior = reinterpret_cast<uint16_t*>(memory + layout.prior);
  auto* ids = reinterpret_cast<uint16_t*>(memory + layout.ids);
  auto* scores = reinterpret_cast<float*>(memory + layout.scores);
  LaunchDependents();
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const uint32_t rank = ClusterRank();
  const uint32_t blocks = gridDim.x;
  for (int i = thread; i < params.experts * layout.words; i += threads) marks[i] = 0;
  __syncthreads();
  WaitForPriorGrid();

  const int rows =
      params.true_rows != nullptr ? min(params.num_rows, *params.true_rows) : params.num_rows;
  const int first_row = static_cast<int>(rank) * layout.rows;
  const int block_rows = max(0, min(layout.rows, rows - first_row));
  const int choices = params.top_k + params.shared_experts;
  for (int local = warp; local < block_rows; local += threads / 32) {
    const int row = first_row + local;
    const Choice choice = ChooseExperts<kPerLane>(
        params, group_lanes, params.logits + static_cast<int64_t>(row) * params.experts,
        scores + warp * 32 * kPerLane);
    const int64_t at = static_cast<int64_t>(row) * choices + lane;
    if (lane < params.top_k) {
      routing.expert_ids[at] = choice.expert;
      routing.weights[at] = choice.weight;
      ids[local * params.top_k + lane] = static_cast<uint16_t>(choice.expert);
      atomicOr(&marks[choice.expert * layout.words + local / 32], 1u << local % 32);
    } else if (lane < choices) {
      routing.expert_ids[at] = params.experts + lane - params.top_k;
      routing.weights[at] = 1.0f;
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
    for (uint32_t other = 0; other < blocks; ++other) {
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
  for (int i = static_cast<int>(rank) * threads + thread; i < shared_tiles;
       i += static_cast<int>(blocks) * threads) {
    const int shared = i / tiles_each;
    const int done = i % tiles_each * params.tile_rows;
    routing.tiles[routed_tiles + i] = {params.experts + shared, routed_pairs + shared * rows + done,
                                       min(params.tile_rows, rows - done), 0};
  }
  for (int i = thread; i < block_rows * params.top_k; i += threads) {
    const int local = i / params.top_k;
    const int word = ids[i] * layout.words + local / 32;
    const int place = places[ids[i]] + prior[word] + __popc(marks[word] & ((1u << local % 32) - 1));
    routing.pairs[place] = (first_row + local) * choices + i % params.top_k;
  }
  for (int i = thread; i < block_rows * params.shared_experts; i += threads) {
    const int row = first_row + i / params.shared_experts;
    const int shared = i % params.shared_experts;
    routing.pairs[routed_pairs + shared * rows + row] = row * choices + params.top_k + shared;
  }
  if (blocks > 1) ClusterWait();  // the others may still be reading this block's counts
}

/// Lanes of a group, 0 where experts are not grouped.
int GroupLanes(const ExpertRouterParams& params) {
  if (params.num_groups == 1) return 0;
  return params.experts / params.num_groups / PerLane(params.experts);
}

void Check(const ExpertRouterParams& params, int blocks) {
  if (params.num_rows < 0) {
    RefuseArgument("RouteExperts: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.experts < 1 || params.experts > kMaxExperts) {
    RefuseArgument("RouteExperts: ", params.experts, " experts, it must be 1 to ", kMaxExperts);
  }
  if (params.shared_experts < 0 || params.top_k < 1 || params.top_k > params.experts ||
      params.top_k + params.shared_experts > kMaxChoices) {
    RefuseArgument("RouteExperts: top_k is ", params.top_k, " of ", params.experts, " experts and ",
                   params.shared_experts,
                   " shared ones: it must be 1 to the number of experts, and ", kMaxChoices,
                   " with the shared ones at most");
  }
  if (params.tile_rows < 1) {
    RefuseArgument("RouteExperts: tile_rows is ", params.tile_rows, ", it must be at least 1");
  }
  const int groups = params.num_groups;
  if (groups < 1 || groups > 32 || params.experts % groups != 0 || params.top_groups < 1 ||
      params.top_groups > groups || params.top_groups * (params.experts / groups) < params.top_k) {
    RefuseArgument(
        "RouteExperts: ", groups, " groups of ", params.experts, " experts, of which ",
        params.top_groups, " are chosen from for top_k ", params.top_k,
        ": there must be 1 to 32 equal groups, and those chosen from must have top_k experts");
  }
  const int per_lane = PerLane(params.experts);
  const int size = params.experts / groups;
  const int lanes = size / per_lane;
  if (groups > 1 && (size % per_lane != 0 || (lanes & (lanes - 1)) != 0)) {
    RefuseArgument("RouteExperts: groups of ", size, " experts; with ", params.experts,
                   " experts a group must have ", per_lane, " times a power of two");
  }
  if (MakeLayout(params, blocks).bytes + kFixedShared > kMaxShared) {
    RefuseArgument("RouteExperts: ", params.num_rows, " rows for ", params.experts,
                   " experts are too many for one launch");
  }
}

template <int kPerLane>
cudaError_t Launch(const ExpertRouterParams& params, const ExpertRouting& routing, int blocks,
                   cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(RouteKernel<kPerLane>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kMaxShared - kFixedShared));
  if (allowed != cudaSuccess) return allowed;
  const Layout layout = MakeLayout(params, blocks);
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
  return cudaLaunchKernelEx(&config, RouteKernel<kPerLane>, params, routing, layout,
                            GroupLanes(params));
}

}  // namespace

cudaError_t RouteExperts(const ExpertRouterParams& params, const ExpertRouting& routing,
                         cudaStream_t stream) {
  // Blocks change nothing but who has which rows.
  int blocks = 1;
  while (blocks < kMaxBlocks && blocks * 16 < params.num_rows) blocks *= 2;
  Check(params, blocks);
  switch (PerLane(params.experts)) {
    case 1:
      return Launch<1>(params, routing, blocks, stream);
    case 2:
      return Launch<2>(params, routing, blocks, stream);
    case 3:
      return Launch<3>(params, routing, blocks, stream);
    case 4:
      return Launch<4>(params, routing, blocks, stream);
    case 5:
      return Launch<5>(params, routing, blocks, stream);
    case 6:
      return Launch<6>(params, routing, blocks, stream);
    case 7:
      return Launch<7>(params, routing, blocks, stream);
    case 8:
      return Launch<8>(params, routing, blocks, stream);
    case 12:
      return Launch<12>(params, routing, blocks, stream);
    default:
      return Launch<16>(params, routing, blocks, stream);
  }
}

}  // namespace outrider::cuda
