// Attention of the rows of a step where ranks may each have the cache of their own requests
// (OwnRows): a rank runs that of its rows, with all heads and as if it were alone, and the results
// are brought together.
#pragma once

#include "outrider/ops/ops.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

/// attend(context, inputs, h, x) adds to rows x what attention makes of rows h; `inputs` are of
/// these rows. Afterwards every rank has all rows of x. Where rows are divided, `attend` gets this
/// rank's, and is not called where it has none. h, x: the rows of `inputs`.
template <typename Attend>
void AttendToOwnRows(const Context& context, const StepInputs& inputs, Tensor h, Tensor x,
                     Attend attend) {
  const OwnRows* const own = inputs.own();
  if (own == nullptr) return attend(context, inputs, h, x);
  const Scratch::Frame frame(context.arena);
  const int64_t rows = own->inputs.num_rows();
  const Tensor own_x = context.Rows(rows, x.cols);
  if (rows > 0) {
    const Scratch::Frame inner(context.arena);
    const Context alone = context.Alone();
    const Tensor own_h = context.Activations(rows, h.cols);
    context.ops.TakeOwnRows(alone, inputs, h, own_h);
    context.ops.TakeOwnRows(alone, inputs, x, own_x);
    attend(alone, own->inputs, own_h, own_x);
  }
  context.ops.ShareOwnRows(context, inputs, own_x, x);
}

/// write(context, inputs, x) writes cache entries of rows x, as above; nothing else comes of it.
template <typename Write>
void WriteOwnEntries(const Context& context, const StepInputs& inputs, Tensor x, Write write) {
  const OwnRows* const own = inputs.own();
  if (own == nullptr) return write(context, inputs, x);
  const int64_t rows = own->inputs.num_rows();
  if (rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Context alone = context.Alone();
  const Tensor own_x = context.Rows(rows, x.cols);
  context.ops.TakeOwnRows(alone, inputs, x, own_x);
  write(alone, own->inputs, own_x);
}

}  // namespace outrider
