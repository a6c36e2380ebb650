// In which format the weights of the bundled model are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/checkpoint/published_configs.h"
#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kExpert = 3 * 256 * 128;  // and the shared one of each layer
constexpr int64_t kExperts = 4 * 8 * kExpert;
constexpr int64_t kOthers = 5 * (192 * 256 + 1024 * 192 + 576 * 256 + 256 * 512) +
                            5 * 1536 * 512 +  // W_UK, its transpose and W_UV
                            3 * 640 * 256 + 4 * kExpert;
constexpr int64_t kPlain =
    2 * 2048 * 256 + 4 * 16 * 256;  // never FP8; eight rows of a router take 16

WeightSizes SizesWith(int64_t max_fp8_weights_as_bf16) {
  ModelConfig config = ReadModelConfig(TinyModelDirectory());
  const auto source = OpenCheckpoint(TinyModelDirectory(), config);
  WeightSizes sizes = MeasureWeights(cpu::GetCpuOps(SelectIsa()), config, 0, *source,
                                     {.compute_dtype = DType::kBF16,
                                      .max_fp8_weights_as_bf16 = max_fp8_weights_as_bf16})
                          .target;
  sizes.erase(DType::kF32);  // norms
  return sizes;
}

/// Codes and their scales, which are few.
MATCHER_P(AreCodesOf, weights, "") { return arg >= weights && arg <= weights * 101 / 100; }

TEST(FewWeights, AreBFloat16AndThoseUsedTogetherCount) {
  EXPECT_THAT(SizesWith(0),
              UnorderedElementsAre(Pair(DType::kF8E4M3, AreCodesOf(kExperts + kOthers)),
                                   Pair(DType::kBF16, 2 * kPlain)));
  // A layer's experts are 768 Ki together, 96 Ki each; nothing else is more than 512 Ki.
  EXPECT_THAT(SizesWith(512 << 10),
              UnorderedElementsAre(Pair(DType::kF8E4M3, AreCodesOf(kExperts)),
                                   Pair(DType::kBF16, 2 * (kOthers + kPlain))));
  EXPECT_THAT(SizesWith(768 << 10),
              UnorderedElementsAre(Pair(DType::kBF16, 2 * (kExperts + kOthers + kPlain))));
  // Down to one that is just that many.
  EXPECT_THAT(SizesWith(1024 * 192 - 1)[DType::kF8E4M3] - SizesWith(1024 * 192)[DType::kF8E4M3],
              AreCodesOf(5 * 1024 * 192));
}

// The published files of DeepSeek-V3 have 688.6 GB.
TEST(DummyWeights, OfDeepSeekV3TakeWhatThePublishedOnesTake) {
  const ModelConfig config = ParseModelConfig(test_checkpoints::kDeepSeekV3, std::nullopt, "v3");
  const auto source = MakeDummyWeights(config, 1);
  ASSERT_EQ(CountMtpLayers(*source, config), 1);
  const NetworkWeightSizes sizes = MeasureWeights(cpu::GetCpuOps(Isa::kReference), config, 1,
                                                  *source, {.compute_dtype = DType::kBF16});
  double bytes = 0;
  for (const WeightSizes* part : {&sizes.target, &sizes.modules}) {
    for (const auto& [dtype, size] : *part) bytes += static_cast<double>(size);
  }
  EXPECT_NEAR(bytes, 690e9, 10e9);
}

// FP4 matrices as a checkpoint stores them, with rows that are no whole panels.
class Fp4Weights : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 40;
  static constexpr int64_t kCols = 96;

  Fp4Weights() {
    std::vector<test_checkpoints::TensorToWrite> tensors;
    for (const char* name : {"a", "b"}) {
      std::string codes(kRows * kCols / 2, '\0');
      for (char& pair : codes) pair = static_cast<char>(random_());
      std::string scales(kRows * kCols / kFp4Group, '\0');
      for (char& e : scales) e = static_cast<char>(110 + random_() % 30);
      tensors.push_back({fmt::format("{}.weight", name), "I8", {kRows, kCols / 2}, codes});
      tensors.push_back(
          {fmt::format("{}.scale", name), "F8_E8M0", {kRows, kCols / kFp4Group}, scales});
    }
    test_checkpoints::WriteSafetensors(directory_.path() / "model.safetensors", tensors);
    source_ = OpenCheckpoint(directory_.path(), ModelConfig{});
    for (float& v : x_)
      v = static_cast<float>(random_()) / static_cast<float>(random_.max()) - 0.5F;
  }

  /// x times both matrices, stacked.
  std::vector<float> Product(Isa isa, const WeightForm& form, WeightSizes* sizes = nullptr) {
    const Ops& ops = cpu::GetCpuOps(isa);
    const auto loader = ops.MakeWeightLoader(*source_, form);
    Weight weight;
    loader->Stacked(&weight, {"a.weight", "b.weight"}, kRows, kCols, {});
    if (sizes != nullptr) *sizes = loader->PackedSizes();
    const auto memory = loader->Load({ops, &pool_}, nullptr);
    Arena arena;
    std::vector<float> y(kXRows * 2 * kRows);
    const Context context({ops, &pool_}, arena, form.compute_dtype);
    ops.Multiply(context, std::array{outrider::Product{.x = Tensor(x_.data(), kXRows, kCols),
                                                       .w = &weight,
                                                       .y = Tensor(y.data(), kXRows, 2 * kRows)}});
    return y;
  }

  static constexpr int64_t kXRows = 5;
  TemporaryDirectory directory_;
  std::mt19937 random_{3};
  std::unique_ptr<WeightSource> source_;
  std::vector<float> x_ = std::vector<float>(kXRows * kCols);
  ThreadPool pool_{2};
};

TEST_F(Fp4Weights, StayCodesWithTheBitsOfBFloat16) {
  for (int isa = 0; isa <= static_cast<int>(DetectIsa()); ++isa) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      WeightSizes sizes;
      const auto codes = Product(static_cast<Isa>(isa), {.compute_dtype = dtype}, &sizes);
      const int64_t weights = 2 * kRows * kCols;
      EXPECT_THAT(sizes, UnorderedElementsAre(Pair(
                             DType::kF4E2M1, (weights / 2 + weights / kFp4Group + 63) / 64 * 64)));
      const auto plain =
          Product(static_cast<Isa>(isa),
                  {.compute_dtype = dtype, .max_fp8_weights_as_bf16 = weights}, &sizes);
      EXPECT_THAT(sizes, UnorderedElementsAre(Pair(DType::kBF16, 2 * weights)));
      EXPECT_EQ(codes, plain);
      EXPECT_NE(codes[0], 0);
    }
  }
}

}  // namespace
}  // namespace outrider
