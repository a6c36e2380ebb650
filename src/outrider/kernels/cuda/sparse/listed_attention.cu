#include <bit>
#include <numbers>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/sparse/listed_attention.h"
#include "outrider/kernels/cuda/sparse/listed_plan.cuh"

namespace outrider::cuda {
namespace {

template <bool kCodes>
using LatentShared = ListedShared<LatentForm<kCodes>>;

template <bool kCodes, bool kSharedTiles>
__global__ void __launch_bounds__(kListedThreads, 1)
    AttendListedKernel(const __grid_constant__ ListedArguments args,
                       const __grid_constant__ MlaTensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t listed_bytes[];
  if (threadIdx.x == 0 && (SharedAddress(listed_bytes) & 1023) != 0) __trap();
  AttendListed<LatentForm<kCodes>, kSharedTiles>(
      args, maps, *reinterpret_cast<LatentShared<kCodes>*>(listed_bytes));
}

bool Valid(const ListedAttentionParams& params, const ListedAttentionLimits& limits) {
  const PagedEntries& entries = params.entries;
  const bool pages_ok = entries.page_size >= 1 && entries.page_stride % kOffsetUnit == 0 &&
                        std::has_single_bit(static_cast<unsigned>(entries.page_size));
  return pages_ok && params.first_row >= 0 && params.num_rows >= 0 &&
         params.num_rows <= limits.max_rows && params.heads == limits.heads &&
         params.softmax_scale > 0.0f;
}

template <bool kCodes, bool kSharedTiles>
cudaError_t Launch(const ListedArguments& args, const MlaTensorMaps& maps, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(LatentShared<kCodes>);
  static_assert(kBytes <= 232448, "one block per multiprocessor has 227 KB");
  static OncePerDevice once;
  const cudaError_t allowed =
      once.Call([] { return AllowShared(AttendListedKernel<kCodes, kSharedTiles>, kBytes); });
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(AttendListedKernel<kCodes, kSharedTiles>, dim3(MlaBlocks()),
                         dim3(kListedThreads), kBytes, stream, args, maps);
}

}  // namespace

size_t ListedAttentionWorkspaceBytes(const ListedAttentionLimits& limits) {
  return MlaDecodeWorkspaceBytes(MlaLimitsOf(limits));
}

cudaError_t ListedAttentionPlan(const ListedAttentionParams& params,
                                const ListedAttentionLimits& limits, void* workspace,
                                cudaStream_t stream) {
  if (!Valid(params, limits)) return cudaErrorInvalidValue;
  return MlaDecodePlan(PlanParams(params), MlaLimitsOf(limits), workspace, stream);
}

cudaError_t ListedAttention(const ListedAttentionParams& params,
                            const ListedAttentionLimits& limits, void* workspace,
                            cudaStream_t stream) {
  if (!Valid(params, limits) || workspace == nullptr) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  ListedArguments args = {};
  args.mla.workspace = CarveMlaWorkspace(MlaLimitsOf(limits), workspace);
  args.mla.heads = params.heads;
  args.mla.score_scale = params.softmax_scale * std::numbers::log2e_v<float>;
  args.mla.value_scale = 1.0f;
  args.mla.sink = params.sink;
  args.mla.output = static_cast<__nv_bfloat16*>(params.output);
  args.mla.lse = params.lse;
  args.mla.splits = kListedSplits;
  args.request = params.rows.request + params.first_row;
  args.lists = params.lists + params.first_row * params.lists_stride;
  args.lists_stride = params.lists_stride;
  args.entries = static_cast<const uint8_t*>(params.entries.data);
  args.block_table = params.entries.block_table;
  args.block_table_stride = params.entries.block_table_stride;
  args.page_shift = std::countr_zero(static_cast<unsigned>(params.entries.page_size));
  args.page_units = static_cast<uint32_t>(params.entries.page_stride / kOffsetUnit);
  MlaTensorMaps maps = {};
  const auto pairs = static_cast<uint64_t>(params.num_rows) * params.heads;
  if (!EncodeMlaQueryMap(&maps.q, params.q, pairs)) return cudaErrorInvalidValue;
  const bool shared_tiles = SharedTiles(params);
  if (params.entry_type == MlaCacheType::kE4m3) {
    return shared_tiles ? Launch<true, true>(args, maps, stream)
                        : Launch<true, false>(args, maps, stream);
  }
  return shared_tiles ? Launch<false, true>(args, maps, stream)
                      : Launch<false, false>(args, maps, stream);
}

}  // namespace outrider::cuda
