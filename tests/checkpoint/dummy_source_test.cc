#include <gmock/gmock.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/published_configs.h"

namespace outrider {
namespace {

std::vector<float> Read(const WeightSource& source, const std::string& name,
                        const std::vector<int64_t>& shape) {
  const auto tensor = source.Open({name, shape});
  std::vector<float> values(tensor->rows() * tensor->cols());
  tensor->ReadRows(0, tensor->rows(), values.data());
  return values;
}

ModelConfig DummyConfig() {
  return ParseModelConfig(test_checkpoints::kDeepSeekV3, std::nullopt, "v3");
}

TEST(DummyWeightsTest, ValuesDoNotDependOnHowRowsAreRead) {
  const auto source = MakeDummyWeights(DummyConfig(), 7);
  for (const int64_t cols : {1, 3, 4, 7, 64}) {
    const std::vector<int64_t> shape = {37, cols};
    const std::vector<float> whole = Read(*source, "w", shape);
    const auto tensor = source->Open({"w", shape});
    for (int64_t first = 0; first < 37; first += 5) {
      for (int64_t count = 0; first + count <= 37; count += 3) {
        std::vector<float> part(count * cols, -1);
        tensor->ReadRows(first, count, part.data());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * cols));
      }
    }
  }
}

TEST(DummyWeightsTest, ValuesDependOnSeedAndName) {
  const auto source = MakeDummyWeights(DummyConfig(), 7);
  const std::vector<float> values = Read(*source, "a.weight", {8, 8});
  EXPECT_EQ(values, Read(*MakeDummyWeights(DummyConfig(), 7), "a.weight", {8, 8}));
  EXPECT_NE(values, Read(*MakeDummyWeights(DummyConfig(), 8), "a.weight", {8, 8}));
  EXPECT_NE(values, Read(*source, "b.weight", {8, 8}));
}

TEST(DummyWeightsTest, MatricesHaveTheRightSpread) {
  const auto source = MakeDummyWeights(DummyConfig(), 1);
  const auto check = [&](const std::string& name, std::vector<int64_t> shape, double deviation) {
    const std::vector<float> values = Read(*source, name, shape);
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      EXPECT_EQ(value, RoundToBFloat16(value));
      sum += value;
      squares += double{value} * value;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n)) << name;
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.01 * deviation) << name;
  };
  check("model.layers.3.self_attn.o_proj.weight", {300, 1024}, 1.0 / 32);
  check("model.embed_tokens.weight", {300, 1024}, 1.0);
}

TEST(DummyWeightsTest, NeighbouringValuesAreIndependent) {
  const std::vector<float> values = Read(*MakeDummyWeights(DummyConfig(), 1), "w", {1024, 256});
  const auto n = static_cast<int64_t>(values.size());
  for (const int64_t lag : {1, 2, 3, 4, 5, 8, 256}) {
    double product = 0;
    for (int64_t i = 0; i + lag < n; ++i) product += double{values[i]} * values[i + lag];
    // Each value has variance 1/256, so the mean product has deviation 1/256/sqrt(n).
    EXPECT_LT(std::fabs(product / static_cast<double>(n)) * 256,
              5 / std::sqrt(static_cast<double>(n)))
        << lag;
  }
}

TEST(DummyWeightsTest, VectorsAreNormsNearOneOrZeroBiases) {
  const auto source = MakeDummyWeights(DummyConfig(), 1);
  std::set<float> seen;
  for (const float value : Read(*source, "model.norm.weight", {512})) {
    EXPECT_NEAR(value, 1, 1.0 / 16);
    seen.insert(value);
  }
  EXPECT_GT(seen.size(), 10);
  EXPECT_THAT(Read(*source, "model.layers.3.mlp.gate.e_score_correction_bias", {8}),
              ::testing::Each(0.0F));
  EXPECT_THAT(Read(*source, "model.layers.3.self_attn.o_proj.bias", {8}), ::testing::Each(0.0F));
}

TEST(DummyWeightsTest, HasWhatDeepSeekV3Declares) {
  const auto source = MakeDummyWeights(DummyConfig(), 1);
  const auto has = [&](std::string_view name) { return source->Has(name); };
  EXPECT_TRUE(has("lm_head.weight"));
  EXPECT_TRUE(has("model.embed_tokens.weight"));
  EXPECT_TRUE(has("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_FALSE(has("model.layers.0.mlp.gate.weight"));
  EXPECT_TRUE(has("model.layers.3.mlp.gate.weight"));
  EXPECT_TRUE(has("model.layers.3.mlp.gate.e_score_correction_bias"));
  EXPECT_TRUE(has("model.layers.60.mlp.experts.255.down_proj.weight"));
  EXPECT_FALSE(has("model.layers.60.mlp.experts.256.down_proj.weight"));
  EXPECT_TRUE(has("model.layers.60.mlp.shared_experts.up_proj.weight"));
  EXPECT_TRUE(has("model.layers.5.self_attn.q_a_layernorm.weight"));
  EXPECT_FALSE(has("model.layers.5.self_attn.q_proj.weight"));
  EXPECT_FALSE(has("model.layers.5.self_attn.o_proj.bias"));
  EXPECT_FALSE(has("model.layers.5.self_attn.o_proj.weight_scale_inv"));
  EXPECT_FALSE(has("model.layers.60.eh_proj.weight"));
  EXPECT_TRUE(has("model.layers.61.eh_proj.weight"));
  EXPECT_TRUE(has("model.layers.61.shared_head.norm.weight"));
  EXPECT_FALSE(has("model.layers.61.shared_head.head.weight"));
  EXPECT_FALSE(has("model.layers.61.embed_tokens.weight"));
  EXPECT_TRUE(has("model.layers.61.mlp.experts.0.gate_proj.weight"));
  EXPECT_FALSE(has("model.layers.62.eh_proj.weight"));
  EXPECT_FALSE(has("model.layers.99999999999999999999.eh_proj.weight"));
  EXPECT_FALSE(has("model.layers.-1.input_layernorm.weight"));
  EXPECT_EQ(CountMtpLayers(*source, DummyConfig()), 1);
}

TEST(DummyWeightsTest, HasWhatOtherFamiliesDeclare) {
  const ModelConfig lite =
      ParseModelConfig(test_checkpoints::kDeepSeekV2Lite, std::nullopt, "lite");
  const auto lite_source = MakeDummyWeights(lite, 1);
  EXPECT_TRUE(lite_source->Has("model.layers.5.self_attn.q_proj.weight"));
  EXPECT_FALSE(lite_source->Has("model.layers.5.self_attn.q_a_proj.weight"));
  EXPECT_FALSE(lite_source->Has("model.layers.5.mlp.gate.e_score_correction_bias"));
  EXPECT_EQ(CountMtpLayers(*lite_source, lite), 0);

  const ModelConfig kimi = ParseModelConfig(test_checkpoints::kKimiK25, std::nullopt, "kimi");
  const auto kimi_source = MakeDummyWeights(kimi, 1);
  EXPECT_TRUE(kimi_source->Has("language_model.lm_head.weight"));
  EXPECT_FALSE(kimi_source->Has("lm_head.weight"));
}

TEST(DummyWeightsTest, MatricesAreOfTheFormatThatTheConfigDeclares) {
  const std::string expert = "model.layers.1.mlp.experts.7.up_proj.weight";
  const auto open = [](const ModelConfig& config, const std::string& name,
                       std::vector<int64_t> shape) {
    return MakeDummyWeights(config, 1)->Open({config.tensor_prefix + name, std::move(shape)});
  };
  const ModelConfig kimi = ParseModelConfig(test_checkpoints::kKimiK25, std::nullopt, "kimi");
  EXPECT_EQ(open(kimi, expert, {8, 64})->stored_dtype(), DType::kI4);
  EXPECT_EQ(open(kimi, expert, {8, 48})->stored_dtype(), DType::kBF16);  // no groups of 32
  for (const char* name :
       {"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.mlp.shared_experts.up_proj.weight"}) {
    EXPECT_EQ(open(kimi, name, {8, 64})->stored_dtype(), DType::kBF16) << name;
  }
  for (const auto& [format, dtype] : {std::pair(StoredFormat::kInt4, DType::kI4),
                                      {StoredFormat::kNvfp4, DType::kF4E2M1},
                                      {StoredFormat::kMxfp4, DType::kF4E2M1},
                                      {StoredFormat::kFp8Tensor, DType::kF8E4M3},
                                      {StoredFormat::kFp8Row, DType::kF8E4M3},
                                      {StoredFormat::kFp8Block, DType::kF8E4M3}}) {
    ModelConfig config = kimi;
    config.quantization.format = format;
    config.quantization.block_rows = config.quantization.block_cols = 128;
    const auto tensor = open(config, expert, {200, 1024});
    SCOPED_TRACE(StoredFormatName(format));
    EXPECT_EQ(tensor->stored_dtype(), dtype);
    std::vector<float> values(200 * 1024);
    tensor->ReadRows(0, 200, values.data());
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    EXPECT_NEAR(std::sqrt(squares / 200), 1, 0.05);
    std::vector<float> row(1024);
    tensor->ReadRows(123, 1, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + 123 * 1024));
  }
}

// Of matrices whose codes are looked up, and of small ones; from rows that begin within a group of
// four values.
TEST(DummyWeightsTest, CodesAreThoseOfTheValues) {
  const std::string expert = "model.layers.1.mlp.experts.7.up_proj.weight";
  ModelConfig config = ParseModelConfig(test_checkpoints::kKimiK25, std::nullopt, "kimi");
  config.quantization.block_rows = config.quantization.block_cols = 128;
  const auto open = [&](StoredFormat format, std::vector<int64_t> shape) {
    config.quantization.format = format;
    return MakeDummyWeights(config, 1)->Open({config.tensor_prefix + expert, std::move(shape)});
  };
  const auto values_of = [](const WeightTensor& tensor, int64_t first, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count * tensor.cols()));
    tensor.ReadRows(first, count, values.data());
    return values;
  };
  for (const int64_t rows : {40, 300}) {
    const auto fp8 = open(StoredFormat::kFp8Block, {rows, 1003});
    const auto fp4 = open(StoredFormat::kMxfp4, {rows, 1024});
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, rows}, {21, 7}, {3, 1}}) {
      SCOPED_TRACE(first);
      const std::vector<float> values = values_of(*fp8, first, count);
      std::vector<uint8_t> codes(values.size());
      fp8->ReadCodes(first, count, codes.data());
      const float scale = fp8->block_scales()->values.front();
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], Float8E4M3ToFloat(codes[i]) * scale) << i;
      }
      const std::vector<float> narrow = values_of(*fp4, first, count);
      std::vector<uint8_t> pairs(narrow.size() / 2);
      fp4->ReadCodes(first, count, pairs.data());
      std::vector<uint8_t> scales(narrow.size() / 32);
      fp4->ReadGroupScales(first, count, scales.data());
      for (size_t i = 0; i < narrow.size(); ++i) {
        const int code = i % 2 == 0 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4;
        ASSERT_EQ(narrow[i],
                  std::ldexp(Float4E2M1ToFloat(static_cast<uint8_t>(code)), scales[i / 32] - 127))
            << i;
      }
    }
  }
}

// As DeepSeek-V3 is published: all linear layers but the router, the head and the modules'
// projection.
TEST(DummyWeightsTest, ModelsInFp8BlocksStayInThem) {
  ModelConfig config = ParseModelConfig(test_checkpoints::kDeepSeekV3, std::nullopt, "v3");
  ASSERT_EQ(config.quantization.method, "fp8");
  const auto type = [&](const std::string& name) {
    return MakeDummyWeights(config, 1)->Open({name, {256, 512}})->stored_dtype();
  };
  for (const char* name :
       {"model.layers.1.self_attn.q_b_proj.weight", "model.layers.1.self_attn.kv_b_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.layers.5.mlp.experts.7.up_proj.weight",
        "model.layers.5.mlp.shared_experts.gate_proj.weight",
        "model.layers.61.self_attn.o_proj.weight"}) {
    EXPECT_EQ(type(name), DType::kF8E4M3) << name;
  }
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight",
                           "model.layers.5.mlp.gate.weight", "model.layers.61.eh_proj.weight"}) {
    EXPECT_EQ(type(name), DType::kBF16) << name;
  }
  config.quantization.ignored = {"model.layers.1.*"};
  EXPECT_EQ(type("model.layers.1.mlp.down_proj.weight"), DType::kBF16);
  EXPECT_EQ(type("model.layers.2.mlp.down_proj.weight"), DType::kF8E4M3);
}

}  // namespace
}  // namespace outrider
