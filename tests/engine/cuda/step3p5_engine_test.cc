// A small Step-3.5 with the GPU's head size, loaded as a server loads it: answers with its three
// modules drafting are those without, bit for bit. Needs a GPU of compute capability 9.0, and
// cuDNN.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/engine/cuda/small_engine_options.h"
#include "tests/engine/random_requests.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/small_step_model.h"

namespace outrider::cuda {
namespace {

using Step3p5EngineTest = HopperTest<>;

std::vector<Generated> Answers(EngineOptions options, int32_t drafts) {
  options.speculation.num_speculative_tokens = drafts;
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  EXPECT_EQ(loaded.kernels, "cuda");
  std::mt19937 random(5);
  std::vector<Generated> results(12);
  for (size_t i = 0; i < results.size(); ++i) {
    GenerationRequest request;
    request.prompt_token_ids.resize(1 + random() % 300);
    for (int32_t& token : request.prompt_token_ids) token = static_cast<int32_t>(random() % 1000);
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.7F;
    request.sampling.seed = 10 + i;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 2;
    Submit(*loaded.engine, std::move(request), &results[i]);
  }
  RunUntilIdle(*loaded.engine);
  return results;
}

TEST_F(Step3p5EngineTest, AnswersWithModulesAreThoseWithout) {
  const SmallStepModel model(1000, /*window=*/40, kGpuStepSizes);
  EngineOptions options = SmallEngineOptions(8);
  options.model = model.directory().string();
  options.load_format = LoadFormat::kDummy;
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    options.kv_cache_dtype = type;
    const std::vector<Generated> plain = Answers(options, 0);
    const std::vector<Generated> drafted = Answers(options, 3);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].tokens.size(), 30);
      EXPECT_EQ(Difference(drafted[i], plain[i]), "") << DTypeName(type) << ", request " << i;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
