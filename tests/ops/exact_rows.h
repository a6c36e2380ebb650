// Rows and attention in float64, as the definitions of operations say: what tests of every device
// compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/ops/cpu/entry_codec.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {

using Doubles = std::vector<double>;

/// Numbers that all devices read alike.
inline TestMatrix RandomBf16(int64_t rows, int64_t cols, std::mt19937& random) {
  TestMatrix m = TestMatrix::Random(rows, cols, random);
  for (float& v : m.values) v = RoundToBFloat16(v);
  return m;
}

/// Weights of a norm, about 1.
inline TestMatrix RandomNorm(int64_t cols, std::mt19937& random) {
  TestMatrix m = TestMatrix::Random(1, cols, random);
  for (float& v : m.values) v = 1 + 0.2F * v;
  return m;
}

inline constexpr float kAngleMagnitude = 1.25F;

/// Of `rope` rotated numbers.
inline std::vector<float> FrequenciesOf(int32_t rope) {
  std::vector<float> frequencies(static_cast<size_t>(rope / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(10000.0F, -static_cast<float>(i) / static_cast<float>(frequencies.size()));
  }
  return frequencies;
}

/// Rotates numbers by the angles of a position.
inline void Turn(std::span<double> x, int32_t position, bool interleaved) {
  const std::vector<float> frequencies = FrequenciesOf(static_cast<int32_t>(x.size()));
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    double& a = x[interleaved ? 2 * i : i];
    double& b = x[interleaved ? 2 * i + 1 : half + i];
    const double angle = static_cast<float>(position) * frequencies[i];  // of float32 everywhere
    const double cos = kAngleMagnitude * std::cos(angle);
    const double sin = kAngleMagnitude * std::sin(angle);
    const double turned = a * cos - b * sin;
    b = a * sin + b * cos;
    a = turned;
  }
}

/// Divides by the root of the mean square. weight: null for none.
inline void NormExactly(std::span<double> x, const float* weight, float eps) {
  const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{eps});
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= inverse * (weight == nullptr ? 1.0 : double{weight[i]});
  }
}

/// The numbers that the entry in a slot of the host's memory stands for.
inline std::vector<float> NumbersOf(const LayerCache& layer, int64_t slot) {
  std::vector<float> numbers(static_cast<size_t>(layer.width));
  if (layer.dtype != DType::kF8E4M3 || layer.has_scales) {
    const float* const from = cpu::LoadFloats(layer, slot, numbers.data());
    if (from != numbers.data()) std::copy_n(from, numbers.size(), numbers.begin());
    return numbers;
  }
  const std::byte* const codes = layer.data + layer.SlotOffset(slot);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = Float8E4M3ToFloat(std::to_integer<uint8_t>(codes[i]));
  }
  return numbers;
}

/// What a head reads of an entry.
struct KeyAndValue {
  std::span<const float> key;
  std::span<const float> value;
};

/// One head's attention: the result, and beside each number the sum of the sizes of its terms.
struct ExactHead {
  Doubles out;
  Doubles sizes;

  /// q: of the keys' width. sink: null for none.
  ExactHead(const std::vector<KeyAndValue>& entries, const float* q, double scale,
            const float* sink = nullptr) {
    Doubles weights;
    for (const KeyAndValue& e : entries) {
      weights.push_back(scale * std::inner_product(e.key.begin(), e.key.end(), q, 0.0));
    }
    double max = *std::ranges::max_element(weights);
    if (sink != nullptr) max = std::max(max, double{*sink});
    double sum = sink == nullptr ? 0 : std::exp(double{*sink} - max);
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    out.resize(entries.front().value.size());
    sizes.resize(out.size());
    for (size_t e = 0; e < entries.size(); ++e) {
      for (size_t i = 0; i < out.size(); ++i) {
        const double term = weights[e] / sum * double{entries[e].value[i]};
        out[i] += term;
        sizes[i] += std::abs(term);
      }
    }
  }
};

}  // namespace outrider
