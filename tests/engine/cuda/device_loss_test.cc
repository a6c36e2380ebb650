// A GPU that is lost while requests run: all of them are told, no other is taken, and the engine
// ends. A kernel that stops with an error takes the context with it, as a fault of the GPU does. So
// this is a program of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/cuda/failing_service.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/engine/cuda/trap_kernel.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

class DeviceLossTest : public HopperTest<> {};

TEST_F(DeviceLossTest, EveryRequestIsToldAndNoOtherIsTaken) {
  const LoadedEngine loaded = LoadEngine(SmallEngineOptions(2), [](int64_t, int64_t) {});
  FailingService service(*loaded.engine);
  for (int i = 0; i < 3; ++i) service.SubmitLong();  // the third waits for a slot
  service.WaitForTokens(20);
  LaunchTrap();
  ASSERT_TRUE(service.Fails());
  EXPECT_THAT(service.failure(), testing::HasSubstr("launch failure"));
  service.ExpectAllTold();
}

}  // namespace
}  // namespace outrider::cuda
