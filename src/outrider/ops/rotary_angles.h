// The angles of rotary position embedding, the same bits on every device.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace outrider {

/// Cosine and sine of position * frequency, times `magnitude`: [frequencies] each.
inline void FillAngles(int32_t position, std::span<const float> frequencies, float magnitude,
                       float* cos, float* sin) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    cos[i] = std::cos(angle) * magnitude;
    sin[i] = std::sin(angle) * magnitude;
  }
}

}  // namespace outrider
