// The way back from a key of token_order.h.
#pragma once

#include "outrider/base/token_order.h"

namespace outrider::cuda {

/// The float of an OrderKey.
__device__ __forceinline__ float OfOrderKey(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFF : ~key);
}

}  // namespace outrider::cuda
