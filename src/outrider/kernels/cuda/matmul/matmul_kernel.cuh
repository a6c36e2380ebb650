// Matrix products. Weights are on wgmma's M and rows of x on its N, so that few rows waste little:
// a block has 64, 128 or 192 rows of the weight and up to 256 rows of x. One warp loads; each
// warpgroup sums 64 rows of the weight. On Hopper an output's bits depend on its chain of slices
// alone (tensor_core_chain_test), and chains are fixed for a weight: so the bodies differ in speed
// only.
//
// Where tiles are few for the multiprocessors, K is cut. With few rows the blocks of a cluster take
// a segment each and add their sums through distributed shared memory; with many rows a block goes
// through all segments. Blocks that have the same rows of x may load them for each other, as else,
// with 32 rows or more, they would take more of L2's bandwidth than the weights.
#pragma once

#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/matmul/matmul_loads.cuh"
#include "outrider/kernels/cuda/matmul/matmul_results.cuh"
#include "outrider/kernels/cuda/matmul/matmul_sums.cuh"

namespace outrider::cuda {

template <typename Body>
__device__ void MultiplyTiles(const MatMulArguments& args, typename Body::Shared& shared,
                              const ClusterPlace& place) {
  const int group = threadIdx.x / 128;
  const bool routed = args.tiles != nullptr;
  if (routed && !args.routing_settled) WaitForPriorGrid();
  const int tiles = CountTiles(args);
  StageCursor<Body> cursor;
  cursor.shares = args.shares;
  cursor.first_rank = place.first_rank;
  if (args.shares > 1) ClusterWait();
  // Units of K that this block has.
  const int units = min(args.segment_units, args.units - place.segment * args.segment_units);
  // A list's tile is asked for while the one before is summed.
  constexpr bool kAhead = Body::kForm == SegmentForm::kOne && IsE2m1(Body::kFormat);
  const auto find = [&](int index) { return FindTile<Body>(args, index, place.share); };
  MatMulTile next = {};
  if (kAhead && place.cluster < tiles) next = find(place.cluster);
  for (int index = place.cluster; index < tiles; index += place.clusters) {
    const MatMulTile tile = kAhead ? next : find(index);
    if (kAhead && index + place.clusters < tiles) next = find(index + place.clusters);
    if (tile.num_rows <= 0) continue;
    const RowNumbers<Body> numbers(args, tile);
    int held = 0;  // the last stage, released after the results
    float sums[Body::kTokens / 2];
    SumTile<Body>(args, shared, group, units, tile, cursor, held, sums);
    WaitForPriorGrid();
    StoreResults<Body>(args, shared, held, tile, place, group, numbers, sums);
    if constexpr (Body::kForm == SegmentForm::kCluster) break;  // its only tile
    // The copy engine may write where this thread has put results.
    ProxyFence();
    cursor.Release(shared, held);
  }
}

template <typename Body>
__global__ void __launch_bounds__(Body::kThreads, Body::kBlocksPerSm)
    MatMulKernel(const __grid_constant__ MatMulArguments args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Body::Shared*>(memory);
  if (threadIdx.x == 0) {
    if (SharedAddress(memory) % 1024 != 0) __trap();
    PrefetchTensorMap(&args.x_tiles);
    PrefetchTensorMap(&args.weights);
    for (int stage = 0; stage < Body::kStages; ++stage) {
      BarrierInit(&shared.full[stage], 1);
      BarrierInit(&shared.empty[stage], args.shares * Body::kWarpgroups * 4 * kWarpArrivals);
    }
    BarrierInitFence();
  }
  __syncthreads();
  // Who loads for this block waits for this; its own weights need not.
  if (args.shares > 1) ClusterArriveRelaxed();
  if (args.tiles == nullptr) LaunchDependents();
  const ClusterPlace place = FindPlace<Body>(args);
  if (threadIdx.x / 128 == Body::kWarpgroups) {
    if constexpr (Body::kGivesRegisters) LowerRegisters<Body::kLoaderRegisters>();
    if (threadIdx.x / 32 == Body::kWarpgroups * 4) {
      LoadTiles<Body>(args, shared, place);
    } else if (args.shares > 1) {
      ClusterWait();
    }
  } else {
    if constexpr (Body::kGivesRegisters) RaiseRegisters<Body::kRegisters>();
    MultiplyTiles<Body>(args, shared, place);
    // Others of the cluster may still read this block's sums. Threads that have ended count as
    // there.
    if constexpr (Body::kForm == SegmentForm::kCluster) {
      ClusterArriveRelaxed();
      ClusterWait();
    }
  }
}

template <typename Body>
cudaError_t LaunchMatMulBody(const MatMulArguments& args, const MatMulLaunch& launch,
                             cudaStream_t stream) {
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(MatMulKernel<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(std::max(Body::kSharedBytes, kTwoPerSmBytes)));
  });
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(Body::kThreads);
  config.dynamicSmemBytes =
      launch.two_per_sm ? std::max(Body::kSharedBytes, kTwoPerSmBytes) : Body::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  const int cluster = args.shares * args.cluster_segments;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, MatMulKernel<Body>, args);
}

}  // namespace outrider::cuda
