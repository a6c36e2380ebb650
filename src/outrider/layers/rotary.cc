#include "outrider/layers/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace outrider {

namespace {

/// By Llama3Scaling.
void ScaleAsLlama3(const Llama3Scaling& scaling, std::vector<float>& frequencies) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = scaling.low_frequency_factor;
  const double high = scaling.high_frequency_factor;
  for (float& f : frequencies) {
    const double turns = original * static_cast<double>(f) / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    const auto frequency = static_cast<double>(f);
    f = static_cast<float>((1 - kept) * frequency / scaling.factor + kept * frequency);
  }
}

}  // namespace

std::vector<float> RotaryFrequencies(const RotarySpec& spec) {
  const auto dim = static_cast<double>(spec.dims);
  const auto half = static_cast<size_t>(spec.dims / 2);
  std::vector<float> frequencies(half);
  for (size_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(2.0 * static_cast<double>(i) / dim);
    frequencies[i] = 1.0F / std::pow(static_cast<float>(spec.theta), exponent);
  }
  if (!spec.turns) {
    std::ranges::fill(frequencies, 0.0F);
    return frequencies;
  }
  if (spec.llama3) ScaleAsLlama3(*spec.llama3, frequencies);
  if (!spec.yarn) return frequencies;

  const YarnScaling& yarn = *spec.yarn;
  const auto dimension_of = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(yarn.original_max_position_embeddings) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
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

int32_t RotaryKinds::Add(const RotarySpec& spec, bool inverse) {
  const auto known = std::ranges::find_if(
      kinds_, [&](const Kind& kind) { return kind.spec == spec && kind.inverse == inverse; });
  if (known != kinds_.end()) return static_cast<int32_t>(known - kinds_.begin());
  kinds_.push_back({spec, inverse, RotaryFrequencies(spec)});
  // cos(-x) = cos(x), sin(-x) = -sin(x).
  if (inverse) {
    for (float& frequency : kinds_.back().frequencies) frequency = -frequency;
  }
  return static_cast<int32_t>(kinds_.size()) - 1;
}

std::span<const Rotary> RotaryKinds::Rows(const Context& context, const StepInputs& inputs) {
  rows_.clear();
  for (const Kind& kind : kinds_) {
    rows_.push_back(context.ops.MakeRotary(context, kind.frequencies,
                                           static_cast<float>(kind.spec.Magnitude()),
                                           kind.spec.interleaved, inputs));
  }
  return rows_;
}

}  // namespace outrider
