// Steps need little more memory than the engine took when it started; without so much it does not
// start.
//
// Another program takes all memory of the GPU while requests run. Requests whose memory is there
// go on. When a step needs more, all requests are told so, no other is taken, and the engine ends.
// With the memory back, the next engine starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "tests/engine/cuda/all_free_memory.h"
#include "tests/engine/cuda/failing_service.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/engine/test_engine.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_sparse_model.h"

namespace outrider::cuda {
namespace {

/// Its log-probabilities need more memory for results than an engine has from the start.
GenerationRequest ManyResults() {
  GenerationRequest request;
  request.prompt_token_ids.assign(600, 17);
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = 20;
  return request;
}

class OutOfMemoryTest : public HopperTest<> {};

size_t FreeMemory() {
  size_t free = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "memory");
  return free;
}

/// The work space of the largest step is there from the start, with a cache of a given size, too.
TEST_F(OutOfMemoryTest, StepsTakeLittleMoreThanTheStartTook) {
  const LoadedEngine loaded = LoadEngine(SmallEngineOptions(3), [](int64_t, int64_t) {});
  const size_t free = FreeMemory();
  std::vector<Generated> results(3);
  for (Generated& result : results) {
    GenerationRequest request;
    request.prompt_token_ids.assign(2000, 17);
    request.sampling.max_tokens = 40;
    Submit(*loaded.engine, std::move(request), &result);
  }
  RunUntilIdle(*loaded.engine);
  EXPECT_LE(free - FreeMemory(), size_t{128} << 20);
}

// A drafter that is not a module has a work space of its own. Keys and values of whole prompts are
// made for their last rows: 1 GB here.
TEST_F(OutOfMemoryTest, StepsOfADrafterTakeLittleMoreThanTheStartTook) {
  constexpr int32_t kRequests = 31;
  SmallSparseSizes sizes = kGpuV32Sizes;
  sizes.heads = 128;
  const SmallSparseModel model(1000, sizes);
  const SmallEagle3 drafter(model.directory());
  EngineOptions options = SmallEngineOptions(kRequests);
  options.model = model.directory().string();
  options.load_format = LoadFormat::kDummy;
  options.max_model_len = 500;
  options.max_num_batched_tokens = 16000;
  options.kv_cache_memory_bytes = int64_t{128} << 20;
  options.speculation.method = DraftMethod::kEagle3;
  options.speculation.model = drafter.directory().string();
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  const size_t free = FreeMemory();
  std::vector<Generated> results(kRequests);
  for (int32_t i = 0; i < kRequests; ++i) {
    GenerationRequest request;
    request.prompt_token_ids.assign(480, 17 + i);
    request.sampling.max_tokens = 8;
    request.sampling.ignore_eos = true;
    Submit(*loaded.engine, std::move(request), &results[static_cast<size_t>(i)]);
  }
  RunUntilIdle(*loaded.engine);
  EXPECT_GT(loaded.engine->Counters().speculation.num_draft_tokens, 0);
  EXPECT_LE(free - FreeMemory(), size_t{256} << 20);
}

TEST_F(OutOfMemoryTest, AStartThatLacksMemoryNamesTheOptionsThatNeedLess) {
  DeviceMemory left(size_t{192} << 20, "what is left");
  const std::vector<DeviceMemory> taken = AllFreeMemory();
  left = DeviceMemory();
  try {
    LoadEngine(SmallEngineOptions(3), [](int64_t, int64_t) {});
    ADD_FAILURE() << "it started";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("of device memory are needed"));
    EXPECT_THAT(error.what(), testing::HasSubstr("lower --max-model-len"));
  }
}

TEST_F(OutOfMemoryTest, EveryRequestIsToldAndNoOtherIsTaken) {
  {
    const LoadedEngine loaded = LoadEngine(SmallEngineOptions(3), [](int64_t, int64_t) {});
    FailingService service(*loaded.engine);
    service.SubmitLong();
    service.SubmitLong();
    service.WaitForTokens(200);  // their steps are recorded
    const std::vector<DeviceMemory> taken = AllFreeMemory();
    service.WaitForTokens(600);
    service.Submit(ManyResults());
    service.SubmitLong();  // waits for a slot
    ASSERT_TRUE(service.Fails());
    EXPECT_THAT(service.failure(), testing::HasSubstr("of device memory are needed"));
    service.ExpectAllTold();
  }
  const LoadedEngine next = LoadEngine(SmallEngineOptions(3), [](int64_t, int64_t) {});
  const Generated result = RunOne(*next.engine, ManyResults());
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.prompt_logprobs.size(), 599);
}

}  // namespace
}  // namespace outrider::cuda
