#include "outrider/ops/cpu/cpu_step_inputs.h"

#include "outrider/ops/own_part.h"

namespace outrider::cpu {

namespace {

void FillSpans(std::span<const RequestRows> requests, int32_t first_row, int32_t group,
               std::vector<AttentionSpan>& spans) {
  spans.clear();
  for (const RequestRows& r : requests) {
    spans.push_back(
        {r.first_row - first_row, r.query_length, r.context_length, r.block_table(group)});
  }
}

}  // namespace

CpuStepInputs::CpuStepInputs() = default;
CpuStepInputs::~CpuStepInputs() = default;

const OwnRows* CpuStepInputs::own() const { return part_ == nullptr ? nullptr : &part_->own(); }

void CpuStepInputs::AssignRows(const BatchLayout& layout, const AttentionPlan& plan,
                               RowCount /*count*/, std::span<const int32_t> places) {
  OUTRIDER_CHECK(places.empty(), "this device keeps no tokens");
  AssignBounds(layout, plan);
  tokens_.Assign(layout.tokens());
  positions_ = layout.positions();
  requests_ = layout.requests();
  groups_.resize(layout.groups().size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto g = static_cast<int32_t>(i);
    Group& group = groups_[i];
    group.slots = layout.slot_mapping(g).data();
    FillSpans(plan.one_path(), 0, g, group.one_path);
    FillSpans(plan.decode_runs(), plan.first_decode_row(), g, group.decode);
    FillSpans(plan.prompts(), 0, g, group.prompts);
    FillSpans(plan.left_over(), 0, g, group.left_over);
  }
  const DecodeKernel kernel = DecodeKernelOf(plan.backend());
  uniform_length_ = kernel.lengths == QueryLengths::kRagged ? 0 : plan.query_length();
  pads_ = kernel.lengths == QueryLengths::kUniform && kernel.policy == UniformPolicy::kPad;
  if (plan.cache_place().ranks == 1) return;
  if (part_ == nullptr) part_ = std::make_unique<OwnPart<CpuStepInputs>>(layout, plan);
  part_->Divide(layout);
  part_->Assign(RowCount::kExact);
}

}  // namespace outrider::cpu
