// A GPU that the kernels do not run on is refused with what they need. Needs no GPU.
#include "outrider/ops/cuda/hopper_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outrider/base/error.h"

namespace outrider::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string RefusalOf(const GpuDescription& gpu) {
  try {
    CheckIsHopper(gpu);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    return error.what();
  }
  return "";
}

TEST(HopperGpuTest, HopperIsTaken) {
  EXPECT_EQ(RefusalOf({.count = 1, .name = "NVIDIA H100 80GB HBM3", .major = 9, .minor = 0}), "");
  EXPECT_EQ(RefusalOf({.count = 8, .name = "NVIDIA H200", .major = 9, .minor = 0}), "");
}

TEST(HopperGpuTest, OtherGpusAreRefused) {
  const auto says = [](const char* capability) {
    return AllOf(HasSubstr(capability), HasSubstr("needs 9.0 (H100, H200)"),
                 HasSubstr("--device cpu"));
  };
  EXPECT_THAT(RefusalOf({.count = 1, .name = "NVIDIA A100-SXM4-80GB", .major = 8, .minor = 0}),
              says("NVIDIA A100-SXM4-80GB of compute capability 8.0"));
  EXPECT_THAT(RefusalOf({.count = 1, .name = "NVIDIA L40S", .major = 8, .minor = 9}), says("8.9"));
  EXPECT_THAT(RefusalOf({.count = 1, .name = "a GPU", .major = 9, .minor = 1}), says("9.1"));
  EXPECT_THAT(RefusalOf({.count = 2, .name = "NVIDIA B200", .major = 10, .minor = 0}),
              says("10.0"));
}

TEST(HopperGpuTest, WithoutAUsableGpuItSaysWhatIsNeeded) {
  const auto says = [](const char* why) {
    return AllOf(HasSubstr(why), HasSubstr("driver 580 or newer"), HasSubstr("--device cpu"));
  };
  EXPECT_THAT(RefusalOf({}), says("there is none"));
  EXPECT_THAT(RefusalOf({.error = cudaErrorNoDevice, .name = ""}), says("no CUDA-capable device"));
  EXPECT_THAT(RefusalOf({.error = cudaErrorInsufficientDriver, .name = ""}),
              says("driver version is insufficient"));
}

}  // namespace
}  // namespace outrider::cuda
