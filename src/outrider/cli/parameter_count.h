// How many parameters a network has, counted from its config.
#pragma once

#include <cstdint>
#include <string>

#include "outrider/checkpoint/model_config.h"

namespace outrider::cli {

/// Weights, norms and biases; the block scales of FP8 weights do not count.
struct ParameterCount {
  int64_t target = 0;  // embedding, layers, head
  int64_t target_active =
      0;  // of those, what one token uses: routed experts that are not chosen are left out
  int64_t mtp = 0;  // MTP modules without what they share with the target
};

ParameterCount CountParameters(const ModelConfig& config);

/// "671.0 B", "16.5 M".
std::string ParameterCountText(int64_t count);

}  // namespace outrider::cli
