#include "outrider/kernels/cuda/hopper/cluster_launch.h"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/multiprocessors.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "outrider/kernels/cuda/kda/kda_attention_task.cuh"

namespace outrider::cuda {
namespace {

constexpr int kMost = 65535;  // of a grid's second dimension

// Rows t and 15 - t of a block of tokens have 32 sums together: of row t t with keys, t + 1 with
// queries. Those of the later row come first.
constexpr int kPairs = kStateBlock / 2;

/// Where the sum of row t with key (part 0) or query (part 1) j stands, among those of its pair.
__device__ __forceinline__ int PlaceInPair(int t, int part, int j) {
  return (t < kPairs ? 2 * (kStateBlock - 1 - t) + 1 : 0) + part * t + j;
}

/// A head and 16 rows: what the rows of the whole block of tokens that begins in them, if one does,
/// have to do with each other.
__global__ void __launch_bounds__(kKdaThreads)
    KdaTokenBlocksKernel(const __grid_constant__ KdaAttentionParams params) {
  __shared__ KdaParts parts[kPairs];
  LaunchDependents();
  WaitForPriorGrid();
  const KdaRowsParams& rows = params.rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kStateBlock;
  bool begins = false;
  bool replaces = false;
  const int number = lane < kStateBlock ? rows.step.row_requests[first + lane] : -1;
  if (number >= 0) {
    const KdaRequest request = rows.step.requests[number];
    const int position = request.context + (first + lane - request.first_row);
    begins = position % kStateBlock == 0 && IsWhole(request, position);
    replaces = begins && KeepsNoRow(request, position);
  }
  const unsigned begin = __ballot_sync(~0u, begins);
  if (begin == 0) return;  // all threads alike
  replaces = __any_sync(~0u, replaces);
  const int64_t row = first + __ffs(static_cast<int>(begin)) - 1;
  KdaTokenBlock& to = params.blocks[NumberOfWhole(row, rows.heads, head)];
  const int64_t column = int64_t{head} * kKdaDim + thread;
  const int64_t width = int64_t{rows.heads} * kKdaDim;
  float* const q_rows = rows.q_out + row * width + column;
  float* const k_rows = rows.k_out + row * width + column;
  float* const decay_rows = rows.decay + row * rows.decay_stride + column;
  float q[kStateBlock];
  float k[kStateBlock];
  float decay[kStateBlock];
#pragma unroll
  for (int t = 0; t < kStateBlock; ++t) {
    q[t] = q_rows[t * width];
    k[t] = k_rows[t * width];
    decay[t] = decay_rows[t * rows.decay_stride];
  }
  KdaDecays decays;
  float keys[kPairs][kPairs];  // K_tj of the earlier rows
#pragma unroll
  for (int t = 0; t < kStateBlock; ++t) {
    decays.Take(t, k[t], decay[t]);
    if (replaces) {
      q_rows[t * width] = __fmul_rn(q[t], decays.product);
      k_rows[t * width] = __fmul_rn(k[t], decays.product);
    }
    if (t < kPairs) {
#pragma unroll
      for (int j = 0; j <= t; ++j) keys[t][j] = decays.keys[j];
      continue;
    }
    const int earlier = kStateBlock - 1 - t;
    float x[32];
#pragma unroll
    for (int j = 0; j <= t; ++j) {
      if (j < t) x[PlaceInPair(t, 0, j)] = __fmul_rn(k[t], decays.keys[j]);
      x[PlaceInPair(t, 1, j)] = __fmul_rn(q[t], decays.keys[j]);
    }
#pragma unroll
    for (int j = 0; j <= earlier; ++j) {
      if (j < earlier) x[PlaceInPair(earlier, 0, j)] = __fmul_rn(k[earlier], keys[earlier][j]);
      x[PlaceInPair(earlier, 1, j)] = __fmul_rn(q[earlier], keys[earlier][j]);
    }
    ScatterSums<32, 16, 1>(x, lane);
    parts[t - kPairs][thread / 32][lane] = x[0];
  }
  if (replaces) {
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) decay_rows[j * rows.decay_stride] = decays.keys[j];
  }
  to.product[thread] = decays.product;
  if (thread < kStateBlock) {
    to.write[thread] = Sigmoid(params.write[(row + thread) * params.write_stride + head]);
  }
  __syncthreads();
  for (int i = thread; i < 2 * kStateBlock * kStateBlock; i += kKdaThreads) {
    const int part = i / (kStateBlock * kStateBlock);
    const int t = i / kStateBlock % kStateBlock;
    const int j = i % kStateBlock;
    const int pair = t < kPairs ? kPairs - 1 - t : t - kPairs;
    (part == 0 ? to.keys : to.queries)[t][j] =
        j < t + part ? AddWarps(parts[pair], PlaceInPair(t, part, j)) : 0.0F;
  }
}

/// The requests that have many rows, or those that have not.
template <bool kManyRows>
__global__ void __launch_bounds__(kKdaThreads, 2)
    KdaAttentionKernel(const __grid_constant__ KdaAttentionParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  LaunchDependents();
  KdaChannel channel = {};
  if constexpr (!kManyRows) channel = LoadChannel(params.rows, static_cast<int>(blockIdx.x));
  WaitForPriorGrid();
  const int num_rows = params.rows.step.requests[blockIdx.y].num_rows;
  if (num_rows == 0 || kManyRows != (num_rows > kKdaFewRows)) return;
  KdaTask<kManyRows>(params, *reinterpret_cast<KdaShared*>(memory), channel).Run();
}

/// Shared memory that leaves no room for a second block on a multiprocessor.
constexpr size_t kOnePerSmBytes = 120 * 1024;
static_assert(kOnePerSmBytes >= sizeof(KdaShared));

template <bool kManyRows>
cudaError_t LaunchPass(const KdaAttentionParams& params, cudaStream_t stream) {
  static OncePerDevice once;
  const cudaError_t error = once.Call([] {
    return cudaFuncSetAttribute(KdaAttentionKernel<kManyRows>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(kOnePerSmBytes));
  });
  if (error != cudaSuccess) return error;
  // Blocks start where the kernel before leaves room: two on a multiprocessor, others idle.
  constexpr int kParts = KdaTask<kManyRows>::kParts;
  const dim3 grid(static_cast<unsigned>(params.rows.heads * kParts),
                  static_cast<unsigned>(params.rows.step.num_requests));
  const size_t bytes =
      int64_t{grid.x} * grid.y <= NumMultiprocessors() ? kOnePerSmBytes : sizeof(KdaShared);
  if constexpr (kParts == 1) {
    return LaunchDependent(KdaAttentionKernel<kManyRows>, grid, dim3(kKdaThreads), bytes, stream,
                           params);
  } else {
    return LaunchClusters(KdaAttentionKernel<kManyRows>, kParts, grid, dim3(kKdaThreads), bytes,
                          stream, params);
  }
}

void Check(const KdaAttentionParams& params) {
  const KdaRowsParams& rows = params.rows;
  const KdaStep& step = rows.step;
  if (step.num_rows < 0 || step.num_requests < 0 || step.num_requests > kMost) {
    RefuseArgument("KdaAttention: ", step.num_rows, " rows of ", step.num_requests,
                   " requests: rows must not be negative, requests 0 to ", kMost);
  }
  if (rows.heads < 1 || rows.heads > kMost) {
    RefuseArgument("KdaAttention: heads is ", rows.heads, ", it must be 1 to ", kMost);
  }
  const int64_t width = int64_t{rows.heads} * kKdaDim;
  if (rows.decay_stride < width || rows.decay_stride % 4 != 0) {
    RefuseArgument("KdaAttention: decay_stride is ", rows.decay_stride,
                   ", it must be a multiple of 4 that is at least ", width);
  }
  if (rows.stride < width || params.out_stride < width) {
    RefuseArgument("KdaAttention: stride is ", rows.stride, ", out_stride ", params.out_stride,
                   ", they must be at least ", width);
  }
  if (params.write_stride < rows.heads) {
    RefuseArgument("KdaAttention: write_stride is ", params.write_stride, ", it must be at least ",
                   rows.heads);
  }
  constexpr int64_t kLeastPage = int64_t{kKdaRowNumbers} * int64_t{sizeof(float)};
  if (rows.memory.page_bytes < kLeastPage || rows.memory.page_bytes % 16 != 0) {
    RefuseArgument("KdaAttention: page_bytes is ", rows.memory.page_bytes,
                   ", it must be a multiple of 16 that is at least ", kLeastPage);
  }
  if (step.has_many_rows && params.blocks == nullptr) {
    RefuseArgument("KdaAttention: a request has many rows, but there is no memory for blocks");
  }
}

}  // namespace

cudaError_t KdaAttention(const KdaAttentionParams& params, cudaStream_t stream) {
  Check(params);
  if (params.rows.step.num_rows == 0 || params.rows.step.num_requests == 0) return cudaSuccess;
  const int sixteens = params.rows.step.num_rows / kStateBlock;
  if (params.rows.step.has_many_rows) {
    if (sixteens > 0) {
      const cudaError_t error = LaunchDependent(
          KdaTokenBlocksKernel,
          dim3(static_cast<unsigned>(sixteens), static_cast<unsigned>(params.rows.heads)),
          dim3(kKdaThreads), 0, stream, params);
      if (error != cudaSuccess) return error;
    }
    const cudaError_t error = LaunchPass</*kManyRows=*/true>(params, stream);
    if (error != cudaSuccess) return error;
  }
  return LaunchPass</*kManyRows=*/false>(params, stream);
}

}  // namespace outrider::cuda
