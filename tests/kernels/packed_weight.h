// A weight in a packed format, and the values that the format holds, for tests of products.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "outrider/base/buffer.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {

/// A weight as packed, and what the chains over it are made of.
struct Weight {
  Weight(PackedFormat format, int64_t rows, int64_t cols, std::mt19937& random)
      : Weight(format, TestMatrix::Random(rows, cols, random), random) {}
  Weight(DType dtype, int64_t rows, int64_t cols, std::mt19937& random)
      : Weight(PackedFormat{.dtype = dtype, .scale_cols = dtype == DType::kF8E4M3 ? 48 : 0}, rows,
               cols, random) {}
  /// These values, rounded to the format; with kF8E4M3 and formats of 4 bits others, at random.
  Weight(PackedFormat format, TestMatrix of, std::mt19937& random)
      : values(std::move(of)),
        storage(PackedBytes(format, values.view_rows, values.view_cols) + 1) {
    const int64_t rows = values.view_rows;
    const int64_t cols = values.view_cols;
    packed = {.format = format, .rows = rows, .cols = cols, .data = storage.data()};
    const auto panel_bytes = static_cast<int64_t>(PanelBytes(format.dtype, cols));
    for (int64_t p = 0; p < packed.panels(); ++p) {
      Pack(p, storage.data() + p * panel_bytes, random);
    }
  }

  /// What output n is a sum of for this x.
  float Term(float x, int64_t n, int64_t k, float sum) const {
    if (packed.format.dtype == DType::kF8E4M3) x *= Scales(n)[k / packed.format.scale_cols];
    return std::fma(x, values.view().row(n)[k], sum);
  }
  float Finished(float sum, int64_t n) const {
    if (packed.format.row_scales) sum *= packed.row_scales(n / kPanelRows)[n % kPanelRows];
    return packed.format.dtype == DType::kI8 ? sum * Scales(n)[n % kPanelRows] : sum;
  }

  const float* Scales(int64_t n) const { return packed.scales(n / kPanelRows); }

  TestMatrix values;  // without scales
  Buffer storage;
  PackedMatrix packed;

 private:
  /// Random codes with these scales; value_of(code, group) is a weight.
  template <typename ValueOf>
  void PackCodes(int64_t p, int64_t count, const uint8_t* scales, std::mt19937& random,
                 ValueOf value_of) {
    const int64_t size = count * packed.cols;
    std::vector<uint8_t> codes(static_cast<size_t>(size / 2));
    for (uint8_t& pair : codes) pair = static_cast<uint8_t>(random());
    PackFourBitPanel(packed, p, codes.data(), scales, count);
    float* rows = values.view().row(p * kPanelRows);
    for (int64_t i = 0; i < size; ++i) {
      const uint8_t pair = codes[static_cast<size_t>(i / 2)];
      rows[i] = value_of(i % 2 == 0 ? pair : pair >> 4, i / packed.format.group_cols());
    }
  }

  void Pack(int64_t p, std::byte* panel, std::mt19937& random) {
    const DType dtype = packed.format.dtype;
    const int64_t count = std::min(kPanelRows, packed.rows - p * kPanelRows);
    float* rows = values.view().row(p * kPanelRows);
    const int64_t size = count * packed.cols;
    auto* scales = const_cast<float*>(packed.scales(p));  // in `storage`
    if (packed.format.row_scales) {
      auto* row_scales = const_cast<float*>(packed.row_scales(p));
      for (int64_t n = 0; n < kPanelRows; ++n) {
        row_scales[n] = std::ldexp(1 + static_cast<float>(random() % 8) / 7, -3);
      }
    }
    if (dtype == DType::kI8) {
      PackInt8Panel(rows, count, packed.cols, panel, scales);
      for (int64_t n = 0; n < count; ++n) {
        for (int64_t k = 0; k < packed.cols; ++k) {
          rows[n * packed.cols + k] = static_cast<int8_t>(panel[k * kPanelRows + n]);
        }
      }
    } else if (dtype == DType::kF8E4M3) {
      // Every code but NaN, subnormals and both zeros among them; neighbours often share scales.
      std::vector<uint8_t> codes(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const auto code = static_cast<uint8_t>(random() % 0x7f + (random() % 2 == 0 ? 0x80 : 0));
        codes[static_cast<size_t>(i)] = random() % 4 == 0 ? code & 0x87 : code;
        rows[i] = Float8E4M3ToFloat(codes[static_cast<size_t>(i)]);
      }
      PackFp8Panel(codes.data(), count, packed.cols, panel);
      const int64_t groups = ScalesPerPanel(packed.format, packed.cols);
      for (int64_t g = 0; g < groups; ++g) {
        const bool as_before = p % 3 != 0;
        const auto fraction = static_cast<float>(random() % 8) / 7;
        scales[g] = packed.format.power_of_two_scales ? std::ldexp(1.0F, -9 - random() % 8)
                                                      : std::ldexp(1 + fraction, -9);
        if (as_before) scales[g] = scales[g - groups];
      }
    } else if (dtype == DType::kF4E2M1 && packed.format.group_scale == DType::kF8E4M3) {
      // Every code and every scale but NaN, subnormals among them.
      std::vector<uint8_t> scale_codes(static_cast<size_t>(size / kNvfp4Group));
      for (uint8_t& code : scale_codes) code = static_cast<uint8_t>(random() % 0x7f);
      PackCodes(p, count, scale_codes.data(), random, [&](uint8_t code, int64_t group) {
        return Float4E2M1ToFloat(code) * Float8E4M3ToFloat(scale_codes[static_cast<size_t>(group)]);
      });
    } else if (dtype == DType::kI4) {
      std::vector<BFloat16> group_scales(static_cast<size_t>(size / kInt4Group));
      for (BFloat16& scale : group_scales) {
        scale = ToBFloat16(std::ldexp(1 + static_cast<float>(random() % 128) / 128, -5));
      }
      PackCodes(p, count, reinterpret_cast<const uint8_t*>(group_scales.data()), random,
                [&](uint8_t code, int64_t group) {
                  return Int4ToFloat(code) * ToFloat(group_scales[static_cast<size_t>(group)]);
                });
    } else if (dtype == DType::kF4E2M1) {
      // Every code, at scales from the least to the largest, though most are moderate.
      std::vector<uint8_t> exponents(static_cast<size_t>(size / kFp4Group));
      for (uint8_t& e : exponents) {
        const auto any = static_cast<uint8_t>(kLeastFp4Exponent + random() % 40);
        e = random() % 16 == 0 ? any : static_cast<uint8_t>(120 + random() % 12);
      }
      PackCodes(p, count, exponents.data(), random, [&](uint8_t code, int64_t group) {
        return Float4E2M1ToFloat(code) *
               std::ldexp(1.0F, exponents[static_cast<size_t>(group)] - 127);
      });
    } else {
      if (dtype == DType::kBF16) {
        for (int64_t i = 0; i < size; ++i) rows[i] = RoundToBFloat16(rows[i]);
      }
      PackPanel(dtype, rows, count, packed.cols, panel);
    }
  }
};

}  // namespace outrider
