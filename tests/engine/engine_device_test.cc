// Which device an engine runs on, with its operations and facts.
#include "outrider/engine/engine_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider {
namespace {

TEST(EngineDevice, TheOperationsOfAProcessorBelongToNobody) {
  EXPECT_EQ(MakeDeviceOps(DeviceKind::kCpu), nullptr);
  const OpenedDevice opened = OpenDevice(DeviceKind::kCpu);
  EXPECT_TRUE(opened.own_ops.empty());
  EXPECT_EQ(opened.facts.chosen.kind, DeviceKind::kCpu);
  EXPECT_EQ(opened.facts.kernels, opened.ops->name());
  EXPECT_EQ(opened.facts.activation_type, opened.ops->activation_type());
  EXPECT_EQ(opened.facts.max_fp8_weights_as_bf16, GetKernels(SelectIsa()).max_fp8_weights_as_bf16);
  EXPECT_FALSE(opened.facts.processors.empty());
}

#ifdef OUTRIDER_ENGINE_CUDA

TEST(EngineDevice, AMachineWithoutAUsableGpuSaysWhatIsNeeded) {
  const ChosenDevice chosen = ChooseDevice(DeviceKind::kAuto);
  if (chosen.kind == DeviceKind::kCuda) GTEST_SKIP() << "there is one";
  try {
    MakeDeviceOps(DeviceKind::kCuda);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), chosen.why);
    EXPECT_THAT(chosen.why, testing::HasSubstr("compute capability 9.0"));
  }
}

#else

TEST(EngineDevice, ABuildWithoutKernelsForGpusSaysSo) {
  EXPECT_EQ(ChooseDevice(DeviceKind::kAuto).kind, DeviceKind::kCpu);
  EXPECT_THAT(ChooseDevice(DeviceKind::kAuto).why, testing::HasSubstr("no kernels for GPUs"));
  try {
    MakeDeviceOps(DeviceKind::kCuda);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("build with -DOUTRIDER_CUDA=ON"));
  }
}

#endif

}  // namespace
}  // namespace outrider
