// The GPU's StepSampler. Heads run on the device; likeliest tokens are chosen there. Where more is
// asked for, the host reads the logits and draws from them as the CPU's sampler does, so that a
// seed means one thing on both.
#pragma once

#include "outrider/ops/cpu/cpu_sampler.h"

namespace outrider::cuda {

class CudaSampler : public cpu::CpuSampler {
 public:
  using CpuSampler::CpuSampler;

 private:
  void MakeLogits(const Context& context, const HeadRows& rows, MatrixView<float> logits) override;
};

}  // namespace outrider::cuda
