// Weights into the order in which the matrix products read them (matmul_layout.h).
#include <cuda_bf16.h>

#include "outrider/kernels/cuda/matmul/matmul_pack.cuh"

namespace outrider::cuda {
namespace {

constexpr int kUnitColumns = 128;

template <typename T>
__device__ __forceinline__ T Element(const PackArguments& args, int row, int k) {
  const SourceRow source = FindRow(args.source.up != nullptr, row);
  if (source.index >= args.rows || k >= args.k) return T{};
  const void* const matrix = source.up ? args.source.up : args.source.w;
  return static_cast<const T*>(matrix)[static_cast<int64_t>(source.index) * args.k + k];
}

/// One block per unit; a thread writes 16 bytes at a time.
__global__ void PackBf16Units(PackArguments args) {
  const int unit_row = blockIdx.y;
  auto* const unit = reinterpret_cast<uint4*>(
      args.packed + (static_cast<int64_t>(unit_row) * args.units + blockIdx.x) * kBf16UnitBytes);
  for (int i = threadIdx.x; i < kBf16UnitBytes / 16; i += blockDim.x) {
    const int half = i / (kWeightRows * 8), row = i / 8 % kWeightRows, place = i % 8;
    const int k = blockIdx.x * kUnitColumns + half * 64 + (place ^ row % 8) * 8;
    alignas(16) uint16_t values[8];
    for (int j = 0; j < 8; ++j) {
      values[j] = Element<uint16_t>(args, unit_row * kWeightRows + row, k + j);
    }
    unit[i] = *reinterpret_cast<const uint4*>(values);
  }
}

/// 16 bytes of a thread are its A fragments of two slices of 16 columns: per slice two words, for
/// columns 0..7 and 8..15; a word's halves have a column each of the row l / 4 of its warp's 16 and
/// of the row 8 further down.
__global__ void PackF8Units(PackArguments args) {
  const int unit_row = blockIdx.y;
  auto* const unit = reinterpret_cast<uint4*>(
      args.packed + (static_cast<int64_t>(unit_row) * args.units + blockIdx.x) * kF8UnitBytes);
  for (int i = threadIdx.x; i < kF8UnitBytes / 16; i += blockDim.x) {
    const int slices = i / 128 * 2, warp = i % 128 / 32, lane = i % 32;
    const int row = unit_row * kWeightRows + warp * 16 + lane / 4;
    alignas(16) uint16_t halves[8];
    for (int j = 0; j < 8; ++j) {
      const int k = static_cast<int>(blockIdx.x) * kUnitColumns + (slices + j / 4) * 16 +
                    j / 2 % 2 * 8 + lane % 4 * 2 + j % 2;
      halves[j] = static_cast<uint16_t>(
          F8Half(Element<uint8_t>(args, row, k), Element<uint8_t>(args, row + 8, k)));
    }
    unit[i] = *reinterpret_cast<const uint4*>(halves);
  }
  if (threadIdx.x < kWeightRows / 8 && args.source.scales != nullptr) {
    const SourceRow source = FindRow(args.source.up != nullptr,
                                     unit_row * kWeightRows + static_cast<int>(threadIdx.x) * 8);
    const float* const scales = source.up ? args.source.up_scales : args.source.scales;
    const float scale =
        source.index < args.rows ? scales[source.index / 128 * args.units + blockIdx.x] : 1.0F;
    args.scales[(static_cast<int64_t>(unit_row) * args.units + blockIdx.x) * (kWeightRows / 8) +
                threadIdx.x] = scale;
  }
}

/// A thread per packed row; missing rows get 1. `power` is multiplied in.
__global__ void PackRowScales(PackArguments args, int packed_rows, float power) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= packed_rows) return;
  const SourceRow source = FindRow(args.source.up != nullptr, row);
  const float* const scales = source.up ? args.source.up_scales : args.source.scales;
  args.scales[row] = source.index < args.rows ? __fmul_rn(scales[source.index], power) : 1.0F;
}

}  // namespace

cudaError_t LaunchPackWeight(const UnpackedWeight& source, const PackedWeight& weight,
                             cudaStream_t stream) {
  PackArguments args = {
      .source = source,
      .rows = weight.gate_up ? weight.n / 2 : weight.n,
      .k = weight.k,
      .units = (weight.k + UnitColumns(weight.format) - 1) / UnitColumns(weight.format),
      .packed = static_cast<uint8_t*>(const_cast<void*>(weight.data)),
      .scales = static_cast<float*>(const_cast<void*>(ScalesOf(weight)))};
  const dim3 grid(args.units, (weight.n + kWeightRows - 1) / kWeightRows);
  const int packed_rows = static_cast<int>(grid.y) * kWeightRows;
  const auto pack_row_scales = [&](float power) {
    PackRowScales<<<(packed_rows + 255) / 256, 256, 0, stream>>>(args, packed_rows, power);
    args.source.scales = args.source.up_scales = nullptr;
  };
  if (IsFourBits(weight.format)) {
    if (weight.format == WeightFormat::kNvfp4) pack_row_scales(1 << kNvfp4RowPower);
    LaunchPackFourBits(weight.format, args, grid, stream);
  } else if (weight.format != WeightFormat::kBf16) {
    if (weight.format == WeightFormat::kF8Rows) pack_row_scales(1);
    PackF8Units<<<grid, 256, 0, stream>>>(args);
  } else {
    PackBf16Units<<<grid, 256, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace outrider::cuda
