// Where the codes and scales of weights of 4 bits stand in a packed unit of 64 rows and 256 columns
// (matmul_layout.h): as the threads of a warpgroup read them, 16 bytes at a time.
//
// Codes: four quarters of 64 columns; of a quarter thread t (warp w = t / 32, lane l = t % 32) has
// 16 bytes, a word of 32 bits for each slice of 16 columns. A word has four pairs of neighbouring
// columns, the even one in the lower half, the odd one in the upper: pair p is of row
// 16 w + l / 4 + p % 2 * 8 and columns l % 4 * 2 + p / 2 * 8 of the slice. So it is one thread's
// operand A of wgmma. Which bits are pair p's: `Int4Part`, `Fp4Part`.
//
// Scales of groups, behind the codes: for each of 32 pairs of rows (16 w + i, i = l / 4, and the
// one 8 further down) what belongs to it by group of columns, the upper row's scale first:
//   kInt4:  bf16; two blocks (groups 0 to 3, 4 to 7) of 32 times 16 bytes
//   kFp4:   a byte, the exponent of the bf16 factor that makes a widened code the value divided by
//           the row's scale; 32 times 16 bytes
//   kNvfp4: a byte, 8 (e + 9) + m of the scale 2^e (1 + m / 8); two blocks (groups 0 to 7, 8 to 15)
//           of 32 times 16 bytes
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/matmul/matmul.h"

namespace outrider::cuda {

inline constexpr int kFourBitUnitColumns = 256;
inline constexpr int kFourBitCodeBytes = 64 * kFourBitUnitColumns / 2;  // of a unit
inline constexpr int kQuarterColumns = 64;
inline constexpr int kQuarterBytes = kFourBitCodeBytes / 4;
inline constexpr int kRowPairs = 32;
inline constexpr int kScaleBlockBytes = kRowPairs * 16;

/// Codes and scales of groups.
constexpr int FourBitUnitBytes(WeightFormat format) {
  return kFourBitCodeBytes + (format == WeightFormat::kFp4 ? 1 : 2) * kScaleBlockBytes;
}

/// Powers of two between a code's bits as those of a bf16 and its value.
inline constexpr int kFp4Bits = 126;
/// A row's scale of kNvfp4 has this power of two more than its float32 scale, so that the factors
/// of codes are in bf16's range: scales of groups go up to 448 < 2^9.
inline constexpr int kNvfp4RowPower = 9;
/// The bf16 bits of a factor of kNvfp4 are 16 times its byte, plus this: its power is
/// kFp4Bits - kNvfp4RowPower - 9 where the byte is 0.
inline constexpr uint32_t kNvfp4FactorBits = (127 + kFp4Bits - kNvfp4RowPower - 9) << 7;

/// A code of 4 bits as part of a word: of pair `pair`, its even column or the odd one.
constexpr uint32_t Int4Part(uint32_t code, int pair, int odd) {
  return code << (4 * pair + 16 * odd);
}

/// An e2m1 code as such a part: sign, two bits of exponent, one of mantissa, wanted at the
/// bits 15, 8, 7, 6 of a bf16. Pair 0 is there, pairs 1 and 2 are moved there by rotations of the
/// word to the left by 6 and 12, which take the last three bits of pair 2 from the other half. Pair
/// 3 has what they leave, and is moved by 2 to the left but for a bit that goes 6 to the right.
constexpr uint32_t Fp4Part(uint32_t code, int pair, int odd) {
  const uint32_t sign = code >> 3 & 1, high = code >> 2 & 1, rest = code & 3, last = code & 7;
  const int half = 16 * odd, other = 16 - half;
  if (pair == 0) return (sign << 15 | last << 6) << half;
  if (pair == 1) return (sign << 9 | last) << half;
  if (pair == 2) return sign << (3 + half) | last << (10 + other);
  return (sign << 13 | high << 14 | rest << 4) << half;
}

}  // namespace outrider::cuda
