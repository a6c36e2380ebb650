// What a network promises the inputs of its steps: layout and plan stay as they are while they are
// read, also where a pass has two layouts.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

/// Keeps what it was given, as a device may that copies it later.
class KeepingInputs : public cpu::CpuStepInputs {
 public:
  void AssignRows(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                  std::span<const int32_t> places) override {
    CpuStepInputs::AssignRows(layout, plan, count, places);
    layout_ = &layout;
    plan_ = &plan;
  }
  void ExpectKept() const {
    EXPECT_EQ(layout_->num_rows(), num_rows());
    int32_t rows = 0;
    for (const auto requests : {plan_->decode_runs(), plan_->prompts(), plan_->left_over()}) {
      for (const RequestRows& request : requests) rows += request.query_length;
    }
    EXPECT_EQ(rows, num_rows());
  }

 private:
  const BatchLayout* layout_ = nullptr;
  const AttentionPlan* plan_ = nullptr;
};

class KeepingOps : public cpu::CpuOps {
 public:
  KeepingOps() : CpuOps(GetKernels(SelectIsa())) {}
  std::unique_ptr<StepInputs> MakeStepInputs() const override {
    return std::make_unique<KeepingInputs>();
  }
  void WriteLatentEntries(const Context& context, const MlaShape& shape, const StepInputs& inputs,
                          const EntryArgs& args) const override {
    static_cast<const KeepingInputs&>(inputs).ExpectKept();
    ++writes;
    CpuOps::WriteLatentEntries(context, shape, inputs, args);
  }
  mutable int writes = 0;
};

TEST(NetworkStepInputsTest, LayoutsAndPlansOfAPassStay) {
  const KeepingOps ops;
  ThreadPool pool(1);
  const ModelConfig config = ReadModelConfig(TinyModelDirectory());
  const auto source = OpenCheckpoint(TinyModelDirectory(), config);
  const auto network = LoadNetwork(config, 1, *source, {DType::kF32}, {{ops, &pool}, DType::kF32});
  const NetworkCache needs = network->cache_needs();
  KvCache cache(network->device(), MakeCacheConfig(needs, DType::kF32, 16, 2), needs.layers,
                DType::kF32);
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9};
  const std::vector<std::vector<int32_t>> tables = {{0, 1}};
  const auto layout = [&](int32_t first, int32_t rows) {
    BatchLayout result(16);
    result.Assign(std::vector{RequestWork{
        .context_length = first,
        .tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
        .draft_tokens = {},
        .samples = false,
        .block_tables = tables}});
    return result;
  };
  const BatchLayout all = layout(0, 5);
  const BatchLayout entries = layout(0, 4);
  const BatchLayout outputs = layout(4, 1);
  const auto rows = ops.MakeRows(5, network->hidden_size());
  network->Forward(all, cache, rows->rows());
  network->ForwardMtp(0, entries, outputs, cache, rows->rows(), rows->rows());
  EXPECT_EQ(ops.writes, config.num_hidden_layers() + 2);
}

}  // namespace
}  // namespace outrider
