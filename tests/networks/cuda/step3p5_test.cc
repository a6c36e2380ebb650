// A small Step-3.5 on a GPU, with random weights: each layer beside the CPU's, bits in one step and
// in many, recorded passes. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "outrider/ops/cuda/hopper_support.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/code_source.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/layers_beside_cpu.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kVocab = 1000;
constexpr int32_t kWindow = 96;

/// Two full layers and two with a window, the last two with experts and limits; three modules. The
/// heads are Step-3.5-Flash's.
ModelConfig SmallStep() {
  ModelConfig c = ReadModelConfig(GoldenDirectory() / "tiny-step3p5");
  c.quantization = {};
  c.vocab_size = kVocab;
  c.hidden_size = 512;
  const auto widened = [&](bool full, bool experts, double limit, double shared_limit) {
    const LayerSpec* like = nullptr;
    for (const LayerSpec& layer : c.layers) {
      if ((std::get<GqaSpec>(layer.attention).window == 0) == full) like = &layer;
    }
    OUTRIDER_CHECK(like != nullptr);
    LayerSpec layer = *like;
    auto& a = std::get<GqaSpec>(layer.attention);
    a.heads = full ? 64 : 96;
    a.kv_heads = 8;
    a.head_dim = 128;
    a.window = full ? 0 : kWindow;
    a.softmax_scale = 0.0884;
    layer.rotary.dims = full ? 64 : 128;
    if (experts) {
      MoeSpec moe;
      for (const LayerSpec& other : c.layers) {
        if (other.moe() != nullptr) moe = *other.moe();
      }
      moe.width = moe.shared_width = 128;
      moe.shared_experts = 1;
      moe.router.experts = 32;
      moe.router.top_k = 4;
      moe.limit = limit;
      moe.shared_limit = shared_limit;
      layer.mlp = moe;
    } else {
      layer.mlp = DenseMlpSpec{.width = 768, .limit = limit};
    }
    return layer;
  };
  const LayerSpec first = widened(true, false, kNoActivationLimit, kNoActivationLimit);
  const LayerSpec second = widened(false, false, 0.5, kNoActivationLimit);
  const LayerSpec third = widened(false, true, kNoActivationLimit, 0.05);
  const LayerSpec fourth = widened(true, true, 0.02, kNoActivationLimit);
  c.mtp_layer = second;
  c.layers = {first, second, third, fourth};
  c.num_nextn_predict_layers = 3;
  return c;
}

class StepTest : public HopperTest<testing::TestWithParam<bool>> {
 protected:
  static std::unique_ptr<WeightSource> Source(const ModelConfig& config) {
    if (!GetParam()) return MakeDummyWeights(config, 3);
    return std::make_unique<CodeSource>(config, 3, Codes::kBlocks);
  }
};

TEST_P(StepTest, EveryLayerBesideTheCpus) {
  const ModelConfig config = SmallStep();
  EXPECT_NO_THROW(CheckRunsOnHopper({.config = config, .num_mtp_modules = 3}));
  ExpectLayersBesideCpu({.config = config, .source = *Source(config), .modules = 3});
}

/// Each row's larger error of two log-probabilities: the likeliest token's and that of the
/// token which follows in the text.
std::vector<double> LogprobErrors(std::span<const float> logits, std::span<const float> exact,
                                  std::span<const int32_t> next) {
  std::vector<double> errors;
  for (size_t r = 0; r < next.size(); ++r) {
    const std::vector<double> a = LogSoftmax(logits.subspan(r * kVocab, kVocab));
    const std::vector<double> b = LogSoftmax(exact.subspan(r * kVocab, kVocab));
    const auto likeliest = static_cast<size_t>(std::max_element(b.begin(), b.end()) - b.begin());
    const auto following = static_cast<size_t>(next[r]);
    const double error = std::max(std::abs(a[likeliest] - b[likeliest]),  // NaN is none
                                  std::abs(a[following] - b[following]));
    errors.push_back(std::isfinite(a[likeliest] + a[following]) ? error : INFINITY);
  }
  return errors;
}

/// Log-probabilities are as near to float32's as those of the CPU, whose operands are rounded to
/// bfloat16 alike. Random weights have likely tokens whose logits rounding moves far, and experts
/// that it swaps: so errors are compared with the CPU's, not with a fixed bound.
TEST_P(StepTest, LogProbabilitiesAsNearAsTheCpus) {
  constexpr int32_t kBlock = 32;
  const ModelConfig config = SmallStep();
  const auto source = Source(config);
  TestNetwork network(config, *source, 3);
  std::mt19937 random(5);
  const std::vector<KnownRequest> requests =
      RandomRequests(random, kVocab, {160, 20}, 200, network.Groups(kBlock, DType::kBF16));
  CpuNetwork f32(config, *source, 3, DType::kF32, NumBlocks(requests), kBlock);
  CpuNetwork bf16(config, *source, 3, DType::kBF16, NumBlocks(requests), kBlock);
  const std::vector<CacheGroupSpec> groups = network.Groups(kBlock, DType::kF32);
  const auto logits = [&](CpuNetwork& cpu, const KnownRequest& request) {
    BatchLayout layout(groups);
    layout.Assign(std::vector{request.Work(0, 0, request.prompt, 0)});
    std::vector<float> hidden = cpu.Forward(layout).back();
    layout.Assign(std::vector{request.Work(0, request.prompt, request.length - request.prompt, 0)});
    const std::vector<float> generated = cpu.Forward(layout).back();
    hidden.insert(hidden.end(), generated.begin(), generated.end());
    return cpu.Logits(hidden);
  };
  KnownRun run(network, requests, kBlock, DType::kBF16);
  run.RunMixed(random, 90);
  std::vector<double> ours, cpus;
  for (size_t i = 0; i < requests.size(); ++i) {
    const KnownRequest& request = requests[i];
    const auto next = std::span(request.tokens).subspan(1, static_cast<size_t>(request.length));
    const std::vector<float> exact = logits(f32, request);
    for (const double e : LogprobErrors(network.Logits(run.rows()[i][0]), exact, next)) {
      ours.push_back(e);
    }
    for (const double e : LogprobErrors(logits(bf16, request), exact, next)) cpus.push_back(e);
  }
  std::sort(ours.begin(), ours.end());
  std::sort(cpus.begin(), cpus.end());
  for (const size_t percent : {50, 90, 99}) {
    const size_t at = ours.size() * percent / 100;
    std::printf("log-probabilities, %zu %% of the rows: off by %.4f at most, the CPU's %.4f\n",
                percent, ours[at], cpus[at]);
    if (percent < 99) {
      EXPECT_LT(ours[at], 1.5 * cpus[at]) << percent;
    }
  }
  EXPECT_TRUE(std::isfinite(ours.back()));
}

TEST_P(StepTest, BitsDoNotDependOnTheStep) {
  const ModelConfig config = SmallStep();
  TestNetwork network(config, *Source(config), 3);
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    ExpectBitsOfAnyStep(network, kVocab, type, 64, 32, std::string(DTypeName(type)));
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, StepTest, testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "f8" : "bf16"); });

}  // namespace
}  // namespace outrider::cuda
