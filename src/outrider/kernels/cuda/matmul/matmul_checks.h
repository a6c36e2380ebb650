// What calls of the matrix products must be. `what` is the call's name; all throw Error, with what
// would be right.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/matmul/matmul.h"

namespace outrider::cuda {

void CheckWeight(const char* what, const PackedWeight& w, int experts = 1);

/// Rows of x, y or of room for them.
void CheckRows(const char* what, const char* name, const void* data, int64_t stride, int columns);

void CheckDestinations(const char* what, const MatMulParams& params);

/// A shape that a measurement or a test asks for. segments: of K; numbered: rows of x are.
void CheckShape(const char* what, const MatMulShape& shape, const PackedWeight& w, int segments,
                bool numbered);

}  // namespace outrider::cuda
