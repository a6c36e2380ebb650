// Element types of tensors, and exact conversions of the narrow ones to and from float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace outrider {

enum class DType { kF32, kBF16, kF16, kF8E4M3, kF8E8M0, kF4E2M1, kI4, kI8, kU8, kI32, kI64 };

namespace internal {
[[noreturn]] void RefuseSizeOfFourBits();
}

/// Bytes of one element. Not of kF4E2M1 and kI4: two of those share a byte.
constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
    case DType::kF4E2M1:
    case DType::kI4:
      break;
  }
  internal::RefuseSizeOfFourBits();
}

/// Elements of a row of kF4E2M1 that share a scale 2^(e - 127), which is of kF8E8M0.
inline constexpr int64_t kFp4Group = 32;
/// Group sizes with scales of kF8E4M3 (NVFP4), and of kI4 with scales of kBF16.
inline constexpr int64_t kNvfp4Group = 16;
inline constexpr int64_t kInt4Group = 32;
/// The least and the largest e of their scales: every product of a code and a scale is then 0 or a
/// normal bfloat16 value.
inline constexpr uint8_t kLeastFp4Exponent = 2;
inline constexpr uint8_t kLargestFp4Exponent = 252;

/// The field's name: "float32", "bfloat16", "float16", "float8_e4m3", "float8_e8m0", "float4_e2m1",
/// "int4", "int8", "uint8", "int32", "int64".
std::string_view DTypeName(DType dtype);

/// The type of a safetensors header ("F32", "BF16", "F16", "F8_E4M3", "F8_E8M0", "I8", "U8", "I32",
/// "I64"), if known.
std::optional<DType> DTypeFromSafetensors(std::string_view name);

/// The upper half of a float; the type of weights and cache entries.
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
inline float ToFloat(float x) { return x; }

/// Round to nearest, ties to even; NaN stays a (quiet) NaN, overflow becomes infinity.
inline BFloat16 ToBFloat16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

/// x rounded to the nearest bfloat16 value.
inline float RoundToBFloat16(float x) { return ToFloat(ToBFloat16(x)); }

/// IEEE half precision to float, exact.
float HalfToFloat(uint16_t bits);

/// float8 e4m3fn (no infinity, 0x7f and 0xff are NaN) to float, exact.
float Float8E4M3ToFloat(uint8_t bits);

/// The nearest float8 e4m3fn, ties to even; beyond its range +-448; NaN stays NaN.
uint8_t ToFloat8E4M3(float x);

/// float8 e8m0 (2^(bits - 127), 255 is NaN) to float, exact.
float Float8E8M0ToFloat(uint8_t bits);

/// A code of kI4, which is stored with 8 added to it; the lower four bits count.
inline float Int4ToFloat(uint8_t bits) { return static_cast<float>((bits & 0xf) - 8); }

/// float4 e2m1 (a sign, then 0, 0.5, 1, 1.5, 2, 3, 4 or 6) to float; the lower four bits count.
float Float4E2M1ToFloat(uint8_t bits);

/// The nearest float4 e2m1, ties to the even code; beyond its range +-6. NaN becomes 6.
uint8_t ToFloat4E2M1(float x);

}  // namespace outrider
