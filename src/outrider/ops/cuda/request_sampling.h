// Sampling parameters as the drawing kernels read them.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/sampling/sampling_params.h"

namespace outrider::cuda {

/// The sampling of a request that asks for no log-probabilities, penalties or biases.
inline RequestSampling SamplingOf(const SamplingParams& params, uint64_t seed) {
  RequestSampling sampling;
  sampling.seed = seed;
  sampling.temperature = params.temperature;
  sampling.top_k = params.top_k;
  sampling.top_p = params.top_p;
  sampling.min_p = params.min_p;
  return sampling;
}

}  // namespace outrider::cuda
