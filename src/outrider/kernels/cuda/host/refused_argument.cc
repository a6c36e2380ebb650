#include "outrider/kernels/cuda/host/refused_argument.h"

#include "outrider/base/error.h"

namespace outrider::cuda {

void ThrowInvalidArgument(const std::string& message) { throw InvalidArgument("{}", message); }

}  // namespace outrider::cuda
