// Compressed attention on Hopper: listed attention (sparse/listed_attention_task.cuh) over two
// caches, with keys of 512 columns and no rotary part of its own.
#include <bit>
#include <numbers>

#include "outrider/kernels/cuda/compressed/compressed_attention_form.cuh"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/sparse/listed_plan.cuh"

namespace outrider::cuda {
namespace {

template <bool kCodes, bool kSharedTiles>
__global__ void __launch_bounds__(kListedThreads, 1)
    AttendCompressedKernel(const __grid_constant__ WindowArguments args,
                           const __grid_constant__ MlaTensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t compressed_bytes[];
  if (threadIdx.x == 0 && (SharedAddress(compressed_bytes) & 1023) != 0) __trap();
  using Form = WindowForm<kCodes>;
  AttendListed<Form, kSharedTiles>(args, maps,
                                   *reinterpret_cast<ListedShared<Form>*>(compressed_bytes));
}

bool ArePages(const PagedEntries& entries) {
  return entries.page_size >= 1 && entries.page_stride % kWindowOffsetUnit == 0 &&
         std::has_single_bit(static_cast<unsigned>(entries.page_size));
}

bool Valid(const CompressedAttentionParams& params, const ListedAttentionLimits& limits) {
  return ArePages(params.window) && (params.entries.data == nullptr || ArePages(params.entries)) &&
         params.first_row >= 0 && params.num_rows >= 0 && params.num_rows <= limits.max_rows &&
         params.heads == limits.heads && params.softmax_scale > 0.0F &&
         (params.cos == nullptr) == (params.sin == nullptr);
}

PagedKeys KeysOf(const PagedEntries& entries) {
  if (entries.data == nullptr) return {};
  return {.data = static_cast<const uint8_t*>(entries.data),
          .block_table = entries.block_table,
          .block_table_stride = entries.block_table_stride,
          .block_table_mask = entries.block_table_mask,
          .page_shift = std::countr_zero(static_cast<unsigned>(entries.page_size)),
          .page_units = static_cast<uint32_t>(entries.page_stride / kWindowOffsetUnit)};
}

/// Queries [rows, 512] as {64 columns, rows, 8 column groups, 1}: a box of 8 rows begins at any
/// row. Rows past the end read zeros.
bool EncodeQueryMap(CUtensorMap* map, const void* q, uint64_t rows) {
  return EncodeBf16Map(map, q, {64, rows, kCompressedDim / 64, 1},
                       {kCompressedDim * 2, 128, rows * kCompressedDim * 2},
                       {64, 8, kCompressedDim / 64, 1});
}

template <bool kCodes, bool kSharedTiles>
cudaError_t Launch(const WindowArguments& args, const MlaTensorMaps& maps, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(ListedShared<WindowForm<kCodes>>);
  static_assert(kBytes <= 232448, "one block per multiprocessor has 227 KB");
  const auto kernel = AttendCompressedKernel<kCodes, kSharedTiles>;
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] { return AllowShared(kernel, kBytes); });
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(kernel, dim3(MlaBlocks()), dim3(kListedThreads), kBytes, stream, args,
                         maps);
}

template <bool kCodes>
cudaError_t Launch(const CompressedAttentionParams& params, const WindowArguments& args,
                   const MlaTensorMaps& maps, cudaStream_t stream) {
  return SharedTiles(params) ? Launch<kCodes, true>(args, maps, stream)
                             : Launch<kCodes, false>(args, maps, stream);
}

}  // namespace

size_t CompressedAttentionWorkspaceBytes(const ListedAttentionLimits& limits) {
  return CarveMlaWorkspace(MlaLimitsOf(limits), nullptr).bytes;
}

cudaError_t CompressedAttentionPlan(const CompressedAttentionParams& params,
                                    const ListedAttentionLimits& limits, void* workspace,
                                    cudaStream_t stream) {
  if (!Valid(params, limits)) return cudaErrorInvalidValue;
  return MlaDecodePlan(PlanParams(params), MlaLimitsOf(limits), workspace, stream);
}

cudaError_t CompressedAttention(const CompressedAttentionParams& params,
                                const ListedAttentionLimits& limits, void* workspace,
                                cudaStream_t stream) {
  if (!Valid(params, limits) || workspace == nullptr) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  WindowArguments args = {};
  args.mla.workspace = CarveMlaWorkspace(MlaLimitsOf(limits), workspace);
  args.mla.heads = params.heads;
  args.mla.score_scale = params.softmax_scale * std::numbers::log2e_v<float>;
  args.mla.value_scale = 1.0F;
  args.mla.sink = params.sink;
  args.mla.output = static_cast<__nv_bfloat16*>(params.output);
  args.mla.lse = params.lse;
  args.mla.splits = kListedSplits;
  args.rows = params.rows.rows + params.first_row;
  if (params.lists != nullptr) args.lists = params.lists + params.first_row * params.lists_stride;
  args.lists_stride = params.lists_stride;
  args.window = KeysOf(params.window);
  args.entries = KeysOf(params.entries);
  args.cos = params.cos;
  args.sin = params.sin;
  MlaTensorMaps maps = {};
  const auto pairs = static_cast<uint64_t>(params.num_rows) * params.heads;
  if (!EncodeQueryMap(&maps.q, params.q, pairs)) return cudaErrorInvalidValue;
  return params.codes ? Launch<true>(params, args, maps, stream)
                      : Launch<false>(params, args, maps, stream);
}

}  // namespace outrider::cuda
