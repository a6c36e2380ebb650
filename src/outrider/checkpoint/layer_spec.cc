#include "outrider/checkpoint/layer_spec.h"

#include <cmath>

namespace outrider {

double YarnScaling::Magnitude(double a) const { return 0.1 * a * std::log(factor) + 1; }

double RotarySpec::Magnitude() const {
  return yarn ? yarn->Magnitude(yarn->mscale) / yarn->Magnitude(yarn->mscale_all_dim) : 1;
}

}  // namespace outrider
