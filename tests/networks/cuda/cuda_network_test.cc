// The engine's own network over the GPU's operations: the bundled checkpoint beside transformers'
// golden files, and its bits in one step and in pieces. Needs a GPU of compute capability 9.0, and
// cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_rows.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kTokensPerBlock = 64;

/// Float32 rows that the device keeps.
struct FloatRows {
  FloatRows(const CudaOps& ops, int64_t rows, int64_t cols)
      : memory(ops.Allocate(static_cast<size_t>(rows * cols) * sizeof(float))),
        view(memory.as<float>(), rows, cols) {}
  Buffer memory;
  Tensor view;
};

/// Rows of the device, read back.
std::vector<float> Download(const CudaOps& ops, Tensor rows) {
  const FloatRows floats(ops, rows.rows, rows.cols);
  CopyTensor(rows, floats.view, ops.stream());
  std::vector<float> values(static_cast<size_t>(rows.rows * rows.cols));
  CheckCuda(cudaMemcpyAsync(values.data(), floats.view.data, values.size() * sizeof(float),
                            cudaMemcpyDeviceToHost, ops.stream()),
            "reading rows");
  ops.Synchronize();
  return values;
}

std::vector<double> LogSoftmaxOf(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - max - std::log(sum));
  return result;
}

class CudaNetworkTest : public HopperTest<> {
 protected:
  struct Loaded {
    Loaded() : pool(4) {
      const auto source = OpenCheckpoint(TinyModelDirectory(), config);
      model = LoadNetwork(config, 3, *source, {.compute_dtype = DType::kBF16},
                          {.device = {ops, &pool},
                           .operand_dtype = DType::kBF16,
                           .attention = AttentionPlan(AttentionBackend::kRagged, 4)});
    }
    ModelConfig config = ReadModelConfig(TinyModelDirectory());
    ThreadPool pool;
    CudaOps ops;
    std::unique_ptr<Network> model;
  };

  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    static Loaded* const shared = new Loaded;
    loaded_ = shared;
  }

  /// What the target (0) and the modules after it give for a text: [length, hidden] each, in device
  /// memory. A module's last rows read tokens that are not known; they are of no use.
  /// RowCount::kRounded: passes are recorded, and repeated when they come again.
  std::vector<std::unique_ptr<RowMemory>> Run(const std::vector<int32_t>& ids, Phase phase,
                                              int32_t chunk, int32_t modules,
                                              RowCount row_count = RowCount::kExact) {
    Network& model = *loaded_->model;
    const auto length = static_cast<int32_t>(ids.size());
    const std::vector<int32_t> blocks =
        FirstBlocks((length + kTokensPerBlock - 1) / kTokensPerBlock);
    const NetworkCache needs = model.cache_needs();
    KvCache cache(
        model.device(),
        MakeCacheConfig(needs, DType::kBF16, kTokensPerBlock, static_cast<int32_t>(blocks.size())),
        needs.layers, DType::kBF16);
    std::vector<int32_t> padded = ids;
    padded.resize(ids.size() + 4, 0);
    std::vector<std::unique_ptr<RowMemory>> rows;
    for (int32_t kind = 0; kind <= modules; ++kind) {
      rows.push_back(loaded_->ops.MakeRows(length, model.hidden_size()));
    }
    BatchLayout layout(kTokensPerBlock);
    AttentionPlan plan = model.attention();
    const auto inputs = loaded_->ops.MakeStepInputs();
    const auto no_inputs = loaded_->ops.MakeStepInputs();
    const int64_t most = RoundedRows(chunk);
    const auto previous = loaded_->ops.MakeRows(most, model.hidden_size());
    const auto hidden = loaded_->ops.MakeRows(most, model.hidden_size());
    for (int32_t first = 0; first < length; first += chunk) {
      const int32_t count = std::min(chunk, length - first);
      for (int32_t kind = 0; kind <= modules; ++kind) {
        layout.Assign(std::vector{
            RequestWork{.slot = 0,
                        .phase = phase,
                        .context_length = first,
                        .tokens = std::span(padded).subspan(static_cast<size_t>(first + kind),
                                                            static_cast<size_t>(count)),
                        .draft_tokens = {},
                        .samples = false,
                        .block_tables = {&blocks, 1}}});
        const auto of = [&](int32_t k) {
          return rows[static_cast<size_t>(k)]->rows().Rows(first, count);
        };
        plan.Assign(layout);
        inputs->Assign(layout, plan, row_count);
        if (kind == 0) {
          model.Forward(*inputs, cache, hidden->rows());
        } else {
          CopyTensor(of(kind - 1), previous->rows().Rows(0, count), loaded_->ops.stream());
          model.ForwardMtp(kind - 1, *no_inputs, *inputs, cache, previous->rows(), hidden->rows());
        }
        CopyTensor(hidden->rows().Rows(0, count), of(kind), loaded_->ops.stream());
      }
    }
    return rows;
  }

  std::vector<float> Logits(int32_t module, Tensor hidden) {
    const FloatRows logits(loaded_->ops, hidden.rows, loaded_->model->vocab_size());
    const std::vector<int32_t> rows = FirstBlocks(static_cast<int32_t>(hidden.rows));
    loaded_->model->Logits(module, hidden, rows, logits.view);
    return Download(loaded_->ops, logits.view);
  }

  /// The largest error of a log-probability among those that matter: the likeliest token's and the
  /// next one's of the text, over the golden's rows, which are the last of `logits`.
  double WorstLogprob(const std::vector<float>& logits, const std::vector<float>& golden,
                      const std::vector<int32_t>& next) const {
    const auto vocab = static_cast<size_t>(loaded_->config.vocab_size);
    const size_t rows = golden.size() / vocab;
    const size_t first = logits.size() / vocab - rows;
    double worst = 0;
    for (size_t r = 0; r < rows; ++r) {
      const std::span<const float> want(golden.data() + r * vocab, vocab);
      const std::vector<double> a = LogSoftmaxOf({logits.data() + (first + r) * vocab, vocab});
      const std::vector<double> b = LogSoftmaxOf(want);
      std::vector<size_t> tokens = {
          static_cast<size_t>(std::max_element(want.begin(), want.end()) - want.begin())};
      if (first + r + 1 < next.size()) tokens.push_back(static_cast<size_t>(next[first + r + 1]));
      for (const size_t token : tokens) worst = std::max(worst, std::abs(a[token] - b[token]));
    }
    return worst;
  }

  Loaded* loaded_ = nullptr;
  const GoldenFile golden_{GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors"};
};

TEST_F(CudaNetworkTest, LogProbabilitiesOfTheGoldenFile) {
  double worst = 0;
  for (int c = 0; golden_.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden_.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto want = golden_.Read<float>(fmt::format("case{}.logits", c));
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      const auto rows = Run(ids, phase, 50, 0);
      const double error = WorstLogprob(Logits(Network::kTarget, rows[0]->rows()), want, ids);
      EXPECT_LT(error, 2e-2) << "case " << c << " phase " << static_cast<int>(phase);
      worst = std::max(worst, error);
    }
  }
  std::printf("worst log-probability: off by %.4f\n", worst);
}

TEST_F(CudaNetworkTest, MtpModulesOfTheGoldenFile) {
  double worst = 0;
  for (int c = 0; golden_.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden_.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto rows = Run(ids, Phase::kPromptChunk, 1024, 3);
    for (int32_t m = 0; m < 3; ++m) {
      const Tensor hidden = rows[static_cast<size_t>(m + 1)]->rows();
      const auto want = golden_.Read<float>(fmt::format("case{}.mtp{}.logits", c, m));
      const double error = WorstLogprob(Logits(m, hidden.Rows(0, hidden.rows - m - 1)), want, {});
      EXPECT_LT(error, 2e-2) << "case " << c << " module " << m;
      worst = std::max(worst, error);
    }
  }
  std::printf("worst log-probability of a module: off by %.4f\n", worst);
}

TEST_F(CudaNetworkTest, BitsDoNotDependOnThePieces) {
  const auto ids = golden_.Read<int32_t>("case2.ids");
  for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
    const auto whole = Run(ids, phase, 1024, 3);
    for (const int32_t chunk : {1, 7, 64}) {
      const auto pieces = Run(ids, phase, chunk, 3);
      for (int32_t kind = 0; kind < 4; ++kind) {
        const auto k = static_cast<size_t>(kind);
        const Tensor a = whole[k]->rows();
        const Tensor b = pieces[k]->rows();
        const std::vector<float> want = Download(loaded_->ops, a.Rows(0, a.rows - kind));
        const std::vector<float> got = Download(loaded_->ops, b.Rows(0, b.rows - kind));
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
            << "module " << kind - 1 << " pieces of " << chunk << " phase "
            << static_cast<int>(phase);
      }
    }
  }
}

TEST_F(CudaNetworkTest, RecordedPassesGiveTheSameBits) {
  const auto ids = golden_.Read<int32_t>("case2.ids");
  const auto whole = Run(ids, Phase::kDecode, 1024, 3);
  // Rows of 1, 7 and 19 are counted as 1, 7 and 20; the last piece of a text has others.
  for (const int32_t chunk : {1, 7, 19}) {
    const ReplayCounts before = loaded_->model->replay_counts();
    const auto pieces = Run(ids, Phase::kDecode, chunk, 3, RowCount::kRounded);
    const ReplayCounts after = loaded_->model->replay_counts();
    EXPECT_GT(after.repeated, before.repeated) << "pieces of " << chunk;
    for (int32_t kind = 0; kind < 4; ++kind) {
      const auto k = static_cast<size_t>(kind);
      const Tensor a = whole[k]->rows();
      const Tensor b = pieces[k]->rows();
      const std::vector<float> want = Download(loaded_->ops, a.Rows(0, a.rows - kind));
      const std::vector<float> got = Download(loaded_->ops, b.Rows(0, b.rows - kind));
      EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
          << "module " << kind - 1 << " pieces of " << chunk;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
