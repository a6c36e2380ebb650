// Codes of 8 bits as the numbers that the tensor cores take.
#pragma once

#include <cstdint>

namespace outrider::cuda {

/// Four e4m3 codes as bf16, in order. Their bits as those of a bf16 are the value times 2^-120. The
/// codes of NaN become +-480.
__device__ __forceinline__ uint2 WidenFourCodes(uint32_t codes) {
  constexpr uint32_t kFactor = 0x7B807B80;  // 2^120 twice
  const uint32_t low_codes = codes << 8;
  uint32_t odd = (codes >> 4 & 0x07F007F0) | (codes & 0x80008000);
  uint32_t even = (low_codes >> 4 & 0x07F007F0) | (low_codes & 0x80008000);
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(odd) : "r"(kFactor));
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(even) : "r"(kFactor));
  return make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
}

}  // namespace outrider::cuda
