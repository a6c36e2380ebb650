// A weight for tests of the matrix products: as the device packs it, and as the reference table of
// CPU kernels takes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "outrider/kernels/cuda/matmul.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/mla_decode_reference.h"

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
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // [ceil(n / 128), ceil(k / 128)]

  PlainWeight(int n_, int k_, WeightFormat format_, Spread spread, std::mt19937& random)
      : n(n_), k(k_), format(format_) {
    const size_t count = static_cast<size_t>(n) * k;
    if (format == WeightFormat::kBf16) {
      bf16 = DrawBf16(count, spread, random);
      return;
    }
    // Every code but the NaNs, subnormal ones and both zeros too.
    std::uniform_int_distribution<int> code(0, 253);
    codes.resize(count);
    for (uint8_t& value : codes) {
      const int drawn = code(random);
      value = static_cast<uint8_t>(drawn < 127 ? drawn : drawn + 1);
    }
    scales.resize(static_cast<size_t>(Blocks(n)) * Blocks(k));
    std::uniform_real_distribution<float> scale(0.001F, 0.01F);
    std::uniform_int_distribution<int> exponent(spread == Spread::kNormal ? -9 : -30, -6);
    for (float& value : scales) {
      value = format == WeightFormat::kF8PowerOfTwo ? std::ldexp(1.0F, exponent(random))
                                                    : scale(random);
    }
  }

  static int Blocks(int size) { return (size + 127) / 128; }

  /// y [rows, n] = x W^T by the reference table; x is bf16 [rows, k].
  std::vector<float> Multiply(const std::vector<uint16_t>& x, int rows) const {
    const bool f8 = format != WeightFormat::kBf16;
    const DType dtype = f8 ? DType::kF8E4M3 : DType::kBF16;
    const PackedFormat packed_format = {
        .dtype = dtype,
        .scale_cols = f8 ? 128 : 0,
        .power_of_two_scales = format == WeightFormat::kF8PowerOfTwo};
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
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t count = std::min<int64_t>(kPanelRows, n - panel * kPanelRows);
      std::byte* to = data + panel * static_cast<int64_t>(PanelBytes(dtype, wide));
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
      std::copy_n(&scales[static_cast<size_t>(panel * kPanelRows / 128 * Blocks(k))], Blocks(k),
                  packed_scales + panel * Blocks(k));
    }
    const PackedMatrix matrix = {.format = packed_format, .rows = n, .cols = wide, .data = data};
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
    const bool f8 = weight_.format != WeightFormat::kBf16;
    const DeviceArray<uint16_t> bf16(w.bf16), up_bf16(up ? up->bf16 : std::vector<uint16_t>());
    const DeviceArray<uint8_t> codes(w.codes), up_codes(up ? up->codes : std::vector<uint8_t>());
    const DeviceArray<float> scales(w.scales), up_scales(up ? up->scales : std::vector<float>());
    UnpackedWeight source;
    source.w = f8 ? static_cast<const void*>(codes.data()) : bf16.data();
    if (up != nullptr) source.up = f8 ? static_cast<const void*>(up_codes.data()) : up_bf16.data();
    source.scales = scales.data();
    source.up_scales = up_scales.data();
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
