// The bundled checkpoint on a GPU: beside transformers' golden files, beside the CPU, and its bits
// in one step and in many. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int kBlock = 64;

class TinyModelTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    static TestNetwork* const shared = new TestNetwork(config_, *source_, 3);
    network_ = shared;
  }

  /// Runs a prompt of its own: rows [length, hidden] of the target, or of the modules after it.
  HiddenRows Run(const std::vector<int32_t>& ids, Phase phase, int32_t chunk) {
    return RowsOfText(*network_, ids, phase, chunk, kBlock);
  }

  /// The largest error of a log-probability among those that matter: the likeliest token's and the
  /// next one's of the text, over the golden's rows, which are the last of `logits`.
  double WorstLogprob(const std::vector<float>& logits, const std::vector<float>& golden,
                      const std::vector<int32_t>& next) const {
    const auto vocab = static_cast<size_t>(config_.vocab_size);
    const size_t rows = golden.size() / vocab;
    const size_t first = logits.size() / vocab - rows;
    double worst = 0;
    for (size_t r = 0; r < rows; ++r) {
      const std::span<const float> want(golden.data() + r * vocab, vocab);
      const std::vector<double> a = LogSoftmax({logits.data() + (first + r) * vocab, vocab});
      const std::vector<double> b = LogSoftmax(want);
      std::vector<size_t> tokens = {
          static_cast<size_t>(std::max_element(want.begin(), want.end()) - want.begin())};
      if (first + r + 1 < next.size()) tokens.push_back(static_cast<size_t>(next[first + r + 1]));
      for (const size_t token : tokens) worst = std::max(worst, std::abs(a[token] - b[token]));
    }
    return worst;
  }

  const ModelConfig config_ = ReadModelConfig(TinyModelDirectory());
  const std::unique_ptr<WeightSource> source_ = OpenCheckpoint(TinyModelDirectory(), config_);
  const GoldenFile golden_{GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors"};
  TestNetwork* network_ = nullptr;
};

TEST_F(TinyModelTest, LogProbabilitiesOfTheGoldenFile) {
  double worst = 0;
  for (int c = 0; golden_.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden_.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto want = golden_.Read<float>(fmt::format("case{}.logits", c));
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      const HiddenRows rows = Run(ids, phase, 50);
      const double error = WorstLogprob(network_->Logits(rows[0]), want, ids);
      EXPECT_LT(error, 2e-2) << "case " << c << " phase " << static_cast<int>(phase);
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst", std::to_string(worst));
  std::printf("worst log-probability: off by %.4f\n", worst);
}

TEST_F(TinyModelTest, MtpModulesOfTheGoldenFile) {
  double worst = 0;
  for (int c = 0; golden_.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden_.Read<int32_t>(fmt::format("case{}.ids", c));
    const HiddenRows rows = Run(ids, Phase::kPromptChunk, 1024);
    for (size_t m = 0; m < 3; ++m) {
      std::vector<uint16_t> known = rows[m + 1];
      known.resize(known.size() - (m + 1) * static_cast<size_t>(config_.hidden_size));
      const auto want = golden_.Read<float>(fmt::format("case{}.mtp{}.logits", c, m));
      const double error = WorstLogprob(network_->Logits(known), want, {});
      EXPECT_LT(error, 2e-2) << "case " << c << " module " << m;
      worst = std::max(worst, error);
    }
  }
  std::printf("worst log-probability of a module: off by %.4f\n", worst);
}

TEST_F(TinyModelTest, EveryLayerBesideTheCpus) {
  const auto ids = golden_.Read<int32_t>("case2.ids");
  const auto length = static_cast<int32_t>(ids.size());
  const std::vector<int32_t> blocks = FirstBlocks((length + kBlock - 1) / kBlock);
  const auto num_blocks = static_cast<int32_t>(blocks.size());
  CpuNetwork f32(config_, *source_, 0, DType::kF32, num_blocks, kBlock);
  CpuNetwork bf16(config_, *source_, 0, DType::kBF16, num_blocks, kBlock);
  for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
    BatchLayout layout(kBlock);
    layout.Assign(std::vector{RequestWork{.slot = 0,
                                          .phase = phase,
                                          .tokens = ids,
                                          .draft_tokens = {},
                                          .samples = false,
                                          .block_tables = {&blocks, 1}}});
    const std::vector<std::vector<float>> exact = f32.Forward(layout);
    const std::vector<std::vector<float>> rounded = bf16.Forward(layout);
    KvCache cache = network_->MakeCache(num_blocks, kBlock, DType::kBF16);
    network_->Forward(layout, cache, [&](int64_t layer, const std::vector<float>& got) {
      const auto i = static_cast<size_t>(layer);
      ExpectAsNear(got, rounded[i], exact[i], config_.hidden_size,
                   fmt::format("layer {} phase {}", layer, static_cast<int>(phase)));
    });
  }
}

// Steps of 1, 7 and 19 rows are counted as 1, 7 and 20, and recorded when they come again.
TEST_F(TinyModelTest, RecordedPassesGiveTheSameBits) {
  const auto ids = golden_.Read<int32_t>("case2.ids");
  const auto length = static_cast<int32_t>(ids.size());
  const HiddenRows whole = Run(ids, Phase::kDecode, 1024);
  Network& model = network_->model();
  const CudaOps& ops = network_->ops();
  const auto width = static_cast<size_t>(config_.hidden_size);
  const std::vector<int32_t> blocks = FirstBlocks((length + kBlock - 1) / kBlock);
  KvCache cache = network_->MakeCache(static_cast<int32_t>(blocks.size()), kBlock, DType::kBF16);
  AttentionPlan plan = model.attention();
  const auto inputs = ops.MakeStepInputs();
  const auto no_inputs = ops.MakeStepInputs();
  BatchLayout layout(kBlock);
  for (const int32_t chunk : {1, 7, 19}) {
    const ReplayCounts before = model.replay_counts();
    const DeviceRows hidden(ops, DType::kBF16, RoundedRows(chunk), config_.hidden_size);
    DeviceRows of_module(ops, DType::kBF16, RoundedRows(chunk), config_.hidden_size);
    for (int32_t first = 0; first < length - 1; first += chunk) {
      const int32_t count = std::min(chunk, length - 1 - first);
      for (int32_t kind = 0; kind < 2; ++kind) {  // the target, then the first module
        layout.Assign(std::vector{
            RequestWork{.slot = 0,
                        .phase = Phase::kDecode,
                        .context_length = first,
                        .tokens = std::span(ids).subspan(static_cast<size_t>(first + kind),
                                                         static_cast<size_t>(count)),
                        .draft_tokens = {},
                        .samples = false,
                        .block_tables = {&blocks, 1}}});
        plan.Assign(layout);
        inputs->Assign(layout, plan, RowCount::kRounded);
        if (kind == 0) {
          model.Forward(*inputs, cache, hidden.view());
        } else {
          model.ForwardMtp(0, *no_inputs, *inputs, cache, hidden.view(), of_module.view());
        }
        const std::vector<uint16_t> got = (kind == 0 ? hidden : of_module).Download<uint16_t>();
        const auto& want = whole[static_cast<size_t>(kind)];
        EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<int64_t>(count * width),
                               want.begin() + static_cast<int64_t>(first * width)))
            << "rows from " << first << " on in pieces of " << chunk << ", module " << kind - 1;
      }
    }
    EXPECT_GT(model.replay_counts().repeated, before.repeated) << "pieces of " << chunk;
  }
}

class TinyBitsTest : public TinyModelTest, public testing::WithParamInterface<DType> {};

TEST_P(TinyBitsTest, DoNotDependOnTheStep) {
  std::mt19937 random(11);
  const std::vector<KnownRequest> requests =
      RandomRequests(random, static_cast<int32_t>(config_.vocab_size),
                     {1, 2, 33, 64, 127, 130, 300, 513, 700}, 24, 64);
  KnownRun alone(*network_, requests, 64, GetParam());
  alone.RunAlone();
  for (const auto& [block, piece] : {std::pair(64, 300), {16, 97}, {256, 1}}) {
    const std::vector<KnownRequest> again = WithBlocks(random, requests, block);
    KnownRun mixed(*network_, again, block, GetParam());
    mixed.RunMixed(random, piece);
    ExpectEqualRows(mixed, alone, fmt::format("pieces of up to {}:", piece));
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, TinyBitsTest, testing::Values(DType::kBF16, DType::kF8E4M3),
                         [](const auto& test) {
                           return test.param == DType::kBF16 ? "bf16" : "e4m3";
                         });

TEST_F(TinyModelTest, PromptOf16384TokensInOneStepAndInPieces) {
  std::mt19937 random(5);
  const std::vector<KnownRequest> requests =
      RandomRequests(random, static_cast<int32_t>(config_.vocab_size), {16384}, 0, 64);
  KnownRun whole(*network_, requests, 64, DType::kBF16);
  whole.Step({{0, 0, 16384}});
  KnownRun pieces(*network_, requests, 64, DType::kBF16);
  for (const auto& [first, end] :
       {std::pair(0, 5000), {5000, 5001}, {5001, 13192}, {13192, 16384}}) {
    pieces.Step({{0, first, end - first}});
  }
  ExpectEqualRows(pieces, whole);
}

}  // namespace
}  // namespace outrider::cuda
