// A small Step-3.5 with the GPU's head size, loaded as a server loads it: answers with its three
// modules drafting are those without, bit for bit. Needs a GPU of compute capability 9.0, and
// cuDNN.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/engine/cuda/engine_answers.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/small_step_model.h"

namespace outrider::cuda {
namespace {

using Step3p5EngineTest = HopperTest<>;

TEST_F(Step3p5EngineTest, AnswersWithModulesAreThoseWithout) {
  const SmallStepModel model(1000, /*window=*/40, kGpuStepSizes);
  EngineOptions options = SmallEngineOptions(8);
  options.model = model.directory().string();
  options.load_format = LoadFormat::kDummy;
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    options.kv_cache_dtype = type;
    const std::vector<Generated> plain = AnswersToRandomPrompts(options, 0);
    const std::vector<Generated> drafted = AnswersToRandomPrompts(options, 3);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].tokens.size(), 30);
      EXPECT_EQ(Difference(drafted[i], plain[i]), "") << DTypeName(type) << ", request " << i;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
