#include "tests/engine/cuda/trap_kernel.h"

namespace outrider::cuda {
namespace {

__global__ void TrapKernel() { __trap(); }

}  // namespace

void LaunchTrap() { TrapKernel<<<1, 1>>>(); }

}  // namespace outrider::cuda
