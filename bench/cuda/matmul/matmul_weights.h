// Random weights for the benchmarks of the matrix products.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/matmul/matmul.h"

namespace outrider::cuda {

inline const char* Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF8:
      return "f8";
    case WeightFormat::kF8PowerOfTwo:
      return "f8pow2";
    case WeightFormat::kF8Rows:
      return "f8rows";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kFp4:
      return "fp4";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    default:
      return "bf16";
  }
}

/// Packs random values; `raw` gets the bf16 matrix as it was, if not null.
inline void PackRandom(const PackedWeight& weight, void* to, uint32_t seed, uint16_t* raw) {
  const size_t count = static_cast<size_t>(weight.n) * weight.k;
  const size_t half = weight.gate_up ? count / 2 : count;
  PackedWeight target = weight;
  target.data = to;
  UnpackedWeight source;
  if (weight.format == WeightFormat::kBf16) {
    const DeviceArray<uint16_t> own(raw == nullptr ? count : 0);
    uint16_t* const values = raw == nullptr ? own.data() : raw;
    FillBf16<<<1024, 256>>>(values, count, seed);
    source.w = values;
    if (weight.gate_up) source.up = values + half;
    PackWeight(source, target, nullptr);
    CudaOk(cudaDeviceSynchronize(), "packing");
    return;
  }
  const bool four_bits = IsFourBits(weight.format);
  const size_t code_bytes = four_bits ? count / 2 : count;
  const DeviceArray<uint8_t> codes(code_bytes);
  FillCodes<<<1024, 256>>>(codes.data(), code_bytes, seed);
  // Scales of blocks, or of rows.
  const size_t scale_count = static_cast<size_t>(weight.n / 128 + 1) * ((weight.k + 127) / 128);
  const DeviceArray<float> scales(
      std::vector<float>(std::max(scale_count, static_cast<size_t>(weight.n)), 0x1p-8F));
  // 0x3C3C is a bf16 near 2^-7, 0x3C an e4m3 and 2^-67.
  const size_t groups = count / GroupColumns(weight.format);
  const DeviceArray<uint8_t> group_scales(four_bits ? 2 * groups : 0, 0x3C);
  source.w = codes.data();
  if (weight.gate_up) source.up = codes.data() + code_bytes / 2;
  if (HasBlockScales(weight.format) ||
      (HasRowScales(weight.format) && weight.format != WeightFormat::kFp4)) {
    source.scales = scales.data();
    if (weight.gate_up) source.up_scales = scales.data();
  }
  if (four_bits) {
    source.group_scales = group_scales.data();
    if (weight.gate_up) source.up_group_scales = group_scales.data();
  }
  PackWeight(source, target, nullptr);
  CudaOk(cudaDeviceSynchronize(), "packing");
}

/// max(bytes / the rate of reads, flops / 790 TFLOP/s).
inline double LimitUs(double bytes, double flops) {
  return std::max(bytes / BytesPerUs(), flops / 790e6);
}

}  // namespace outrider::cuda
