// Which row of which matrix a packed row of a weight is.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/matmul/matmul_shape.h"

namespace outrider::cuda {

struct PackArguments {
  UnpackedWeight source;
  int rows;  // of a source
  int k;
  int units;  // of a row of units
  uint8_t* packed;
  float* scales;  // of blocks or rows
};

/// Packed row `row` stands for row `index` of gate or up, or of the one matrix.
struct SourceRow {
  bool up;
  int index;
};

__device__ __forceinline__ SourceRow FindRow(bool gate_up, int row) {
  if (!gate_up) return {false, row};
  return {row % 16 >= 8, row / 16 * 8 + row % 8};
}

/// Units of a weight of 4 bits, a block of threads each, and the rows' scales of kFp4.
void LaunchPackFourBits(WeightFormat format, const PackArguments& args, dim3 units,
                        cudaStream_t stream);

}  // namespace outrider::cuda
