// A fault of the GPU, made on purpose.
#pragma once

namespace outrider::cuda {

/// Launches a kernel that stops with an error. From then on every call of CUDA fails.
void LaunchTrap();

}  // namespace outrider::cuda
