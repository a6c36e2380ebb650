#include "outrider/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace outrider {

std::vector<float> RotaryFrequencies(const ModelConfig& config) {
  const auto dim = static_cast<double>(config.qk_rope_head_dim);
  const auto half = static_cast<size_t>(config.qk_rope_head_dim / 2);
  std::vector<float> frequencies(half);
  for (size_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(2.0 * static_cast<double>(i) / dim);
    frequencies[i] = 1.0F / std::pow(static_cast<float>(config.rope_theta), exponent);
  }
  if (!config.yarn) return frequencies;

  const YarnScaling& yarn = *config.yarn;
  const auto dimension_of = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(yarn.original_max_position_embeddings) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.rope_theta));
  };
  double low = dimension_of(yarn.beta_fast);
  double high = dimension_of(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  // Negative when the two are out of range, which the published code does not mind either.
  const double width = low == high ? 0.001 : high - low;
  for (size_t i = 0; i < half; ++i) {
    const auto ramp =
        static_cast<float>(std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0));
    const float interpolated = frequencies[i] / static_cast<float>(yarn.factor);
    frequencies[i] = interpolated * ramp + frequencies[i] * (1.0F - ramp);
  }
  return frequencies;
}

RotaryRows MakeRotaryRows(std::span<const float> frequencies, float magnitude, bool interleaved,
                          std::span<const int32_t> positions, Scratch& scratch) {
  const auto rows = static_cast<int64_t>(positions.size());
  const auto half = static_cast<int64_t>(frequencies.size());
  const MatrixView<float> cos = scratch.Matrix(rows, half);
  const MatrixView<float> sin = scratch.Matrix(rows, half);
  for (int64_t r = 0; r < rows; ++r) {
    const auto position = static_cast<float>(positions[static_cast<size_t>(r)]);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * frequencies[static_cast<size_t>(i)];
      cos.row(r)[i] = std::cos(angle) * magnitude;
      sin.row(r)[i] = std::sin(angle) * magnitude;
    }
  }
  return {cos, sin, interleaved};
}

}  // namespace outrider
