// Small networks of DeepSeek-V3.2 and GLM-5 on a GPU, with random weights: each layer beside the
// CPU's, bits in one step and in many. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <random>
#include <string>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/code_source.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/layers_beside_cpu.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kVocab = 1000;

struct Family {
  const char* name;
  const char* golden;  // whose config is widened to sizes that the kernels take
  int64_t heads, q_lora, nope, value, index_heads, top_k;
  bool fp8 = false;  // all projections in blocks, but for the indexer's weights of heads
  DType cache = DType::kBF16;
};

constexpr Family kFamilies[] = {
    {"v32", "tiny-v32", 128, 256, 128, 128, 64, 64},
    {"v32_f8", "tiny-v32", 128, 256, 128, 128, 64, 64, true},
    {"glm5", "tiny-glm-dsa", 64, 256, 192, 256, 32, 128},
    {"glm5_all_tokens", "tiny-glm-dsa", 64, 256, 192, 256, 32, 2048},
    {"v32_8_bit_cache", "tiny-v32", 128, 256, 128, 128, 64, 64, false, DType::kF8E4M3},
    {"glm5_8_bit_cache", "tiny-glm-dsa", 64, 256, 192, 256, 32, 128, true, DType::kF8E4M3},
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

LayerSpec Widened(LayerSpec layer, const Family& family) {
  auto& a = std::get<MlaSpec>(layer.attention);
  a.heads = family.heads;
  a.q_lora = family.q_lora;
  a.latent = 512;
  a.nope = family.nope;
  a.rope = layer.rotary.dims = 64;
  a.value = family.value;
  a.softmax_scale = 0.07;
  a.indexer->heads = family.index_heads;
  a.indexer->dim = 128;
  a.indexer->top_k = family.top_k;
  if (auto* moe = std::get_if<MoeSpec>(&layer.mlp)) {
    moe->width = moe->shared_width = 128;
    moe->router.experts = 32;
    moe->router.top_k = 4;
  } else {
    std::get<DenseMlpSpec>(layer.mlp).width = 768;
  }
  return layer;
}

/// A dense layer, an MoE layer, and a module.
ModelConfig ConfigOf(const Family& family) {
  ModelConfig c = ReadModelConfig(GoldenDirectory() / family.golden);
  c.quantization = {};
  c.vocab_size = kVocab;
  c.hidden_size = 512;
  c.num_nextn_predict_layers = 1;
  for (LayerSpec& layer : c.layers) layer = Widened(layer, family);
  OUTRIDER_CHECK(c.layers[0].dense() != nullptr && c.layers[1].moe() != nullptr);
  c.mtp_layer = c.layers[1];
  return c;
}

class SparseTest : public HopperTest<testing::TestWithParam<Family>> {
 protected:
  static std::unique_ptr<WeightSource> Source(const ModelConfig& config) {
    if (!GetParam().fp8) return MakeDummyWeights(config, 3);
    return std::make_unique<CodeSource>(config, 3, Codes::kBlocks);
  }
};

// An indexer's choice may differ from the CPU's in near-ties, which moves the row's output: such a
// row counts as one that is far off. Their number grows with what rounding adds, and may so be half
// as much again, as a row's error may.
TEST_P(SparseTest, EveryLayerBesideTheCpus) {
  const ModelConfig config = ConfigOf(GetParam());
  const RoundedQueriesOps rounded_queries;
  ExpectLayersBesideCpu({.config = config,
                         .source = *Source(config),
                         .rounded_ops = rounded_queries,
                         .cache = GetParam().cache,
                         .nearness = {.far_share = 1.5}});
}

TEST_P(SparseTest, BitsDoNotDependOnTheStep) {
  const ModelConfig config = ConfigOf(GetParam());
  TestNetwork network(config, *Source(config), 1);
  ExpectBitsOfAnyStep(network, kVocab, GetParam().cache, 64, 32);
}

/// The indexer's weights of heads in e4m3, whose scales bfloat16 does not hold.
class CodedHeadWeights : public CodeSource {
 public:
  using CodeSource::CodeSource;
  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    if (!tensor.name.ends_with(".weights_proj.weight")) return CodeSource::Open(tensor);
    return std::make_unique<CodeTensor>(tensor.shape, 7, Codes::kBlocks);
  }
};

TEST_P(SparseTest, HeadWeightsThatBf16DoesNotHoldAreRefusedByName) {
  const ModelConfig config = ConfigOf(GetParam());
  const CodedHeadWeights source(config, 3, Codes::kBlocks);
  try {
    TestNetwork(config, source, 1);
    FAIL() << "they are loaded";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("model.layers.0.self_attn.indexer.weights_proj.weight"), std::string::npos)
        << what;
    EXPECT_NE(what.find("no bfloat16 number"), std::string::npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SparseTest, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider::cuda
