// Weights of 4 bits into units (matmul_4bit_layout.h).
#include "outrider/kernels/cuda/matmul/matmul_pack.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

/// The code of a packed row and a column; what is missing is 0 as a value.
template <WeightFormat kFormat>
__device__ __forceinline__ uint32_t CodeAt(const PackArguments& args, int row, int k) {
  const SourceRow source = FindRow(args.source.up != nullptr, row);
  if (source.index >= args.rows || k >= args.k) return kFormat == WeightFormat::kInt4 ? 8 : 0;
  const auto* const codes = static_cast<const uint8_t*>(source.up ? args.source.up : args.source.w);
  const uint32_t both = codes[(static_cast<int64_t>(source.index) * args.k + k) / 2];
  return k % 2 == 0 ? both & 15 : both >> 4;
}

/// Where the scales of a packed row's groups stand; null for a missing row.
template <typename T>
__device__ __forceinline__ const T* GroupScalesAt(const PackArguments& args, int row, int groups) {
  const SourceRow source = FindRow(args.source.up != nullptr, row);
  if (source.index >= args.rows) return nullptr;
  const void* const scales = source.up ? args.source.up_group_scales : args.source.group_scales;
  return static_cast<const T*>(scales) + static_cast<int64_t>(source.index) * groups;
}

/// The sign bit of an e2m1 code where its group's scale is negative: packed scales are not.
__device__ __forceinline__ uint32_t SignOfScale(const PackArguments& args, int row, int k) {
  constexpr int kColumns = GroupColumns(WeightFormat::kNvfp4);
  const uint8_t* const scales = GroupScalesAt<uint8_t>(args, row, args.k / kColumns);
  return scales == nullptr || k >= args.k ? 0 : scales[k / kColumns] >> 7 << 3;
}

/// The largest exponent of a row's scales, as a byte; 127 for a missing row.
__device__ __forceinline__ uint8_t LargestExponent(const uint8_t* scales, int groups) {
  if (scales == nullptr) return 127;
  uint8_t largest = scales[0];
  for (int i = 1; i < groups; ++i) largest = max(largest, scales[i]);
  return largest;
}

/// 8 (e + 9) + m of an e4m3 scale ± 2^e (1 + m / 8), subnormal ones too.
__device__ __forceinline__ uint8_t Nvfp4ScaleByte(uint8_t e4m3) {
  const int exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
  if (exponent > 0) return static_cast<uint8_t>((exponent + 2) * 8 + mantissa);
  const int first = 31 - __clz(max(mantissa, 1));  // the highest bit: 2^(first - 9)
  return static_cast<uint8_t>(first * 8 + (mantissa << (3 - first) & 7));
}

/// The row's float32 scale of kFp4: the largest of its powers of two.
__global__ void PackFp4RowScales(PackArguments args, int packed_rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= packed_rows) return;
  const int groups = args.k / GroupColumns(WeightFormat::kFp4);
  const int largest = LargestExponent(GroupScalesAt<uint8_t>(args, row, groups), groups);
  args.scales[row] = ldexpf(1, largest - 127);
}

/// One block per unit.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) PackFourBitUnits(PackArguments args) {
  constexpr bool kInt4 = kFormat == WeightFormat::kInt4;
  constexpr int kGroupColumns = GroupColumns(kFormat);
  constexpr int kUnitGroups = kFourBitUnitColumns / kGroupColumns;
  const int unit_row = static_cast<int>(blockIdx.y) * kWeightRows;
  const int unit_column = static_cast<int>(blockIdx.x) * kFourBitUnitColumns;
  uint8_t* const unit = args.packed + (static_cast<int64_t>(blockIdx.y) * args.units + blockIdx.x) *
                                          UnitBytes(kFormat);
  auto* const words = reinterpret_cast<uint32_t*>(unit);
  for (int i = threadIdx.x; i < kFourBitCodeBytes / 4; i += kThreads) {
    const int quarter = i / (kQuarterBytes / 4), thread = i % (kQuarterBytes / 4) / 4,
              slice = i % 4;
    const int warp = thread / 32, lane = thread % 32;
    uint32_t word = 0;
    for (int pair = 0; pair < 4; ++pair) {
      const int row = unit_row + warp * 16 + lane / 4 + pair % 2 * 8;
      const int k =
          unit_column + quarter * kQuarterColumns + slice * 16 + lane % 4 * 2 + pair / 2 * 8;
      for (int odd = 0; odd < 2; ++odd) {
        uint32_t code = CodeAt<kFormat>(args, row, k + odd);
        if (kFormat == WeightFormat::kNvfp4) code ^= SignOfScale(args, row, k);
        word |= kInt4 ? Int4Part(code, pair, odd) : Fp4Part(code, pair, odd);
      }
    }
    words[i] = word;
  }
  const int groups = args.k / kGroupColumns;  // of a row
  for (int i = threadIdx.x; i < kWeightRows * kUnitGroups; i += kThreads) {
    const int pair = i / (2 * kUnitGroups), lower = i / kUnitGroups % 2, group = i % kUnitGroups;
    const int row = unit_row + pair / 8 * 16 + pair % 8 + lower * 8;
    const int column_group = blockIdx.x * kUnitGroups + group;
    if constexpr (kInt4) {
      const auto* const scales = GroupScalesAt<uint16_t>(args, row, groups);
      const bool missing = scales == nullptr || column_group >= groups;
      auto* const to = reinterpret_cast<uint16_t*>(unit + kFourBitCodeBytes) +
                       group / 4 * (kScaleBlockBytes / 2) + pair * 8 + group % 4 * 2 + lower;
      *to = missing ? 0x3F80 : scales[column_group];
    } else {
      const auto* const scales = GroupScalesAt<uint8_t>(args, row, groups);
      const bool missing = scales == nullptr || column_group >= groups;
      uint8_t* const to = unit + kFourBitCodeBytes + group / 8 * kScaleBlockBytes + pair * 16 +
                          group % 8 * 2 + lower;
      if constexpr (kFormat == WeightFormat::kNvfp4) {
        *to = missing ? Nvfp4ScaleByte(0x38) : Nvfp4ScaleByte(scales[column_group]);
      } else {
        const int below = missing ? 0 : scales[column_group] - LargestExponent(scales, groups);
        *to = static_cast<uint8_t>(max(1, 127 + kFp4Bits + below));
      }
    }
  }
}

}  // namespace

void LaunchPackFourBits(WeightFormat format, const PackArguments& args, dim3 units,
                        cudaStream_t stream) {
  switch (format) {
    case WeightFormat::kInt4:
      PackFourBitUnits<WeightFormat::kInt4><<<units, kThreads, 0, stream>>>(args);
      return;
    case WeightFormat::kNvfp4:
      PackFourBitUnits<WeightFormat::kNvfp4><<<units, kThreads, 0, stream>>>(args);
      return;
    default:
      const int rows = static_cast<int>(units.y) * kWeightRows;
      PackFp4RowScales<<<(rows + 255) / 256, 256, 0, stream>>>(args, rows);
      PackFourBitUnits<WeightFormat::kFp4><<<units, kThreads, 0, stream>>>(args);
  }
}

}  // namespace outrider::cuda
