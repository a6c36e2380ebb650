// An EAGLE-3 drafter on a GPU: its rows beside the CPU's, and their bits in one pass and in many.
// Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "outrider/networks/eagle3_draft_model.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_sparse_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kEagleBlock = 64;

/// The bundled drafter's, but for the number of heads; 0: that, too.
ModelConfig DrafterConfig(int64_t heads) {
  ModelConfig config = ReadModelConfig(TinyEagle3Directory());
  if (heads > 0) std::get<MlaSpec>(config.layers.front().attention).heads = heads;
  return config;
}

/// A model and its drafter.
struct Pair {
  ModelConfig target;
  ModelConfig drafter;
  std::unique_ptr<WeightSource> target_weights;
  std::unique_ptr<WeightSource> drafter_weights;
};

/// The bundled ones, or with other heads and dummy weights in the drafter.
Pair PairOfHeads(int64_t heads) {
  Pair pair{ReadModelConfig(TinyModelDirectory()), DrafterConfig(heads), nullptr, nullptr};
  pair.target_weights = OpenCheckpoint(TinyModelDirectory(), pair.target);
  pair.drafter_weights = heads > 0 ? MakeDummyWeights(pair.drafter, 3)
                                   : OpenCheckpoint(TinyEagle3Directory(), pair.drafter);
  return pair;
}

Pair BundledPair() { return PairOfHeads(0); }

/// A small DeepSeek-V3.2 with the bundled model's tokens, whose indexer chooses all of them: which
/// are best is no matter of nearness.
Pair SparsePair() {
  SmallSparseSizes sizes = kGpuV32Sizes;
  sizes.top_k = 2048;
  const auto vocab = static_cast<int32_t>(ReadModelConfig(TinyModelDirectory()).vocab_size);
  const SmallSparseModel model(vocab, sizes);
  Pair pair{ReadModelConfig(model.directory()),
            ReadModelConfig(SmallEagle3(model.directory()).directory()), nullptr, nullptr};
  pair.target_weights = MakeDummyWeights(pair.target, 5);
  pair.drafter_weights = MakeDummyWeights(pair.drafter, 3);
  return pair;
}

/// The bundled model, and a drafter with Llama's attention.
Pair LlamaPair() {
  Pair pair = BundledPair();
  const SmallLlamaEagle3 drafter(TinyModelDirectory(), /*heads=*/14, /*kv_heads=*/2,
                                 /*head_dim=*/128, /*width=*/64);
  pair.drafter = ReadModelConfig(drafter.directory());
  pair.drafter_weights = MakeDummyWeights(pair.drafter, 3);
  return pair;
}

/// Both on one device.
class DrafterRun {
 public:
  DrafterRun(const Ops& ops, DType dtype, const Pair& pair)
      : target_config_(pair.target),
        config_(pair.drafter),
        dtype_(dtype),
        pool_(TestThreads()),
        target_(LoadNetwork(target_config_, 0, *pair.target_weights, {.compute_dtype = dtype},
                            {{ops, &pool_},
                             dtype,
                             AttentionPlan(AttentionBackend::kRagged, 1,
                                           RowPathsOf(target_config_, KvCacheForm::kLatent))})),
        draft_(config_, Eagle3Taps(*config_.eagle3, target_config_.num_hidden_layers(), {}, ""),
               LoadEagle3(config_, *pair.drafter_weights, {.compute_dtype = dtype},
                          target_->device(), nullptr),
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
    AttentionPlan target_plan = target_->attention();
    AttentionPlan draft_plan = draft_.attention();
    for (int32_t first = 0; first < length; first += chunk) {
      const int32_t count = std::min(chunk, length - first);
      const auto assign = [&](AttentionPlan& plan, int32_t shift) {
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
      assign(target_plan, 0);
      std::vector<LayerTap> wanted;
      for (const int32_t layer : draft_.taps()) {
        const int64_t column = std::ssize(wanted) * target_->hidden_size();
        wanted.push_back(
            {layer, tapped->rows().Rows(first, count).Columns(column, target_->hidden_size())});
      }
      target_->Forward(*inputs, cache, hidden->rows().Rows(first, count), wanted);
      const Tensor read = draft_.ReadTarget(tapped->rows().Rows(first, count));
      assign(draft_plan, 1);
      draft_.Forward({0, *none, *inputs, read, out->rows().Rows(first, count)}, cache);
    }
    std::vector<float> rows(static_cast<size_t>(length * width()));
    ops.ToHost(draft_.MakeContext(), out->rows(), rows);
    return rows;
  }

 private:
  const ModelConfig target_config_;
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
  const auto expect = [&](const Pair& pair, const char* what) {
    DrafterRun on_gpu(ops, DType::kBF16, pair);
    DrafterRun exact(cpu_ops, DType::kF32, pair);
    DrafterRun rounded(cpu_ops, DType::kBF16, pair);
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      ExpectAsNear(on_gpu.Run(ids_, phase, 1024), rounded.Run(ids_, phase, 1024),
                   exact.Run(ids_, phase, 1024), on_gpu.width(),
                   fmt::format("phase {}, {}", static_cast<int>(phase), what));
    }
  };
  expect(BundledPair(), "the target's 8 heads");
  expect(PairOfHeads(4), "4 heads");
  // Their rows take other paths, and the drafter's entries have another width than index keys.
  expect(SparsePair(), "beside an indexer");
  expect(LlamaPair(), "Llama's attention");
}

TEST_F(Eagle3OnGpuTest, BitsDoNotDependOnThePass) {
  const CudaOps ops;
  for (const auto& [pair, what] :
       {std::pair{&BundledPair, "latent"}, {&SparsePair, "sparse"}, {&LlamaPair, "Llama's"}}) {
    DrafterRun run(ops, DType::kBF16, pair());
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      const std::vector<float> whole = run.Run(ids_, phase, 1024);
      for (const int32_t chunk : {1, 7, 30}) {
        EXPECT_EQ(run.Run(ids_, phase, chunk), whole) << chunk << " " << what;
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
