// Host side of grouped-query attention: checks, workspace, tensor maps, launches.
#include <algorithm>

#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/gqa/gqa_plan_task.cuh"
#include "outrider/kernels/cuda/gqa/gqa_task.cuh"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"

namespace outrider::cuda {
namespace {

__global__ void __launch_bounds__(kGqaPlanThreads, 1) PlanGqaKernel(GqaPlanArguments args) {
  __shared__ GqaPlanShared shared;
  PlanGqa(args, shared);
}

template <typename Body>
__global__ void __launch_bounds__(Body::kThreads, Body::kBlocks)
    GqaKernel(const GqaKernelArguments args, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  RunGqa<Body>(args, &map, *reinterpret_cast<typename Body::Shared*>(memory));
}

int Groups(GqaBody body) { return body == GqaBody::kFewRows ? 1 : 2; }
int RowHeads(const GqaShape& shape) { return shape.heads / shape.kv_heads; }
int TileTokens(const GqaShape& shape) { return kGqaTileRows / RowHeads(shape); }

int Multiprocessors() {
  static const int count = [] {
    int device = 0;
    int multiprocessors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    return multiprocessors;
  }();
  return count;
}

/// Blocks that run at a time.
int Blocks(GqaBody body) { return Multiprocessors() * (body == GqaBody::kFewRows ? 2 : 1); }

GqaWorkspace Carve(const GqaLimits& limits, void* memory) {
  constexpr size_t kAlign = 256;
  const auto tiles =
      static_cast<size_t>(limits.max_tokens / TileTokens(limits.shape) + limits.max_requests + 1);
  const size_t units = limits.shape.window > 0 ? 0 : kMaxGqaUnits;
  GqaWorkspace workspace;
  auto* const base = static_cast<uint8_t*>(memory);
  size_t offset = 0;
  const auto take = [&](size_t bytes) {
    uint8_t* const at = base == nullptr ? nullptr : base + offset;
    offset += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  workspace.counters = reinterpret_cast<GqaCounters*>(take(sizeof(GqaCounters)));
  // A piece beyond a tile's first leaves a result.
  workspace.items = reinterpret_cast<GqaItem*>(take((tiles + units) * sizeof(GqaItem)));
  workspace.tile_cuts = reinterpret_cast<int*>(take(tiles * sizeof(int)));
  workspace.cut_tiles = reinterpret_cast<GqaItem*>(take(std::min(tiles, units) * sizeof(GqaItem)));
  workspace.arrived = reinterpret_cast<int*>(take(2 * units * sizeof(int)));
  workspace.stats = reinterpret_cast<float2*>(take(units * kGqaUnitRows * sizeof(float2)));
  workspace.outputs =
      reinterpret_cast<float*>(take(units * kGqaUnitRows * kGqaHeadDim * sizeof(float)));
  workspace.bytes = offset;
  return workspace;
}

void CheckShape(const GqaShape& shape) {
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0 || shape.heads <= 0 ||
      RowHeads(shape) > kGqaTileRows || shape.window < 0) {
    RefuseArgument("grouped-query attention: ", shape.heads, " heads over ", shape.kv_heads,
                   " key heads, window ", shape.window,
                   ": heads must be 1 to 64 times the key heads, the window not negative");
  }
}

void CheckRequests(const GqaParams& params, const GqaLimits& limits) {
  CheckShape(params.shape);
  const bool same_shape = params.shape.heads == limits.shape.heads &&
                          params.shape.kv_heads == limits.shape.kv_heads &&
                          params.shape.window == limits.shape.window;
  const GqaRequests& requests = params.requests;
  if (!same_shape || requests.count < 0 || requests.count > limits.max_requests ||
      limits.max_requests > kMostGqaRequests || requests.num_tokens < 0 ||
      requests.num_tokens > limits.max_tokens) {
    RefuseArgument("grouped-query attention: ", requests.count, " requests of ",
                   requests.num_tokens, " tokens, beyond the workspace's ", limits.max_requests,
                   " and ", limits.max_tokens, ", or of another shape");
  }
}

void CheckMemory(const GqaParams& params) {
  const bool cache_fits =
      params.block_size > 0 && params.block_size % 8 == 0 && params.block_stride % 16 == 0 &&
      params.num_blocks > 0 &&
      (params.cache_dtype == DType::kBF16 || params.cache_dtype == DType::kF8E4M3);
  if (!cache_fits) {
    RefuseArgument("grouped-query attention: a cache of ", params.num_blocks, " blocks of ",
                   params.block_size, " tokens, ", params.block_stride, " bytes apart, of ",
                   DTypeName(params.cache_dtype),
                   ": it must have blocks of a multiple of 8, a multiple of 16 bytes apart, of "
                   "bfloat16 or e4m3");
  }
  if (params.q_stride % 8 != 0 || params.output_stride % 8 != 0 || !(params.softmax_scale > 0.0F)) {
    RefuseArgument("grouped-query attention: strides ", params.q_stride, " and ",
                   params.output_stride, " must be multiples of 8, and the scale ",
                   params.softmax_scale, " above 0");
  }
}

int BoxRows(int block_size) {
  int rows = kGqaTileKeys;
  while (block_size % rows != 0) rows /= 2;
  return rows;
}

/// The cache as {128 bytes, keys of a block, heads of keys and values (bf16: halves), blocks}.
bool EncodeCache(CUtensorMap* map, const GqaParams& params) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  if (encode == nullptr) return false;
  const bool codes = params.cache_dtype == DType::kF8E4M3;
  const cuuint32_t columns = codes ? 128 : 64;
  const auto heads = static_cast<cuuint64_t>(2 * params.shape.kv_heads);
  const cuuint64_t groups = codes ? heads : 2 * heads;
  const cuuint64_t sizes[4] = {columns, static_cast<cuuint64_t>(params.block_size), groups,
                               static_cast<cuuint64_t>(params.num_blocks)};
  const cuuint64_t strides[3] = {groups * 128, 128, static_cast<cuuint64_t>(params.block_stride)};
  const cuuint32_t box[4] = {columns, static_cast<cuuint32_t>(BoxRows(params.block_size)), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  return encode(map, codes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                const_cast<void*>(params.cache), sizes, strides, box, element_strides,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename Body>
cudaError_t Launch(const GqaKernelArguments& args, const CUtensorMap& map, int blocks,
                   cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(typename Body::Shared);
  static_assert(kBytes <= (Body::kBlocks == 2 ? 115'712 : 232'448), "shared memory of a block");
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(GqaKernel<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(kBytes));
  });
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(GqaKernel<Body>, dim3(blocks), dim3(Body::kThreads), kBytes, stream, args,
                         map);
}

template <int kGroups, bool kCodes>
cudaError_t LaunchSplits(bool splits, const GqaKernelArguments& args, const CUtensorMap& map,
                         int blocks, cudaStream_t stream) {
  return splits ? Launch<GqaBlockForm<kGroups, kCodes, true>>(args, map, blocks, stream)
                : Launch<GqaBlockForm<kGroups, kCodes, false>>(args, map, blocks, stream);
}

}  // namespace

size_t GqaWorkspaceBytes(const GqaLimits& limits) {
  CheckShape(limits.shape);
  return Carve(limits, nullptr).bytes;
}

cudaError_t PlanGqaAttention(const GqaParams& params, const GqaLimits& limits, void* workspace,
                             cudaStream_t stream) {
  CheckRequests(params, limits);
  GqaPlanArguments args;
  args.workspace = Carve(limits, workspace);
  args.query_start_loc = params.requests.query_start_loc;
  args.seq_lens = params.requests.seq_lens;
  args.num_requests = params.requests.count;
  args.kv_heads = params.shape.kv_heads;
  args.window = params.shape.window;
  args.tile_tokens = TileTokens(params.shape) * Groups(params.body);
  args.row_heads = RowHeads(params.shape);
  args.blocks = Blocks(params.body);
  PlanGqaKernel<<<1, kGqaPlanThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t GqaAttention(const GqaParams& params, const GqaLimits& limits, void* workspace,
                         cudaStream_t stream) {
  CheckRequests(params, limits);
  CheckMemory(params);
  const GqaRequests& requests = params.requests;
  if (requests.count == 0 || requests.num_tokens == 0) return cudaSuccess;
  GqaKernelArguments args;
  args.workspace = Carve(limits, workspace);
  args.q = static_cast<const __nv_bfloat16*>(params.q);
  args.q_stride = params.q_stride;
  args.block_tables = requests.block_tables;
  args.block_table_stride = requests.block_table_stride;
  args.block_size = params.block_size;
  args.box_rows = BoxRows(params.block_size);
  args.kv_heads = params.shape.kv_heads;
  args.row_heads = RowHeads(params.shape);
  args.tile_tokens = TileTokens(params.shape);
  args.window = params.shape.window;
  const int tile_tokens = args.tile_tokens * Groups(params.body);
  args.keys_again = requests.num_tokens > requests.count * tile_tokens;
  args.score_scale = params.softmax_scale * 1.4426950408889634F;
  args.gates = static_cast<const __nv_bfloat16*>(params.gates);
  args.gate_stride = params.gate_stride;
  args.output = static_cast<__nv_bfloat16*>(params.output);
  args.output_stride = params.output_stride;
  CUtensorMap map;
  if (!EncodeCache(&map, params)) return cudaErrorInvalidValue;
  const bool splits = params.shape.window == 0;
  const bool codes = params.cache_dtype == DType::kF8E4M3;
  // With few rows there may be fewer items than blocks; each block finds that out for itself.
  const int blocks = Blocks(params.body);
  if (params.body == GqaBody::kFewRows) {
    return codes ? LaunchSplits<1, true>(splits, args, map, blocks, stream)
                 : LaunchSplits<1, false>(splits, args, map, blocks, stream);
  }
  return codes ? LaunchSplits<2, true>(splits, args, map, blocks, stream)
               : LaunchSplits<2, false>(splits, args, map, blocks, stream);
}

}  // namespace outrider::cuda
