// Which body of the matrix products runs, by the sizes of a product. It changes no bit.
#pragma once

#include "outrider/kernels/cuda/matmul/matmul_layout.h"

namespace outrider::cuda {

/// Where the scales of blocks or rows stand, of a weight that has them.
const void* ScalesOf(const PackedWeight& weight);

/// `segments`: the weight has several.
MatMulBodyFacts Facts(WeightFormat format, const MatMulShape& shape, bool segments);

/// The fastest, as far as is known, for `rows` rows; `numbered`: rows have numbers.
MatMulShape ChooseShape(const PackedWeight& weight, int rows, bool numbered);

/// Rows of x whose tiles the multiprocessors take at once, in products of `rows` rows that have no
/// numbers: a product of a multiple of them leaves none without work before its end.
int RowsAtOnce(const PackedWeight& weight, int rows);

/// The shape for tiles with up to `tile_rows` rows of one expert, which has about `rows_each`.
MatMulShape ChooseExpertShape(WeightFormat format, int tile_rows, int rows_each);

/// 8, 16, 32, 64 or 128: the least that is enough, or 128.
int NarrowTokens(int rows);

}  // namespace outrider::cuda
