// A rank whose GPU has no memory left in the middle of a step. Its requests are told which rank it
// was and why, the other rank ends with it, and what it had is free for the next start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/parallel/ended_rank.h"
#include "tests/engine/acting_rank.h"
#include "tests/engine/cuda/all_free_memory.h"
#include "tests/engine/cuda/failing_service.h"
#include "tests/engine/cuda/gpu_ranks.h"

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class RankMemoryTest : public RanksOnGpus<HopperTest<>> {
 protected:
  int gpus() const override { return std::min(NumGpus(), 2); }

  std::unique_ptr<Engine> MakeEngineOfTwo(std::function<void()> act) const {
    TestEngineOptions options = OnRanks(OnGpu({.drafter = DrafterKind::kNgram}), 2);
    options.queued = false;
    options.max_num_seqs = 2;
    options.make_executor = [act = std::move(act)](std::vector<RankParts> ranks) {
      ranks[1].drafter = std::make_unique<ActingDrafter>(act);
      return std::make_unique<StepRunner>(std::move(ranks));
    };
    return MakeTestEngine(options);
  }
};

// With a GPU of its own, all of its memory is gone. Rank 0 has some then, whatever it needs. Where
// the ranks share a GPU, it must keep some for rank 0: rank 1 asks for more than the GPU has.
TEST_F(RankMemoryTest, ARankWithoutMemoryIsNamedInTime) {
  std::vector<DeviceMemory> taken;
  const auto engine = MakeEngineOfTwo([this, &taken] {
    size_t free = 0;
    size_t total = 0;
    CheckCuda(cudaMemGetInfo(&free, &total), "memory");
    if (gpus() == 2) taken = AllFreeMemory();
    const DeviceMemory more(gpus() == 2 ? size_t{1} << 20 : total + 1, "rows of a step");
  });
  FailingService service(*engine);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) service.SubmitLong();  // the third waits for a slot
  ASSERT_TRUE(service.Fails());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 10);
  EXPECT_THAT(service.failure(), StartsWith(EndedRankText({1, 2}, "rows of a step: ")));
  EXPECT_THAT(service.failure(), HasSubstr("of device memory are needed"));
  service.ExpectAllTold();
}

TEST_F(RankMemoryTest, TheNextStartHasItsMemory) {
  const auto answer = [](Engine& engine) {
    Generated result;
    Submit(engine, LongRequest(3, 20, kBundledVocab), &result);
    RunUntilIdle(engine);
    return result;
  };
  const auto whole = MakeTestEngine(OnGpu({.drafter = DrafterKind::kNgram}));
  const Generated expected = answer(*whole);
  {
    const auto engine =
        MakeEngineOfTwo([] { const DeviceMemory more(size_t{1} << 50, "rows of a step"); });
    GenerationRequest request = LongRequest(3, 20, kBundledVocab);
    request.sampling.max_tokens = 50;
    Generated result;
    Submit(*engine, std::move(request), &result);
    EXPECT_THROW(RunUntilIdle(*engine), Error);
    EXPECT_EQ(result.finish_reason, FinishReason::kError);
  }
  const auto next = MakeEngineOfTwo([] {});
  EXPECT_EQ(Difference(answer(*next), expected), "");
}

}  // namespace
}  // namespace outrider::cuda
