#include "outrider/base/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outrider/base/error.h"

namespace outrider {

void internal::RefuseSizeOfFourBits() { OUTRIDER_CHECK(false, "two numbers share a byte"); }

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF8E4M3:
      return "float8_e4m3";
    case DType::kF8E8M0:
      return "float8_e8m0";
    case DType::kF4E2M1:
      return "float4_e2m1";
    case DType::kI4:
      return "int4";
    case DType::kI8:
      return "int8";
    case DType::kU8:
      return "uint8";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
  }
  OUTRIDER_CHECK(false);
}

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "F8_E4M3") return DType::kF8E4M3;
  if (name == "F8_E8M0") return DType::kF8E8M0;
  if (name == "I8") return DType::kI8;
  if (name == "U8") return DType::kU8;
  if (name == "I32") return DType::kI32;
  if (name == "I64") return DType::kI64;
  return std::nullopt;
}

float HalfToFloat(uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float value;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return negative ? -value : value;
}

float Float8E4M3ToFloat(uint8_t bits) {
  const bool negative = (bits & 0x80) != 0;
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 7;
  float value;
  if (exponent == 15 && mantissa == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
  }
  return negative ? -value : value;
}

uint8_t ToFloat8E4M3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return 0x7f | sign;
  if (magnitude >= 448) return 0x7e | sign;
  // A unit of the last place is 2^unit: 2^-9 below the smallest normal number, 2^-6.
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(magnitude) >> 23) - 127;
  const int unit = std::max(exponent - 3, -9);
  const auto inverse = std::bit_cast<float>(static_cast<uint32_t>(127 - unit) << 23);
  const auto count = static_cast<int>(std::nearbyint(magnitude * inverse));
  // Codes count up from 0 by units that double every eight; 16 units are 8 of the next.
  return static_cast<uint8_t>((unit + 9) * 8 + count) | sign;
}

float Float8E8M0ToFloat(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN()
                      : std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

float Float4E2M1ToFloat(uint8_t bits) {
  constexpr float kMagnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[bits & 7];
  return (bits & 8) != 0 ? -magnitude : magnitude;
}

uint8_t ToFloat4E2M1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float magnitude = std::fabs(x);
  // Between neighbours, the even code's side of the middle includes it.
  constexpr float kMiddles[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
  uint8_t code = 0;
  for (const float middle : kMiddles) {
    if (magnitude < middle || (magnitude == middle && code % 2 == 0)) return code | sign;
    ++code;
  }
  return code | sign;
}

}  // namespace outrider
