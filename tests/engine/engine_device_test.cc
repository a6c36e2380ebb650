// What a device does not run is refused at the start, in one line that says what would run.
#include "outrider/engine/engine_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "outrider/base/error.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

std::string RefusalOf(const std::function<void(EngineOptions&, DevicePlan&)>& change) {
  EngineOptions options;
  DevicePlan plan = {.device = DeviceKind::kCuda, .modules = 3, .drafts = 3};
  change(options, plan);
  try {
    CheckRunsOnDevice(options, ReadModelConfig(TinyModelDirectory()), plan);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EngineDevice, TheProcessorRunsEverything) {
  EXPECT_EQ(RefusalOf([](EngineOptions& options, DevicePlan& plan) {
              plan.device = DeviceKind::kCpu;
              options.block_size = 7;
              plan.dtype = DType::kF32;
              plan.form = KvCacheForm::kHeads;
            }),
            "");
  EXPECT_EQ(MakeDeviceOps(DeviceKind::kCpu), nullptr);
}

#ifdef OUTRIDER_ENGINE_CUDA

TEST(EngineDevice, TheGpuSaysWhatItDoesNotRun) {
  using testing::HasSubstr;
  EXPECT_EQ(RefusalOf([](EngineOptions&, DevicePlan&) {}), "");
  EXPECT_THAT(RefusalOf([](EngineOptions&, DevicePlan& p) { p.dtype = DType::kF32; }),
              HasSubstr("use --dtype bfloat16"));
  EXPECT_THAT(RefusalOf([](EngineOptions&, DevicePlan& p) { p.kv_dtype = DType::kF32; }),
              HasSubstr("use --kv-cache-dtype bfloat16 or fp8"));
  EXPECT_EQ(RefusalOf([](EngineOptions&, DevicePlan& p) { p.kv_dtype = DType::kF8E4M3; }), "");
  EXPECT_THAT(RefusalOf([](EngineOptions&, DevicePlan& p) { p.form = KvCacheForm::kHeads; }),
              HasSubstr("use --kv-cache-form latent"));
  EXPECT_THAT(
      RefusalOf([](EngineOptions& o, DevicePlan&) { o.quantization = WeightQuantization::kInt8; }),
      HasSubstr("use --quantization none"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, DevicePlan&) {
                o.attention_backend = AttentionBackend::kUniformPad;
              }),
              HasSubstr("use --attention-backend ragged"));
  ModelConfig drafter = ReadModelConfig(TinyEagle3Directory());
  EXPECT_EQ(RefusalOf([&](EngineOptions&, DevicePlan& p) { p.drafter = &drafter; }), "");
  std::get<MlaSpec>(drafter.layers.front().attention).heads = 4;
  EXPECT_THAT(RefusalOf([&](EngineOptions&, DevicePlan& p) { p.drafter = &drafter; }),
              HasSubstr("a drafter with num_attention_heads 4"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, DevicePlan&) { o.block_size = 100; }),
              HasSubstr("--block-size 100: use 16, 32, 64 or 256"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, DevicePlan&) { o.max_num_seqs = 4097; }),
              HasSubstr("up to 4096"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, DevicePlan& p) {
                o.max_num_seqs = 4096;
                p.drafts = 4;
              }),
              HasSubstr("steps of 20480 rows"));
}

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
