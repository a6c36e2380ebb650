// The CPU's operations with an indexer's queries as a GPU has them, for tests.
#pragma once

#include <cstdint>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/sparse.h"

namespace outrider {

/// The CPU's operations with an indexer's queries rounded to bfloat16, before and after their
/// rotation, as the GPU holds them. Each rounding adds near-ties of the choice.
class RoundedQueriesOps : public cpu::CpuOps {
 public:
  RoundedQueriesOps() : CpuOps(GetKernels(SelectIsa())) {}

  void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
              const Rotary& rotary) const override {
    if (heads > 1) Round(x);
    CpuOps::Rotate(context, x, heads, offset, rotary);
  }
  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    Round(args.q);
    return CpuOps::SelectEntries(context, inputs, args);
  }

 private:
  static void Round(Tensor x) {
    const MatrixView<float> rows = x.floats();
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t i = 0; i < rows.cols; ++i) rows.row(r)[i] = RoundToBFloat16(rows.row(r)[i]);
    }
  }
};

}  // namespace outrider
