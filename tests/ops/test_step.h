// Inputs of operations for tests: requests given by phase, rows, context and block tables.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "outrider/ops/ops.h"

namespace outrider {

struct StepPart {
  Phase phase = Phase::kDecode;
  int32_t context = 0;
  std::vector<int32_t> tokens = {};
  std::vector<std::vector<int32_t>> tables = {};  // by cache group
};

/// Which attention runs the rows of a TestStep.
struct StepAttention {
  KvCacheForm form = KvCacheForm::kLatent;
  AttentionBackend backend = AttentionBackend::kRagged;
  int32_t threshold = 4;
  bool listed = false;   // rows read lists of entries
  RowPaths others = {};  // of other layers

  RowPaths paths() const { return (listed ? RowPaths(RowPath::kListed) : RowPaths(form)) | others; }
};

/// A step of some requests, and what operations read of it.
class TestStep {
 public:
  TestStep(const Context& context, std::vector<CacheGroupSpec> groups, std::vector<StepPart> parts,
           const StepAttention& attention = {})
      : parts_(std::move(parts)),
        layout_(std::move(groups)),
        plan_(attention.backend, attention.threshold, attention.paths()),
        inputs_(context.ops.MakeStepInputs()) {
    AssignTo(*inputs_);
  }
  TestStep(const TestStep&) = delete;
  TestStep& operator=(const TestStep&) = delete;

  void AssignTo(StepInputs& inputs, RowCount count = RowCount::kExact) {
    std::vector<RequestWork> work;
    for (const StepPart& part : parts_) {
      work.push_back({.slot = static_cast<int32_t>(work.size()),
                      .phase = part.phase,
                      .context_length = part.context,
                      .tokens = part.tokens,
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = part.tables});
    }
    layout_.Assign(work);
    plan_.Assign(layout_);
    inputs.Assign(layout_, plan_, count);
  }

  /// Rows stand in its order.
  const BatchLayout& layout() const { return layout_; }
  const StepInputs& inputs() const { return *inputs_; }

 private:
  std::vector<StepPart> parts_;
  BatchLayout layout_;
  AttentionPlan plan_;
  std::unique_ptr<StepInputs> inputs_;
};

}  // namespace outrider
