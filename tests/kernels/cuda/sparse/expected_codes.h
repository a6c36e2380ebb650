// Codes of e4m3 beside the numbers in double precision that they stand for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"
#include "tests/kernels/cuda/cpu_reference.h"

namespace outrider::cuda {

/// Codes beside the numbers that they are to be; `most` is the size of the largest.
inline void ExpectRounded(const uint8_t* codes, float scale, const std::vector<double>& wanted,
                          double most, const std::string& where) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    // To the nearest number with four bits, or multiple of 2^-9.
    const double step = std::max(std::abs(wanted[i]) / 16, scale * 0x1p-10) + 1e-5 * most;
    ASSERT_NEAR(Float8E4M3ToFloat(codes[i]) * scale, wanted[i], step) << where << ", number " << i;
  }
}

/// The Hadamard transform of 128 numbers.
inline std::vector<double> Transformed(const std::vector<double>& numbers) {
  std::vector<double> wanted(kIndexDim);
  for (unsigned i = 0; i < kIndexDim; ++i) {
    for (unsigned j = 0; j < kIndexDim; ++j) {
      wanted[i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * numbers[j] / std::sqrt(128.0);
    }
  }
  return wanted;
}

/// Codes and their scale beside the numbers [128] that they are to be, before their transform.
inline void ExpectCodes(const uint8_t* codes, float scale, const std::vector<double>& numbers,
                        const std::string& where) {
  const std::vector<double> wanted = Transformed(numbers);
  double most = 1e-4F;
  for (const double value : wanted) most = std::max(most, std::abs(value));
  ASSERT_EQ(std::bit_cast<uint32_t>(scale) & 0x807FFFFF, 0U) << where << ": no power of two";
  ASSERT_LE(most / scale, 448 * 1.0001) << where;
  ASSERT_GE(most / scale, 224 / 1.0001) << where;
  ExpectRounded(codes, scale, wanted, most, where);
}

/// bf16 numbers beside those that they are to be, rounded with their group to e4m3 (64 numbers) or
/// e2m1 (32) times a power of two.
inline void ExpectPublished(std::span<const uint16_t> got, std::span<const double> wanted,
                            bool is_fp4, const std::string& where) {
  const size_t group = is_fp4 ? 32 : 64;
  ASSERT_EQ(wanted.size() % group, 0U);
  for (size_t first = 0; first < wanted.size(); first += group) {
    double most = 0;
    for (size_t i = first; i < first + group; ++i) most = std::max(most, std::abs(wanted[i]));
    const double scale = std::exp2(std::ceil(std::log2(most / (is_fp4 ? 6 : 448))));
    for (size_t i = first; i < first + group; ++i) {
      const double value = ToFloats(got.subspan(i, 1))[0];
      const auto in_group = static_cast<float>(value / scale);
      EXPECT_EQ(is_fp4 ? Float4E2M1ToFloat(ToFloat4E2M1(in_group))
                       : Float8E4M3ToFloat(ToFloat8E4M3(in_group)),
                in_group)
          << where << ", number " << i << " is none of those that there are";
      const double step = is_fp4 ? std::max(std::abs(wanted[i]) / 4, scale / 4)
                                 : std::max(std::abs(wanted[i]) / 16, scale * 0x1p-10);
      ASSERT_NEAR(value, wanted[i], step + 1e-5 * most) << where << ", number " << i;
    }
  }
}

}  // namespace outrider::cuda
