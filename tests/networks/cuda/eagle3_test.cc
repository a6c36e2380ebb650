// An EAGLE-3 drafter on a GPU: its rows beside the CPU's, and their bits in one pass and in many.
// Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "outrider/networks/eagle3_draft_model.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kEagleBlock = 64;

/// The bundled drafter's, but for the number of heads; 0: that, too.
ModelConfig DrafterConfig(int64_t heads) {
  ModelConfig config = ReadModelConfig(TinyEagle3Directory());
  if (heads > 0) std::get<MlaSpec>(config.layers.front().attention).heads = heads;
  return config;
}

/// The bundled model and a drafter on one device: the bundled one, or with other heads and dummy
/// weights.
class DrafterRun {
 public:
  DrafterRun(const Ops& ops, DType dtype, int64_t heads = 0)
      : config_(DrafterConfig(heads)),
        dtype_(dtype),
        pool_(TestThreads()),
        target_(LoadNetwork(target_config_, 0,
                            *OpenCheckpoint(TinyModelDirectory(), target_config_),
                            {.compute_dtype = dtype},
                            {{ops, &pool_}, dtype, AttentionPlan(AttentionBackend::kRagged, 1)})),
        draft_(config_, Eagle3Taps(*config_.eagle3, target_config_.num_hidden_layers(), {}, ""),
               LoadEagle3(config_,
                          heads > 0 ? *MakeDummyWeights(config_, 3)
                                    : *OpenCheckpoint(TinyEagle3Directory(), config_),
                          {.compute_dtype = dtype}, target_->device(), nullptr),
               *target_) {}

  int64_t width() const { return draft_.width(); }

  /// What comes out of every row but the last of a text, in passes of `chunk` rows.
  std::vector<float> Run(const std::vector<int32_t>& ids, Phase phase, int32_t chunk) {
    const Ops& ops = target_->device().ops;
    const auto length = static_cast<int32_t>(ids.size()) - 1;
    const std::vector<int32_t> blocks = FirstBlocks(length / kEagleBlock + 1);
    const NetworkCache needs =
        Eagle3DraftModel::CacheNeeds(target_config_, config_, KvCacheForm::kLatent);
    KvCache cache(target_->device(),
                  MakeCacheConfig(needs, dtype_, kEagleBlock, static_cast<int32_t>(blocks.size())),
                  needs.layers, dtype_);
    const int64_t taps = std::ssize(draft_.taps());
    const auto hidden = ops.MakeRows(length, target_->hidden_size());
    const auto tapped = ops.MakeRows(length, taps * target_->hidden_size());
    const auto out = ops.MakeRows(length, width());
    const auto none = ops.MakeStepInputs();
    const auto inputs = ops.MakeStepInputs();
    BatchLayout layout(kEagleBlock);
    AttentionPlan plan = draft_.attention();
    for (int32_t first = 0; first < length; first += chunk) {
      const int32_t count = std::min(chunk, length - first);
      const auto assign = [&](int32_t shift) {
        layout.Assign(std::vector{
            RequestWork{.slot = 0,
                        .phase = phase,
                        .context_length = first,
                        .tokens = std::span(ids).subspan(static_cast<size_t>(first + shift),
                                                         static_cast<size_t>(count)),
                        .draft_tokens = {},
                        .samples = false,
                        .block_tables = {&blocks, 1}}});
        plan.Assign(layout);
        inputs->Assign(layout, plan, RowCount::kExact);
      };
      assign(0);
      std::vector<LayerTap> wanted;
      for (const int32_t layer : draft_.taps()) {
        const int64_t column = std::ssize(wanted) * target_->hidden_size();
        wanted.push_back(
            {layer, tapped->rows().Rows(first, count).Columns(column, target_->hidden_size())});
      }
      target_->Forward(*inputs, cache, hidden->rows().Rows(first, count), wanted);
      const Tensor read = draft_.ReadTarget(tapped->rows().Rows(first, count));
      assign(1);
      draft_.Forward({0, *none, *inputs, read, out->rows().Rows(first, count)}, cache);
    }
    std::vector<float> rows(static_cast<size_t>(length * width()));
    ops.ToHost(draft_.MakeContext(), out->rows(), rows);
    return rows;
  }

 private:
  const ModelConfig target_config_ = ReadModelConfig(TinyModelDirectory());
  const ModelConfig config_;
  DType dtype_;
  ThreadPool pool_;
  std::unique_ptr<Network> target_;
  Eagle3DraftModel draft_;
};

class Eagle3OnGpuTest : public HopperTest<> {
 protected:
  const GoldenFile golden_{GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors"};
  const std::vector<int32_t> ids_ = golden_.Read<int32_t>("case2.ids");
};

TEST_F(Eagle3OnGpuTest, RowsBesideTheCpus) {
  const CudaOps ops;
  const Ops& cpu_ops = cpu::GetCpuOps(SelectIsa());
  // The bundled drafter has the target's 8 heads; layers of a network may differ.
  for (const int64_t heads : {0, 4}) {
    DrafterRun on_gpu(ops, DType::kBF16, heads);
    DrafterRun exact(cpu_ops, DType::kF32, heads);
    DrafterRun rounded(cpu_ops, DType::kBF16, heads);
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      ExpectAsNear(on_gpu.Run(ids_, phase, 1024), rounded.Run(ids_, phase, 1024),
                   exact.Run(ids_, phase, 1024), on_gpu.width(),
                   fmt::format("phase {}, {} heads", static_cast<int>(phase), heads));
    }
  }
}

TEST_F(Eagle3OnGpuTest, BitsDoNotDependOnThePass) {
  const CudaOps ops;
  DrafterRun run(ops, DType::kBF16);
  for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
    const std::vector<float> whole = run.Run(ids_, phase, 1024);
    for (const int32_t chunk : {1, 7, 30}) EXPECT_EQ(run.Run(ids_, phase, chunk), whole) << chunk;
  }
}

}  // namespace
}  // namespace outrider::cuda
