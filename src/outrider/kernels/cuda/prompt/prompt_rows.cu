// Copies of 16 bytes a thread (cache entries of e4m3: 8), and a warp per head and row to rotate.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/prompt/prompt_rows.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLatent = 512;
constexpr int kRotary = 64;
constexpr int kChunks = (kLatent + kRotary) / 8;  // of eight values, of an entry

/// Eight e4m3 codes times `scale`, as bf16.
__device__ __forceinline__ uint4 WidenEight(uint2 codes, float scale) {
  const uint32_t words[2] = {codes.x, codes.y};
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> i % 2 * 16 & 0xFFFF);
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    out[i] = PackBf16(__fmul_rn(values.x, scale), __fmul_rn(values.y, scale));
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

/// The prompt that has this row: the last that begins at it or before, empty ones left out.
__device__ __forceinline__ int PromptOf(const int32_t* start_loc, int num_prompts, int row) {
  int first = 0;
  int end = num_prompts;
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    if (start_loc[middle] <= row) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return first;
}

template <bool kE4m3>
__global__ void __launch_bounds__(kThreads) GatherLatentKernel(const LatentGatherParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int row = static_cast<int>(at / kChunks);
  const int chunk = static_cast<int>(at % kChunks);
  if (row >= params.num_rows) return;
  const int prompt = PromptOf(params.key_start_loc, params.num_prompts, row);
  const int position = row - params.key_start_loc[prompt];
  const int64_t page =
      params.block_tables[static_cast<int64_t>(prompt) * params.block_table_stride +
                          position / params.page_size];
  const auto* const entries = static_cast<const uint8_t*>(params.cache) + page * params.page_stride;
  const int at_chunk = position % params.page_size * kChunks + chunk;
  uint4 values;
  if constexpr (kE4m3) {
    values = WidenEight(reinterpret_cast<const uint2*>(entries)[at_chunk], params.cache_scale);
  } else {
    values = reinterpret_cast<const uint4*>(entries)[at_chunk];
  }
  if (chunk < kLatent / 8) {
    static_cast<uint4*>(params.latent)[static_cast<int64_t>(row) * (kLatent / 8) + chunk] = values;
  } else {
    static_cast<uint4*>(
        params.rope)[static_cast<int64_t>(row) * (kRotary / 8) + chunk - kLatent / 8] = values;
  }
}

__global__ void __launch_bounds__(kThreads) PromptKeyKernel(const PromptKeyParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int key_chunks = (params.nope + kRotary) / 8;
  const int kv_chunks = (params.nope + params.value) / 8;
  const int nope_chunks = params.nope / 8;
  const int row = static_cast<int>(blockIdx.x);
  auto* kv = static_cast<uint4*>(params.kv) + static_cast<int64_t>(row) * params.heads * kv_chunks;
  auto* k = static_cast<uint4*>(params.k) + static_cast<int64_t>(row) * params.heads * key_chunks;
  const bool exists = row < params.num_rows;
  const auto* rope = static_cast<const uint4*>(params.rope) + row * (kRotary / 8);
  for (int i = static_cast<int>(threadIdx.x); i < params.heads * key_chunks; i += kThreads) {
    const int head = i / key_chunks;
    const int chunk = i % key_chunks;
    uint4 values = make_uint4(0, 0, 0, 0);
    if (exists) {
      values = chunk < nope_chunks ? kv[head * kv_chunks + chunk] : rope[chunk - nope_chunks];
    }
    k[i] = values;
  }
  if (exists) return;
  for (int i = static_cast<int>(threadIdx.x); i < params.heads * kv_chunks; i += kThreads) {
    kv[i] = make_uint4(0, 0, 0, 0);
  }
}

__global__ void __launch_bounds__(kThreads) PromptOffsetKernel(const PromptOffsetParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int plan = params.plan_prompts;
  for (int i = static_cast<int>(threadIdx.x); i <= plan; i += kThreads) {
    const int at = min(i, params.num_prompts);
    const int64_t query = params.query_start_loc[at];
    const int64_t key = params.key_start_loc[at];
    params.offsets[i] = query * params.q_stride;
    params.offsets[plan + 1 + i] = key * params.k_stride;
    params.offsets[2 * (plan + 1) + i] = key * params.v_stride;
    params.offsets[3 * (plan + 1) + i] = query * params.out_stride;
    if (i == plan) continue;
    const int next = min(i + 1, params.num_prompts);
    params.lengths[i] = params.query_start_loc[next] - static_cast<int32_t>(query);
    params.lengths[plan + i] = params.key_start_loc[next] - static_cast<int32_t>(key);
  }
}

__global__ void __launch_bounds__(kThreads) RotateKernel(const RotationParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int row = static_cast<int>(at / params.heads);
  if (row >= params.num_rows) return;
  const int pair = threadIdx.x % 32;
  const RotaryTable& rotary = params.rotary;
  const int first = rotary.interleaved ? 2 * pair : pair;
  const int second = rotary.interleaved ? 2 * pair + 1 : pair + 32;
  auto* x = static_cast<__nv_bfloat16*>(params.x) + row * params.row_stride +
            at % params.heads * params.width + params.offset;
  const int64_t entry = rotary.positions != nullptr ? rotary.positions[row] : row;
  const float cos = rotary.cos[entry * 32 + pair];
  const float sin = rotary.sin[entry * 32 + pair];
  const float a = __bfloat162float(x[first]);
  const float b = __bfloat162float(x[second]);
  x[first] = __float2bfloat16_rn(__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)));
  x[second] = __float2bfloat16_rn(__fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos)));
}

}  // namespace

cudaError_t GatherLatentRows(const LatentGatherParams& given, cudaStream_t stream) {
  LatentGatherParams params = given;
  const bool e4m3 = params.cache_type == MlaCacheType::kE4m3;
  const int64_t page_bytes = int64_t{params.page_size} * kChunks * (e4m3 ? 8 : 16);
  if (params.page_stride == 0) params.page_stride = page_bytes;
  if (params.page_stride < page_bytes || params.page_stride % 16 != 0) {
    RefuseArgument("GatherLatentRows: pages ", params.page_stride, " bytes apart: it must be ",
                   page_bytes, " or more, a multiple of 16");
  }
  if (params.num_prompts <= 0 || params.num_rows < 0 || params.page_size <= 0 ||
      params.block_table_stride < 0 || !(params.cache_scale > 0.0F)) {
    RefuseArgument("GatherLatentRows: ", params.num_rows, " rows of ", params.num_prompts,
                   " prompts, tables of ", params.block_table_stride, " pages of ",
                   params.page_size, ", cache_scale ", params.cache_scale,
                   ": prompts, pages and scale must be above 0, the rest not negative");
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int64_t chunks = static_cast<int64_t>(params.num_rows) * kChunks;
  const dim3 blocks(static_cast<unsigned>((chunks + kThreads - 1) / kThreads));
  return e4m3 ? LaunchDependent(GatherLatentKernel<true>, blocks, dim3(kThreads), 0, stream, params)
              : LaunchDependent(GatherLatentKernel<false>, blocks, dim3(kThreads), 0, stream,
                                params);
}

cudaError_t MakePromptKeys(const PromptKeyParams& params, cudaStream_t stream) {
  if (params.num_rows < 0 || params.padded_rows < params.num_rows) {
    RefuseArgument("MakePromptKeys: ", params.num_rows, " rows, padded to ", params.padded_rows,
                   ": they must not be negative, nor fewer with padding");
  }
  if (params.heads <= 0 || params.nope <= 0 || params.nope % 8 != 0 || params.value <= 0 ||
      params.value % 8 != 0) {
    RefuseArgument("MakePromptKeys: ", params.heads, " heads of ", params.nope, " and ",
                   params.value, ": widths must be multiples of 8");
  }
  if (params.padded_rows == 0) return cudaSuccess;
  return LaunchDependent(PromptKeyKernel, dim3(params.padded_rows), dim3(kThreads), 0, stream,
                         params);
}

cudaError_t MakePromptOffsets(const PromptOffsetParams& params, cudaStream_t stream) {
  if (params.num_prompts <= 0 || params.plan_prompts < params.num_prompts) {
    RefuseArgument("MakePromptOffsets: ", params.num_prompts, " prompts for a plan of ",
                   params.plan_prompts, ": there must be one or more, and at most the plan's");
  }
  return LaunchDependent(PromptOffsetKernel, dim3(1), dim3(kThreads), 0, stream, params);
}

cudaError_t RotateRows(const RotationParams& given, cudaStream_t stream) {
  RotationParams params = given;
  if (params.row_stride == 0) params.row_stride = int64_t{params.heads} * params.width;
  if (params.num_rows < 0 || params.heads <= 0 || params.offset < 0 || params.offset % 2 != 0 ||
      params.offset + kRotary > params.width) {
    RefuseArgument("RotateRows: ", params.num_rows, " rows of ", params.heads, " heads of ",
                   params.width, " from column ", params.offset, " on: there must be ", kRotary,
                   " columns from an even one on");
  }
  if (params.row_stride < int64_t{params.heads} * params.width) {
    RefuseArgument("RotateRows: rows ", params.row_stride, " elements apart: it must be ",
                   int64_t{params.heads} * params.width, " or more");
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int64_t threads = static_cast<int64_t>(params.num_rows) * params.heads * 32;
  return LaunchDependent(RotateKernel,
                         dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                         dim3(kThreads), 0, stream, params);
}

}  // namespace outrider::cuda
