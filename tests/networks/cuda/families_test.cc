// Small networks of every family on a GPU, with random weights: each layer beside the CPU's, and
// bits in one step and in many. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
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

struct Family {
  const char* name;
  const char* golden;  // whose config is widened to sizes that the kernels take
  int heads, q_lora, nope, value, experts, shared, top_k, groups;
  std::optional<Codes> codes = std::nullopt;
};

constexpr Family kFamilies[] = {
    {"v2_lite", "tiny-v2-lite", 16, 0, 128, 128, 16, 2, 3, 1},
    {"v2", "tiny-v2", 32, 256, 128, 128, 32, 2, 4, 4},
    {"glm", "tiny-glm4-moe-lite", 20, 256, 192, 256, 16, 1, 4, 1},
    {"v3_f8", "tiny-v3-options", 128, 256, 128, 128, 32, 1, 4, 4, Codes::kBlocks},
    {"v3_f8_powers", "tiny-v3-options", 64, 192, 128, 128, 32, 1, 4, 4,
     Codes::kBlocksWithPowersOfTwo},
    {"v3_f8_rows", "tiny-v3-options", 64, 192, 128, 128, 32, 1, 4, 4, Codes::kRows},
    {"v3_int4_experts", "tiny-v3-options", 64, 192, 128, 128, 32, 1, 4, 4, Codes::kInt4},
    {"v3_fp4_experts", "tiny-v3-options", 64, 192, 128, 128, 32, 2, 4, 4, Codes::kFp4},
    {"v3_nvfp4_experts", "tiny-v3-options", 64, 192, 128, 128, 32, 1, 4, 4, Codes::kNvfp4},
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

/// The layer of the family's golden checkpoint, widened.
LayerSpec Widened(LayerSpec layer, const Family& family) {
  auto& a = std::get<MlaSpec>(layer.attention);
  const auto old_width = static_cast<double>(a.query_width());
  a.heads = family.heads;
  a.q_lora = family.q_lora;
  a.latent = 512;
  a.nope = family.nope;
  a.rope = layer.rotary.dims = 64;
  a.value = family.value;
  a.softmax_scale *= std::sqrt(old_width / static_cast<double>(a.query_width()));
  if (auto* moe = std::get_if<MoeSpec>(&layer.mlp)) {
    moe->width = 128;
    moe->shared_experts = family.shared;
    moe->shared_width = 128 * family.shared;
    moe->router.experts = family.experts;
    moe->router.top_k = family.top_k;
    moe->router.groups = family.groups;
    moe->router.top_groups = std::max(1, family.groups / 2);
  } else {
    std::get<DenseMlpSpec>(layer.mlp).width = 768;
  }
  return layer;
}

/// A dense layer, MoE layers behind it, and a module.
ModelConfig ConfigOf(const Family& family, size_t layers) {
  ModelConfig c = ReadModelConfig(GoldenDirectory() / family.golden);
  c.quantization = {};
  c.vocab_size = 1000;
  c.hidden_size = 512;
  c.num_nextn_predict_layers = 1;
  for (LayerSpec& layer : c.layers) layer = Widened(layer, family);
  OUTRIDER_CHECK(c.layers[0].dense() != nullptr && c.layers[1].moe() != nullptr);
  c.layers.resize(layers, c.layers[1]);
  c.mtp_layer = c.layers[1];
  return c;
}

class FamilyTest : public HopperTest<testing::TestWithParam<Family>> {
 protected:
  static std::unique_ptr<WeightSource> Source(const ModelConfig& config) {
    const std::optional<Codes> codes = GetParam().codes;
    if (!codes) return MakeDummyWeights(config, 3);
    return std::make_unique<CodeSource>(config, 3, *codes);
  }
};

// A dense layer, an MoE layer, and a module of another: where rounding has changed a row's experts,
// no layer's attention comes after, which would carry that to other rows.
TEST_P(FamilyTest, EveryLayerBesideTheCpus) {
  const ModelConfig config = ConfigOf(GetParam(), 2);
  ExpectLayersBesideCpu(
      {.config = config, .source = *Source(config), .long_prompt = 200, .first_chunk = 90});
}

// One dense and one MoE layer with the sizes of DeepSeek-V2-Lite, beside the CPU's: a prompt, then
// generated rows.
using RealLayerTest = HopperTest<>;

TEST_F(RealLayerTest, OfV2LiteBesideTheCpus) {
  constexpr int32_t kBlock = 64;
  ModelConfig config = ConfigOf(kFamilies[0], 2);
  config.hidden_size = 2048;
  for (LayerSpec* layer : {&config.layers[0], &config.layers[1], &config.mtp_layer}) {
    if (auto* moe = std::get_if<MoeSpec>(&layer->mlp)) {
      moe->width = 1408;
      moe->shared_width = 2816;
      moe->router.experts = 64;
      moe->router.top_k = 6;
    } else {
      std::get<DenseMlpSpec>(layer->mlp).width = 10944;
    }
  }
  const auto source = MakeDummyWeights(config, 5);
  std::mt19937 random(6);
  const std::vector<KnownRequest> requests =
      RandomRequests(random, 1000, {130, 61, 64, 1}, 40, kBlock);
  const int32_t blocks = NumBlocks(requests);
  CpuNetwork f32(config, *source, 0, DType::kF32, blocks, kBlock);
  CpuNetwork bf16(config, *source, 0, DType::kBF16, blocks, kBlock);
  TestNetwork network(config, *source, 0);
  KvCache cache = network.MakeCache(blocks, kBlock, DType::kBF16);
  BatchLayout layout(kBlock);
  for (const bool prompts : {true, false}) {
    std::vector<RequestWork> work;
    for (size_t i = 0; i < requests.size(); ++i) {
      const KnownRequest& request = requests[i];
      const int32_t first = prompts ? 0 : request.prompt;
      const int32_t count = prompts ? request.prompt : request.length - request.prompt;
      work.push_back(request.Work(static_cast<int32_t>(i), first, count, 0));
    }
    layout.Assign(work);
    const std::vector<std::vector<float>> exact = f32.Forward(layout);
    const std::vector<std::vector<float>> rounded = bf16.Forward(layout);
    network.Forward(layout, cache, [&](int64_t layer, const std::vector<float>& got) {
      const auto i = static_cast<size_t>(layer);
      ExpectAsNear(got, rounded[i], exact[i], config.hidden_size,
                   fmt::format("{}, layer {}", prompts ? "prompts" : "generated", layer));
    });
  }
}

TEST_P(FamilyTest, BitsDoNotDependOnTheStep) {
  const ModelConfig config = ConfigOf(GetParam(), 3);
  TestNetwork network(config, *Source(config), 1);
  ExpectBitsOfAnyStep(network, 1000, DType::kBF16, 64, 32);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(HopperNetworks, Run) {
  for (const Family& family : kFamilies) {
    const ModelConfig config = ConfigOf(family, 2);
    EXPECT_NO_THROW(CheckRunsOnHopper({.config = config, .num_mtp_modules = 1})) << family.name;
  }
}

}  // namespace
}  // namespace outrider::cuda
