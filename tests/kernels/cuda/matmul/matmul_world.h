// A weight for tests of the matrix products: as the device packs it, and as the reference table of
// CPU kernels takes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "outrider/kernels/cuda/matmul/matmul.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {

enum class Spread { kNormal, kWideExponents };

/// bf16 values, normal, or times 2^e with e from -30 to 30.
inline std::vector<uint16_t> DrawBf16(size_t count, Spread spread, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-30, 30);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const float x = normal(random);
    value = FloatToBf16(spread == Spread::kNormal ? x : std::ldexp(x, exponent(random)));
  }
  return values;
}

/// One matrix [n, k] before packing.
struct PlainWeight {
  int n;
  int k;
  WeightFormat format;
  std::vector<uint16_t> bf16;
  std::vector<uint8_t> codes;         // of 4 bits two to a byte
  std::vector<float> scales;          // [ceil(n / 128), ceil(k / 128)], or of rows [n]
  std::vector<uint8_t> group_scales;  // of 4 bits: [n, k / GroupColumns], as they are stored

  PlainWeight(int n_, int k_, WeightFormat format_, Spread spread, std::mt19937& random)
      : n(n_), k(k_), format(format_) {
    const size_t count = static_cast<size_t>(n) * k;
    if (format == WeightFormat::kBf16) {
      bf16 = DrawBf16(count, spread, random);
      return;
    }
    if (HasRowScales(format) && format != WeightFormat::kFp4) {
      std::uniform_real_distribution<float> scale(0.001F, 0.01F);
      scales.resize(n);
      for (float& value : scales) value = scale(random);
    }
    if (IsFourBits(format)) {
      DrawFourBits(spread, random);
      return;
    }
    // Every code but the NaNs, subnormal ones and both zeros too.
    std::uniform_int_distribution<int> code(0, 253);
    codes.resize(count);
    for (uint8_t& value : codes) {
      const int drawn = code(random);
      value = static_cast<uint8_t>(drawn < 127 ? drawn : drawn + 1);
    }
    if (!HasBlockScales(format)) return;
    scales.resize(static_cast<size_t>(Blocks(n)) * Blocks(k));
    std::uniform_real_distribution<float> scale(0.001F, 0.01F);
    std::uniform_int_distribution<int> exponent(spread == Spread::kNormal ? -9 : -30, -6);
    for (float& value : scales) {
      value = format == WeightFormat::kF8PowerOfTwo ? std::ldexp(1.0F, exponent(random))
                                                    : scale(random);
    }
  }

  /// All codes, and scales of groups that are not equal.
  void DrawFourBits(Spread spread, std::mt19937& random) {
    codes.resize(static_cast<size_t>(n) * k / 2);
    for (uint8_t& value : codes) value = static_cast<uint8_t>(random());
    const size_t groups = static_cast<size_t>(n) * k / GroupColumns(format);
    const bool wide = spread == Spread::kWideExponents;
    if (format == WeightFormat::kInt4) {
      std::uniform_real_distribution<float> scale(0.001F, 0.01F);
      std::uniform_int_distribution<int> exponent(wide ? -30 : 0, wide ? 30 : 0);
      group_scales.resize(groups * 2);
      for (size_t i = 0; i < groups; ++i) {
        const uint16_t bits = FloatToBf16(std::ldexp(scale(random), exponent(random)));
        group_scales[2 * i] = static_cast<uint8_t>(bits);
        group_scales[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
      }
      return;
    }
    group_scales.resize(groups);
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    // e4m3 from the least subnormal on; powers of two around 1, where no factor is in reach of one
    // multiplication.
    std::uniform_int_distribution<int> byte(nvfp4  ? 1
                                            : wide ? 97
                                                   : 125,
                                            nvfp4  ? 126
                                            : wide ? 157
                                                   : 131);
    for (uint8_t& value : group_scales) {
      value = static_cast<uint8_t>(byte(random) | (nvfp4 ? random() & 0x80 : 0));
    }
  }

  static int Blocks(int size) { return (size + 127) / 128; }

  PackedFormat FormatOnCpu() const {
    switch (format) {
      case WeightFormat::kBf16:
        return {.dtype = DType::kBF16};
      case WeightFormat::kF8Rows:
        return {.dtype = DType::kF8E4M3,
                .scale_cols = k,
                .power_of_two_scales = true,
                .row_scales = true};
      case WeightFormat::kInt4:
        return {.dtype = DType::kI4, .group_scale = DType::kBF16};
      case WeightFormat::kFp4:
        return {.dtype = DType::kF4E2M1, .group_scale = DType::kF8E8M0};
      case WeightFormat::kNvfp4:
        return {.dtype = DType::kF4E2M1, .group_scale = DType::kF8E4M3, .row_scales = true};
      default:
        return {.dtype = DType::kF8E4M3,
                .scale_cols = 128,
                .power_of_two_scales = format == WeightFormat::kF8PowerOfTwo};
    }
  }

  /// y [rows, n] = x W^T by the reference table; x is bf16 [rows, k].
  std::vector<float> Multiply(const std::vector<uint16_t>& x, int rows) const {
    const bool f8 = format != WeightFormat::kBf16;
    const PackedFormat packed_format = FormatOnCpu();
    const DType dtype = packed_format.dtype;
    // A column count that is a multiple of 4, as the table wants for codes.
    const int wide = (k + 3) / 4 * 4;
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> storage(PackedBytes(packed_format, n, wide) / sizeof(Line) + 1);
    auto* data = reinterpret_cast<std::byte*>(storage.data());
    const int64_t panels = (n + kPanelRows - 1) / kPanelRows;
    auto* packed_scales =
        reinterpret_cast<float*>(data + panels * static_cast<int64_t>(PanelBytes(dtype, wide)));
    const PackedMatrix matrix = {.format = packed_format, .rows = n, .cols = wide, .data = data};
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t count = std::min<int64_t>(kPanelRows, n - panel * kPanelRows);
      std::byte* to = data + panel * static_cast<int64_t>(PanelBytes(dtype, wide));
      if (packed_format.row_scales) {
        std::copy_n(&scales[static_cast<size_t>(panel * kPanelRows)], count,
                    const_cast<float*>(matrix.row_scales(panel)));
      }
      if (IsFourBits(format)) {
        const size_t row_scales = group_scales.size() / static_cast<size_t>(n);
        PackFourBitPanel(matrix, panel, &codes[static_cast<size_t>(panel * kPanelRows * k / 2)],
                         &group_scales[static_cast<size_t>(panel * kPanelRows) * row_scales],
                         count);
        continue;
      }
      std::vector<float> floats(static_cast<size_t>(count * wide));
      std::vector<uint8_t> bytes(static_cast<size_t>(count * wide));
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < k; ++j) {
          const size_t from = static_cast<size_t>((panel * kPanelRows + i) * k + j);
          if (f8) {
            bytes[static_cast<size_t>(i * wide + j)] = codes[from];
          } else {
            floats[static_cast<size_t>(i * wide + j)] = Bf16ToFloat(bf16[from]);
          }
        }
      }
      if (!f8) {
        PackPanel(dtype, floats.data(), count, wide, to);
        continue;
      }
      PackFp8Panel(bytes.data(), count, wide, to);
      if (format == WeightFormat::kF8Rows) {
        packed_scales[panel] = 1;
        continue;
      }
      std::copy_n(&scales[static_cast<size_t>(panel * kPanelRows / 128 * Blocks(k))], Blocks(k),
                  packed_scales + panel * Blocks(k));
    }
    std::vector<float> x_floats(static_cast<size_t>(rows) * wide);
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < k; ++j) {
        x_floats[static_cast<size_t>(r) * wide + j] =
            Bf16ToFloat(x[static_cast<size_t>(r) * k + j]);
      }
    }
    std::vector<float> y(static_cast<size_t>(rows) * n);
    const MatMulJob job = {
        .x = {x_floats.data(), rows, wide}, .w = &matrix, .y = {y.data(), rows, n}};
    ThreadPool pool(4);
    CpuReference().matmul(pool, {&job, 1}, DType::kBF16);
    return y;
  }
};

/// Packed on the device, from one matrix or from gate and up.
class DeviceWeight {
 public:
  explicit DeviceWeight(const PlainWeight& w, const PlainWeight* up = nullptr, int segments = 0) {
    weight_.format = w.format;
    weight_.n = up == nullptr ? w.n : w.n + up->n;
    weight_.k = w.k;
    weight_.gate_up = up != nullptr;
    weight_.segments = segments;
    memory_ = DeviceArray<uint8_t>(PackedWeightBytes(weight_.format, weight_.n, weight_.k));
    weight_.data = memory_.data();
    PackTo(memory_.data(), w, up);
  }
  const PackedWeight& weight() const { return weight_; }

  /// Packs matrices of the same shape to other device memory.
  void PackTo(void* memory, const PlainWeight& w, const PlainWeight* up) const {
    const bool has_codes = weight_.format != WeightFormat::kBf16;
    const DeviceArray<uint16_t> bf16(w.bf16), up_bf16(up ? up->bf16 : std::vector<uint16_t>());
    const DeviceArray<uint8_t> codes(w.codes), up_codes(up ? up->codes : std::vector<uint8_t>());
    const DeviceArray<float> scales(w.scales), up_scales(up ? up->scales : std::vector<float>());
    UnpackedWeight source;
    const DeviceArray<uint8_t> group_scales(w.group_scales),
        up_group_scales(up ? up->group_scales : std::vector<uint8_t>());
    source.w = has_codes ? static_cast<const void*>(codes.data()) : bf16.data();
    if (up != nullptr) {
      source.up = has_codes ? static_cast<const void*>(up_codes.data()) : up_bf16.data();
    }
    source.scales = scales.data();
    source.up_scales = up_scales.data();
    source.group_scales = group_scales.data();
    source.up_group_scales = up_group_scales.data();
    PackedWeight to = weight_;
    to.data = memory;
    PackWeight(source, to, nullptr);
    CudaOk(cudaDeviceSynchronize(), "packing");
  }

 private:
  PackedWeight weight_;
  DeviceArray<uint8_t> memory_;
};

}  // namespace outrider::cuda
