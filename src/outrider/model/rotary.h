// Rotary position embedding with YaRN: frequencies of a model, and the angles of a step's rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider {

/// Inverse frequencies [R / 2] in float32. With YaRN (Peng et al., arXiv:2309.00071) they blend
/// theta^(-2i/R) / factor and theta^(-2i/R) by a ramp between the dimensions that turn beta_fast
/// and beta_slow times over the original context.
std::vector<float> RotaryFrequencies(const ModelConfig& config);

/// cos and sin of position * frequency, times `magnitude`, for each row; memory from `scratch`.
RotaryRows MakeRotaryRows(std::span<const float> frequencies, float magnitude, bool interleaved,
                          std::span<const int32_t> positions, Scratch& scratch);

}  // namespace outrider
