// Checkpoints with weights of compressed-tensors and ModelOpt: products against float64, and whole
// networks against the same weights in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tests/networks/forwarding_source.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/model_directory.h"
#include "tests/networks/quantized_checkpoint.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using test_checkpoints::QuantizedMatrix;
using test_checkpoints::StoredAs;

DType TypeInMemory(StoredAs stored) {
  switch (stored) {
    case StoredAs::kInt4:
    case StoredAs::kInt4Of64:
      return DType::kI4;
    case StoredAs::kNvfp4:
    case StoredAs::kNvfp4ModelOpt:
    case StoredAs::kMxfp4:
      return DType::kF4E2M1;
    default:
      return DType::kF8E4M3;
  }
}

class QuantizedProducts : public ::testing::TestWithParam<StoredAs> {
 protected:
  // Two matrices below one another, whose rows are no whole panels but for FP8 in blocks, whose
  // panels have one scale each.
  QuantizedProducts() : rows_(GetParam() == StoredAs::kFp8Block ? 128 : 40) {
    std::vector<test_checkpoints::TensorToWrite> tensors;
    for (const char* name : {"a", "b"}) {
      const QuantizedMatrix matrix =
          test_checkpoints::RandomQuantized(GetParam(), name, rows_, kCols, 0.3, random_);
      tensors.insert(tensors.end(), matrix.tensors.begin(), matrix.tensors.end());
      values_.insert(values_.end(), matrix.values.begin(), matrix.values.end());
    }
    test_checkpoints::WriteSafetensors(directory_.path() / "model.safetensors", tensors);
    ModelConfig config;
    config.quantization.method = "compressed-tensors";
    source_ = OpenCheckpoint(directory_.path(), config);
    for (float& x : x_) {
      x = static_cast<float>(random_()) / static_cast<float>(random_.max()) - 0.5F;
    }
  }

  /// Rows [first, first + count) of x times both, added to 1.
  std::vector<float> Product(Isa isa, DType dtype, int64_t first, int64_t count,
                             WeightSizes* sizes = nullptr) {
    const Ops& ops = cpu::GetCpuOps(isa);
    const auto loader = ops.MakeWeightLoader(*source_, {.compute_dtype = dtype});
    Weight weight;
    loader->Stacked(&weight, {"a.weight", "b.weight"}, rows_, kCols, {});
    if (sizes != nullptr) *sizes = loader->PackedSizes();
    const auto memory = loader->Load({ops, &pool_}, nullptr);
    Arena arena;
    std::vector<float> y(static_cast<size_t>(count * 2 * rows_), 1);
    const Context context({ops, &pool_}, arena, dtype);
    ops.Multiply(context,
                 std::array{outrider::Product{.x = Tensor(x_.data() + first * kCols, count, kCols),
                                              .w = &weight,
                                              .y = Tensor(y.data(), count, 2 * rows_),
                                              .accumulate = true}});
    return y;
  }

  static constexpr int64_t kCols = 192;
  static constexpr int64_t kXRows = 37;
  int64_t rows_;
  TemporaryDirectory directory_;
  std::mt19937 random_{3};
  std::vector<double> values_;  // [2 * rows, cols]
  std::unique_ptr<WeightSource> source_;
  std::vector<float> x_ = std::vector<float>(kXRows * kCols);
  ThreadPool pool_{2};
};

TEST_P(QuantizedProducts, EqualFloat64ButForRoundingInEveryTable) {
  for (int isa = 0; isa <= static_cast<int>(DetectIsa()); ++isa) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      WeightSizes sizes;
      const std::vector<float> y = Product(static_cast<Isa>(isa), dtype, 0, kXRows, &sizes);
      EXPECT_EQ(sizes.size(), 1U);
      EXPECT_EQ(sizes.begin()->first, TypeInMemory(GetParam()));
      for (int64_t r = 0; r < kXRows; ++r) {
        for (int64_t n = 0; n < 2 * rows_; ++n) {
          double sum = 1;
          double magnitude = 1;
          for (int64_t k = 0; k < kCols; ++k) {
            const float x = x_[static_cast<size_t>(r * kCols + k)];
            const double term =
                static_cast<double>(dtype == DType::kBF16 ? RoundToBFloat16(x) : x) *
                values_[static_cast<size_t>(n * kCols + k)];
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(r * 2 * rows_ + n)]), sum,
                      magnitude * 3e-6)
              << "isa " << isa << " row " << r << " output " << n;
        }
      }
    }
  }
}

TEST_P(QuantizedProducts, DoNotDependOnTheOtherRows) {
  for (int isa = 0; isa <= static_cast<int>(DetectIsa()); ++isa) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::vector<float> all = Product(static_cast<Isa>(isa), dtype, 0, kXRows);
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 1}, {36, 1}, {3, 2}, {5, 17}}) {
        const std::vector<float> some = Product(static_cast<Isa>(isa), dtype, first, count);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * 2 * rows_))
            << "isa " << isa << " rows " << first << " + " << count;
      }
    }
  }
}

/// Remembers what was asked for.
class RecordingSource : public ForwardingSource {
 public:
  using ForwardingSource::ForwardingSource;

  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    asked[tensor.name] = tensor.shape;
    return ForwardingSource::Open(tensor);
  }

  mutable std::map<std::string, std::vector<int64_t>> asked;
};

/// Kimi-K2.5 in small, with the routed experts in a format, and the same with these in float32.
class QuantizedKimi : public ::testing::TestWithParam<StoredAs> {
 protected:
  QuantizedKimi() {
    nlohmann::json config = ReadJson(GoldenDirectory() / "tiny-kimi-k25-fp8/config.json");
    config["text_config"].erase("quantization_config");
    config["text_config"]["hidden_size"] = 128;
    config["text_config"]["num_hidden_layers"] = 3;
    config["text_config"]["moe_intermediate_size"] = 64;
    std::ofstream(plain_.path() / "config.json") << config;
    config["text_config"]["quantization_config"] =
        nlohmann::json::parse(test_checkpoints::QuantizationConfig(GetParam()));
    std::ofstream(quantized_.path() / "config.json") << config;
    WriteWeights(ReadModelConfig(plain_.path()));
  }

  void WriteWeights(const ModelConfig& config) {
    const auto random = MakeDummyWeights(config, 7);
    const RecordingSource source(*random);
    ThreadPool pool(1);
    LoadNetwork(config, 0, source, {DType::kF32},
                {{cpu::GetCpuOps(SelectIsa()), &pool},
                 DType::kF32,
                 AttentionPlan(AttentionBackend::kRagged, 1)});
    std::vector<test_checkpoints::TensorToWrite> plain;
    std::vector<test_checkpoints::TensorToWrite> quantized;
    for (const auto& [name, shape] : source.asked) {
      const auto tensor = source.Open({name, shape});
      std::vector<float> values(static_cast<size_t>(tensor->rows() * tensor->cols()));
      tensor->ReadRows(0, tensor->rows(), values.data());
      if (name.find(".experts.") != std::string::npos) {
        QuantizedMatrix matrix = test_checkpoints::RandomQuantized(
            GetParam(), name.substr(0, name.size() - 7), shape[0], shape[1],
            1 / std::sqrt(static_cast<double>(shape[1])), random_);
        std::ranges::move(matrix.tensors, std::back_inserter(quantized));
        std::ranges::transform(matrix.values, values.begin(),
                               [](double v) { return static_cast<float>(v); });
      } else {
        quantized.push_back({name, "F32", shape, test_checkpoints::Bytes(values)});
      }
      plain.push_back({name, "F32", shape, test_checkpoints::Bytes(values)});
    }
    test_checkpoints::WriteSafetensors(plain_.path() / "model.safetensors", plain);
    test_checkpoints::WriteSafetensors(quantized_.path() / "model.safetensors", quantized);
  }

  /// Logits of 20 tokens.
  static std::vector<float> LogitsOf(const std::filesystem::path& directory, DType dtype,
                                     bool alone) {
    constexpr int32_t kTokens = 20;
    LoadedModel loaded(directory, dtype);
    KvCache cache = loaded.MakeCache(8, 16);
    const std::vector<int32_t> blocks = FirstBlocks(8);
    const std::vector<std::vector<int32_t>> tables = {blocks};
    std::vector<int32_t> tokens(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) tokens[static_cast<size_t>(i)] = (7 + 31 * i) % 260;
    const int64_t width = loaded.model->hidden_size();
    std::vector<float> hidden(static_cast<size_t>(kTokens * width));
    BatchLayout layout(cache.config().groups);
    const int32_t step = alone ? 1 : kTokens;
    for (int32_t first = 0; first < kTokens; first += step) {
      layout.Assign(
          std::vector{RequestWork{.phase = Phase::kPromptChunk,
                                  .context_length = first,
                                  .tokens = std::span(tokens).subspan(static_cast<size_t>(first),
                                                                      static_cast<size_t>(step)),
                                  .draft_tokens = {},
                                  .samples = false,
                                  .block_tables = tables}});
      loaded.model->Forward(layout, cache, {hidden.data() + first * width, step, width});
    }
    const int64_t vocab = loaded.model->vocab_size();
    std::vector<float> logits(static_cast<size_t>(kTokens * vocab));
    loaded.model->Logits(Network::kTarget, {hidden.data(), kTokens, width}, FirstBlocks(kTokens),
                         {logits.data(), kTokens, vocab});
    return logits;
  }

  TemporaryDirectory plain_;
  TemporaryDirectory quantized_;
  std::mt19937 random_{11};
};

TEST_P(QuantizedKimi, ComputesWhatItsWeightsStandFor) {
  const std::vector<float> got = LogitsOf(quantized_.path(), DType::kF32, false);
  const std::vector<float> want = LogitsOf(plain_.path(), DType::kF32, false);
  float largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 2e-4) << i;
    largest = std::max(largest, std::fabs(want[i]));
  }
  EXPECT_GT(largest, 1);
  EXPECT_EQ(LogitsOf(quantized_.path(), DType::kF32, true), got);
  EXPECT_EQ(LogitsOf(quantized_.path(), DType::kBF16, true),
            LogitsOf(quantized_.path(), DType::kBF16, false));
}

TEST_P(QuantizedKimi, KeepsItsExpertsPacked) {
  const ModelConfig config = ReadModelConfig(quantized_.path());
  const auto source = OpenCheckpoint(quantized_.path(), config);
  const WeightSizes sizes =
      MeasureWeights(cpu::GetCpuOps(Isa::kReference), config, 0, *source, {DType::kBF16}).target;
  const int64_t experts = 2 * 6 * 3 * 128 * 64;
  const DType type = TypeInMemory(GetParam());
  const int64_t codes = type == DType::kF8E4M3 ? experts : experts / 2;
  ASSERT_TRUE(sizes.contains(type));
  EXPECT_GE(sizes.at(type), codes);
  EXPECT_LE(sizes.at(type), codes * 9 / 8 + 2 * 6 * 3 * 64 * 16);
}

std::string FormatName(const ::testing::TestParamInfo<StoredAs>& test) {
  return test_checkpoints::NameOf(test.param);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedProducts,
                         ::testing::ValuesIn(test_checkpoints::kAllStored), FormatName);
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedKimi, ::testing::ValuesIn(test_checkpoints::kAllStored),
                         FormatName);

}  // namespace
}  // namespace outrider
