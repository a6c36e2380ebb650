#include "outrider/base/dtype.h"

#include <cmath>
#include <limits>

#include "outrider/base/error.h"

namespace outrider {

void internal::RefuseSizeOfFp4() { OUTRIDER_CHECK(false, "two float4_e2m1 numbers share a byte"); }

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
    case DType::kI8:
      return "int8";
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

float Float8E8M0ToFloat(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN()
                      : std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

float Float4E2M1ToFloat(uint8_t bits) {
  constexpr float kMagnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[bits & 7];
  return (bits & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace outrider
