// Host side of the MLA decode kernel: checks, workspace, tensor maps, launches.
#include <algorithm>
#include <bit>
#include <limits>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode_bf16.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_combine.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_host.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_plan.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab.cuh"

namespace outrider::cuda {
namespace {

int ElementBytes(const MlaDecodeParams& params) {
  return params.cache_type == MlaCacheType::kBf16 ? 2 : 1;
}

int64_t PageBytes(const MlaDecodeParams& params) {
  return int64_t{params.page_size} * kMlaKeyDim * ElementBytes(params);
}

MlaSplits SplitsOf(const MlaDecodeParams& params) {
  return params.splits.base == 0 ? DefaultMlaSplits(params.heads) : params.splits;
}

bool Valid(const MlaDecodeParams& params, const MlaDecodeLimits& limits) {
  const MlaSplits splits = SplitsOf(params);
  const bool page_ok = params.page_size == 16 || params.page_size == 32 || params.page_size == 64 ||
                       params.page_size == 256;
  const bool stride_ok = (params.page_stride == 0 || (params.page_stride >= PageBytes(params) &&
                                                      params.page_stride % 16 == 0)) &&
                         params.num_blocks <= std::numeric_limits<int>::max() >> kMlaGroupBits;
  const bool splits_ok =
      splits.base >= 128 && std::has_single_bit(static_cast<unsigned>(splits.base)) &&
      splits.end0 >= 0 && splits.end1 >= splits.end0 && splits.end0 % splits.base == 0 &&
      (splits.end1 - splits.end0) % (2 * splits.base) == 0;
  return page_ok && stride_ok && splits_ok && params.heads == limits.heads && params.heads >= 1 &&
         params.heads <= 128 && params.num_requests >= 0 &&
         params.num_requests <= limits.max_requests && limits.max_requests <= kMaxMlaRequests &&
         params.num_tokens >= 0 && params.num_tokens <= limits.max_tokens &&
         limits.max_seq_len <= 1 << 20 && params.softmax_scale > 0.0f && params.cache_scale > 0.0f;
}

/// The cache as {columns, 8 keys, column groups, page_size / 8, pages}. Boxes lie in one page:
/// between pages there may be anything.
bool EncodeKeyMap(CUtensorMap* map, const MlaDecodeParams& params, int columns, int column_groups,
                  int key_groups) {
  if (Encoder() == nullptr) return false;
  const bool bf16 = params.cache_type == MlaCacheType::kBf16;
  const auto element = static_cast<cuuint64_t>(ElementBytes(params));
  const auto group_columns = static_cast<cuuint64_t>(columns);
  const cuuint64_t sizes[5] = {group_columns, 8, kMlaKeyDim / group_columns,
                               static_cast<cuuint64_t>(params.page_size / 8),
                               static_cast<cuuint64_t>(params.num_blocks)};
  const int64_t stride = params.page_stride == 0 ? PageBytes(params) : params.page_stride;
  const cuuint64_t strides[4] = {kMlaKeyDim * element, group_columns * element,
                                 kMlaKeyDim * element * 8, static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[5] = {static_cast<cuuint32_t>(columns), 8,
                             static_cast<cuuint32_t>(column_groups),
                             static_cast<cuuint32_t>(key_groups), 1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  // L2 asks memory for 128 bytes at a time, as EncodeSwizzledMap.
  return Encoder()(map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 5,
                   const_cast<void*>(params.cache), sizes, strides, box, element_strides,
                   CU_TENSOR_MAP_INTERLEAVE_NONE,
                   group_columns * element == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                  : CU_TENSOR_MAP_SWIZZLE_64B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <bool kSharedTiles>
cudaError_t LaunchBf16(const MlaKernelArguments& args, const MlaDecodeParams& params,
                       cudaStream_t stream) {
  static_assert(sizeof(MlaShared) <= 232448, "one block per multiprocessor has 227 KB");
  static OncePerDevice once;
  const cudaError_t allowed =
      once.Call([&] { return AllowShared(DecodeMlaBf16<kSharedTiles>, sizeof(MlaShared)); });
  if (allowed != cudaSuccess) return allowed;
  MlaTensorMaps maps;
  const uint64_t query_rows = static_cast<uint64_t>(params.num_tokens) * params.heads;
  const int box_groups = std::min(params.page_size, kMlaTileKeys) / 8;
  if (!EncodeMlaQueryMap(&maps.q, params.q, query_rows) ||
      !EncodeKeyMap(&maps.kv_half, params, 64, 4, std::min(box_groups, 4)) ||
      !EncodeKeyMap(&maps.kv_rotary, params, 64, 1, box_groups)) {
    return cudaErrorInvalidValue;
  }
  return LaunchDependent(DecodeMlaBf16<kSharedTiles>, MlaBlocks(), kMlaThreads, sizeof(MlaShared),
                         stream, args, maps);
}

/// Rows of a tile: part of the schedule, not of the arithmetic.
int TileRows(const MlaDecodeParams& params) {
  if (params.cache_type == MlaCacheType::kBf16) return kMlaTileRows;
  return params.heads <= 16 && params.num_tokens <= params.num_requests ? 16 : 32;
}

/// Whether two items may share a tile: bf16, with more tiles than blocks.
bool SharedTiles(const MlaDecodeParams& params) {
  const int tiles = params.num_tokens * params.heads / kMlaTileRows + params.num_requests;
  return params.cache_type == MlaCacheType::kBf16 && tiles > MlaBlocks();
}

/// Lanes of a warp that plans a request. With more requests than blocks few tiles are cut, which
/// takes a whole warp.
int PlanLanes(const MlaDecodeParams& params) {
  const int tiles = (params.heads + TileRows(params) - 1) / TileRows(params);
  return params.one_token_each && params.num_requests > MlaBlocks() ? tiles : 32;
}

template <int kRows>
cudaError_t LaunchE4m3(const MlaKernelArguments& args, const MlaDecodeParams& params,
                       cudaStream_t stream) {
  constexpr size_t kSharedBytes = sizeof(MlaSwapAbShared<kRows>);
  static_assert(kSharedBytes <= 232448, "one block per multiprocessor has 227 KB");
  static OncePerDevice once;
  const cudaError_t allowed =
      once.Call([&] { return AllowShared(DecodeMlaF8SwapAb<kRows>, kSharedBytes); });
  if (allowed != cudaSuccess) return allowed;
  MlaSwapAbMaps maps;
  maps.q = static_cast<const __nv_bfloat16*>(params.q);
  const int box_groups = std::min(params.page_size, kMlaTileKeys) / 8;
  if (!EncodeKeyMap(&maps.latent, params, 128, 4, box_groups) ||
      !EncodeKeyMap(&maps.rotary, params, 64, 1, box_groups)) {
    return cudaErrorInvalidValue;
  }
  return LaunchDependent(DecodeMlaF8SwapAb<kRows>, MlaBlocks(), kSwapAbThreads, kSharedBytes,
                         stream, args, maps);
}

}  // namespace

MlaSplits DefaultMlaSplits(int heads) {
  // Short splits keep a lone request's latency down, long ones the cost of folding.
  if (heads <= 32) return {128, 1024, 4096};
  return {512, 4096, 8192};
}

void ShareMlaBlocks(int streams) { mla_sharers.store(std::max(streams, mla_sharers.load())); }

size_t MlaDecodeWorkspaceBytes(const MlaDecodeLimits& limits) {
  return CarveMlaWorkspace(limits, nullptr).bytes;
}

cudaError_t MlaDecodePlan(const MlaDecodeParams& params, const MlaDecodeLimits& limits,
                          void* workspace, cudaStream_t stream) {
  if (!Valid(params, limits) || workspace == nullptr) return cudaErrorInvalidValue;
  MlaPlanArguments args;
  args.query_start_loc = params.query_start_loc;
  args.seq_lens = params.seq_lens;
  args.num_requests = params.num_requests;
  args.heads = params.heads;
  args.tile_rows = TileRows(params);
  args.blocks = MlaBlocks();
  args.causal = params.visible == nullptr;
  args.relaxed = params.relaxed;
  args.shared_tiles = SharedTiles(params);
  args.lanes = PlanLanes(params);
  args.splits = SplitsOf(params);
  args.workspace = CarveMlaWorkspace(limits, workspace);
  PlanMlaDecode<<<1, kPlanThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t MlaDecode(const MlaDecodeParams& params, const MlaDecodeLimits& limits, void* workspace,
                      cudaStream_t stream) {
  if (!Valid(params, limits) || workspace == nullptr) return cudaErrorInvalidValue;
  if (params.num_requests == 0 || params.num_tokens == 0) return cudaSuccess;
  const bool e4m3 = params.cache_type == MlaCacheType::kE4m3;
  const float scale = e4m3 ? params.cache_scale : 1.0f;
  MlaKernelArguments args;
  args.workspace = CarveMlaWorkspace(limits, workspace);
  args.plan_settled = params.plan_settled;
  args.block_table = params.block_table;
  args.block_table_stride = params.block_table_stride;
  args.cache = static_cast<const uint8_t*>(params.cache);
  args.page_shift = std::countr_zero(static_cast<unsigned>(params.page_size));
  args.heads = params.heads;
  args.score_scale = params.softmax_scale * scale * 1.4426950408889634f;
  args.value_scale = scale;
  args.sink = params.sink;
  args.visible = params.visible;
  args.output = static_cast<__nv_bfloat16*>(params.output);
  args.lse = params.lse;
  args.splits = params.relaxed ? MlaSplits{0, 0, 0} : SplitsOf(params);

  if (!e4m3) {
    return SharedTiles(params) ? LaunchBf16<true>(args, params, stream)
                               : LaunchBf16<false>(args, params, stream);
  }
  const cudaError_t error = TileRows(params) == 16 ? LaunchE4m3<16>(args, params, stream)
                                                   : LaunchE4m3<32>(args, params, stream);
  if (error != cudaSuccess) return error;
  MlaCombineArguments combine;
  combine.workspace = args.workspace;
  combine.heads = params.heads;
  combine.value_scale = args.value_scale;
  combine.sink = params.sink;
  combine.output = args.output;
  combine.lse = args.lse;
  return LaunchDependent(CombineMlaDecode, MlaBlocks() * 4, kCombineThreads, 0, stream, combine);
}

}  // namespace outrider::cuda
