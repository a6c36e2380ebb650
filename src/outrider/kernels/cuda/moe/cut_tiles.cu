// A block per part: it counts the tiles before and in its part, then copies its own.
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/moe/cut_tiles.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) CutTilesKernel(const CutTilesParams params) {
  __shared__ int before;
  __shared__ int own;
  const int part = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = part == 0 ? 0 : params.ends[part - 1];
  const int64_t end = params.ends[part];
  const int count = *params.routing.num_tiles;
  if (thread == 0) before = own = 0;
  __syncthreads();
  int lower = 0;
  int within = 0;
  for (int i = thread; i < count; i += kThreads) {
    const ExpertTile tile = params.routing.tiles[i];
    const int64_t place = tile.first_place + (params.by_last_place ? tile.num_rows - 1 : 0);
    if (place < begin) {
      ++lower;
    } else if (place < end) {
      ++within;
    }
  }
  atomicAdd(&before, lower);
  atomicAdd(&own, within);
  __syncthreads();
  // Tiles are in order of place, so those of a part follow each other.
  for (int i = thread; i < own; i += kThreads) {
    params.tiles[part * params.room + i] = params.routing.tiles[before + i];
  }
  if (thread == 0) params.counts[part] = own;
}

}  // namespace

cudaError_t CutTiles(const CutTilesParams& params, cudaStream_t stream) {
  if (params.parts < 1 || params.parts > kMostTileParts) {
    RefuseArgument("CutTiles: ", params.parts, " parts: 1 to ", kMostTileParts, " are possible");
  }
  CutTilesKernel<<<static_cast<unsigned>(params.parts), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
