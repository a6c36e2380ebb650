// What the drivers of a CPU operation share.
#pragma once

#include "outrider/base/scratch.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

struct Compute {
  const KernelTable& kernels;
  ThreadPool& pool;
  Scratch& scratch;
  DType operand_dtype;  // kF32 or kBF16: what matrix products round their inputs to
};

}  // namespace outrider::cpu
