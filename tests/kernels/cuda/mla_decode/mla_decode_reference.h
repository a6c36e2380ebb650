// MLA decode attention of one row in double precision, straight from its definition; the meaning of
// the Hopper kernel's output for its tests and its benchmark.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace outrider::cuda {

inline float Bf16ToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  static_assert(sizeof(value) == sizeof(wide));
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t FloatToBf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float E4m3ToFloat(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

struct MlaReferenceRow {
  std::vector<double> output;  // [512]
  double lse;
};

/// `key(j)` gives a pointer to the 576 floats of key j; `sees(j)` whether the row sees it.
/// `sink` is NaN for none.
template <typename Key, typename Sees>
MlaReferenceRow ReferenceMlaRow(const float* query, int keys, double softmax_scale, double sink,
                                Key key, Sees sees) {
  std::vector<double> scores(keys);
  double top = -std::numeric_limits<double>::infinity();
  for (int j = 0; j < keys; ++j) {
    if (!sees(j)) {
      scores[j] = -std::numeric_limits<double>::infinity();
      continue;
    }
    const float* row = key(j);
    double dots[8] = {};  // apart, so that they need not wait for each other
    for (int d = 0; d < 576; d += 8) {
      for (int i = 0; i < 8; ++i) dots[i] += static_cast<double>(query[d + i]) * row[d + i];
    }
    double dot = 0;
    for (const double part : dots) dot += part;
    scores[j] = dot * softmax_scale;
    top = std::max(top, scores[j]);
  }
  MlaReferenceRow result;
  result.output.assign(512, 0.0);
  double sum = 0;
  for (int j = 0; j < keys; ++j) {
    if (scores[j] == -std::numeric_limits<double>::infinity()) continue;
    const double p = std::exp(scores[j] - top);
    sum += p;
    const float* row = key(j);
    for (int d = 0; d < 512; ++d) result.output[d] += p * row[d];
  }
  result.lse = sum > 0 ? top + std::log(sum) : -std::numeric_limits<double>::infinity();
  double factor = sum > 0 ? 1 / sum : 0;
  if (sum > 0 && !std::isnan(sink)) factor /= 1 + std::exp(sink - result.lse);
  for (double& value : result.output) value *= factor;
  return result;
}

}  // namespace outrider::cuda
