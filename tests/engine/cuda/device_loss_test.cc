// A GPU that is lost while requests run: all of them are told, no other is taken, and the engine
// ends. A kernel that stops with an error takes the context with it, as a fault of the GPU does. So
// this is a program of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/engine/engine_thread.h"
#include "tests/engine/cuda/trap_kernel.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

class DeviceLossTest : public HopperTest<> {};

TEST_F(DeviceLossTest, EveryRequestIsToldAndNoOtherIsTaken) {
  EngineOptions options;
  options.model = TinyModelDirectory().string();
  options.device = DeviceKind::kCuda;
  options.kv_cache_memory_bytes = int64_t{64} << 20;
  options.num_threads = 4;
  options.max_num_seqs = 2;
  options.speculation.num_speculative_tokens = 3;
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  GenerationRequest request;
  request.prompt_token_ids = {5, 6, 7, 8};
  request.sampling.max_tokens = loaded.engine->max_model_len() - 4;
  request.sampling.ignore_eos = true;
  std::vector<std::string> reasons(3);  // the third waits for a slot
  std::atomic<int> num_tokens = 0;
  std::atomic<int> num_told = 0;
  std::string failure;
  {
    const EngineThread thread(*loaded.engine, [&](const std::string& reason) { failure = reason; });
    for (std::string& reason : reasons) {
      loaded.engine->Submit(request, [&](RequestId, OutputDelta&& delta) {
        num_tokens += static_cast<int>(delta.token_ids.size());
        if (delta.finish_reason != FinishReason::kError) return;
        if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) reason = *text;
        ++num_told;
      });
    }
    while (num_tokens < 20) std::this_thread::yield();
    LaunchTrap();
    const auto start = std::chrono::steady_clock::now();
    while (!thread.failed() &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(thread.failed());
  }
  EXPECT_EQ(num_told, 3);
  EXPECT_THAT(failure, testing::HasSubstr("launch failure"));
  for (const std::string& reason : reasons) EXPECT_EQ(reason, failure);
  EXPECT_EQ(loaded.engine->Counters().kv_cache_usage, 0);
  EXPECT_THROW(loaded.engine->Submit(request, [](RequestId, OutputDelta&&) {}), Error);
}

}  // namespace
}  // namespace outrider::cuda
