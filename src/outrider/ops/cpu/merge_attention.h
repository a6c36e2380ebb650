// Merging attention over two sets of keys into attention over both, by the log-sum-exp of their
// scores: w_i = exp(lse_i - max(lse_1, lse_2)), out = sum w_i out_i / sum w_i, lse = max + ln sum
// w_i.
#pragma once

#include <cstdint>

#include "outrider/base/matrix_view.h"
#include "outrider/base/thread_pool.h"

namespace outrider::cpu {

/// Attention of some rows over some keys. A (row, head) that saw no key has lse -infinity; its
/// output is then not read.
struct PartialAttention {
  MatrixView<float> out;  // [rows, heads * V], normalised
  MatrixView<float> lse;  // [rows, heads], natural logarithm of the sum of exp(score)
};

/// Turns the state of a running softmax into a partial, in place: partial.out holds unnormalised
/// outputs, partial.lse the running maxima, `running_sum` [rows, heads] the running sums. A (row,
/// head) with sum 0 becomes an empty partial with output 0.
void FinishPartial(ThreadPool& pool, MatrixView<const float> running_sum, PartialAttention partial);

/// Merges `part` into `total`, row by row. An empty partial changes no bit: of an empty `part`
/// nothing is taken, an empty `total` becomes `part`.
void MergeAttention(ThreadPool& pool, PartialAttention part, PartialAttention total);

}  // namespace outrider::cpu
