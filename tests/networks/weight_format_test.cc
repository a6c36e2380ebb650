// In which format the weights of the bundled model are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/networks/loaded_model.h"

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

}  // namespace
}  // namespace outrider
