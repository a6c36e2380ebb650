#include "outrider/ops/weight_loader.h"

namespace outrider {

int64_t SumOf(const WeightSizes& sizes) {
  int64_t sum = 0;
  for (const auto& [dtype, bytes] : sizes) sum += bytes;
  return sum;
}

}  // namespace outrider
