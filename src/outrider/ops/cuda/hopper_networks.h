// Which networks the Hopper kernels run.
#pragma once

#include "outrider/checkpoint/model_config.h"

namespace outrider::cuda {

/// Throws Error for a network that the Hopper kernels do not run, with what they do run.
void CheckRunsOnHopper(const ModelConfig& config, int num_mtp_modules);

/// The same for an EAGLE-3 drafter of a network that they run.
void CheckDrafterRunsOnHopper(const ModelConfig& target, const ModelConfig& drafter);

}  // namespace outrider::cuda
