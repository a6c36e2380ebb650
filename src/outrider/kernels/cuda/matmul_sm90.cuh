// Matrix products. Weights are on wgmma's M and rows of x on its N, so that few rows waste little:
// a block has 64 or 128 rows of the weight and up to 256 rows of x. One warp loads; each warpgroup
// sums 64 rows of the weight. On Hopper an output's bits depend on its chain of slices alone
// (tensor_core_chain_test), and chains are fixed for a weight: so the bodies differ in speed only.
//
// Few rows: the tiles are over rows of the weight; where they are too few for the multiprocessors,
// the blocks of a cluster take a segment of K each and add their sums through distributed shared
// memory. Many rows: a block goes through all segments and adds them up itself.
#pragma once

#include "outrider/kernels/cuda/matmul_loads_sm90.cuh"
#include "outrider/kernels/cuda/matmul_results_sm90.cuh"
#include "outrider/kernels/cuda/matmul_sums_sm90.cuh"

namespace outrider::cuda {

template <typename Body>
__device__ void MultiplyTiles(const MatMulArguments& args, typename Body::Shared& shared,
                              int first_tile, int tile_step, int segment) {
  constexpr int kCount = Body::kTokens / 2;
  const int group = threadIdx.x / 128;
  const bool routed = args.tiles != nullptr;
  if (routed) WaitForPriorGrid();
  const int tiles = CountTiles<Body>(args);
  StageCursor<Body> cursor;
  for (int index = first_tile; index < tiles; index += tile_step) {
    const MatMulTile tile = FindTile<Body>(args, index);
    float sums[kCount];
    if constexpr (Body::kSegmentsInside) {
      float total[kCount];
      for (int first = 0; first < args.units; first += args.segment_units) {
        SumSegment<Body>(shared, group, min(args.segment_units, args.units - first), cursor, sums);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          total[i] = first == 0 ? sums[i] : __fadd_rn(total[i], sums[i]);
        }
      }
      if (!routed) WaitForPriorGrid();
      StoreResults<Body>(args, shared, tile, group, 1, 0, total);
    } else {
      const int first = segment * args.segment_units;
      SumSegment<Body>(shared, group, min(args.segment_units, args.units - first), cursor, sums);
      if (!routed) WaitForPriorGrid();
      StoreResults<Body>(args, shared, tile, group, args.segments, segment, sums);
    }
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
    for (int stage = 0; stage < Body::kStages; ++stage) {
      BarrierInit(&shared.full[stage], 1);
      BarrierInit(&shared.empty[stage], Body::kWarpgroups * 4 * kWarpArrivals);
    }
    BarrierInitFence();
  }
  __syncthreads();
  LaunchDependents();
  const int blocks = Body::kSegmentsInside ? 1 : args.segments;  // of a tile
  const int tile = blockIdx.x / blocks;
  const int step = gridDim.x / blocks;
  const int segment = blockIdx.x % blocks;
  if (threadIdx.x / 128 == Body::kWarpgroups) {
    LoadTiles<Body>(args, shared, tile, step, segment);
  } else {
    MultiplyTiles<Body>(args, shared, tile, step, segment);
  }
}

template <typename Body>
cudaError_t LaunchMatMulBody(const MatMulArguments& args, int blocks, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(MatMulKernel<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(Body::kSharedBytes));
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(Body::kThreads);
  config.dynamicSmemBytes = Body::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(args.segments);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = !Body::kSegmentsInside && args.segments > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, MatMulKernel<Body>, args);
}

}  // namespace outrider::cuda
