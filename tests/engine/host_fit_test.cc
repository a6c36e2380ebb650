// Models that do not fit into the memory of a machine without a GPU.
#include "outrider/engine/host_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/base/error.h"
#include "outrider/engine/engine_loader.h"
#include "tests/networks/model_directory.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

HostMemory Machine(int64_t gib) { return {gib * kGiB, "free on this machine"}; }

TEST(HostFitTest, WhatFitsSaysHowMuchOfWhat) {
  const HostFit fit = FitInHost({.weights = 4 * kGiB, .kv_cache = kGiB}, Machine(6));
  EXPECT_TRUE(fit.fits);
  EXPECT_EQ(
      fit.text,
      "5.2 GiB are needed (4.0 GiB of weights, 1.0 GiB of KV cache), 6.0 GiB are free on this "
      "machine");
}

// DeepSeek-V2-Lite on a machine of 23 GB.
TEST(HostFitTest, Int8IsProposedWhereItIsEnough) {
  const HostFit fit =
      FitInHost({.weights = 30 * kGiB, .kv_cache = kGiB, .int8_weights = 16 * kGiB}, Machine(22));
  EXPECT_FALSE(fit.fits);
  EXPECT_THAT(fit.text, AllOf(HasSubstr("31.2 GiB are needed"), HasSubstr("22.0 GiB are free"),
                              HasSubstr("use --quantization int8, which needs 17.2 GiB")));
}

TEST(HostFitTest, ASmallerCacheIsProposedBeforeOtherWeights) {
  const HostNeed need = {.weights = 4 * kGiB, .kv_cache = 20 * kGiB, .int8_weights = 2 * kGiB};
  EXPECT_THAT(
      FitInHost(need, Machine(6)).text,
      AllOf(HasSubstr("use --kv-cache-memory-bytes 1792M or less"), Not(HasSubstr("int8"))));
}

TEST(HostFitTest, BothAreProposedWhereBothAreNeeded) {
  const HostNeed need = {.weights = 9 * kGiB, .kv_cache = 20 * kGiB, .int8_weights = 4 * kGiB};
  EXPECT_THAT(FitInHost(need, Machine(6)).text,
              HasSubstr("use --quantization int8 and --kv-cache-memory-bytes 1792M or less"));
}

TEST(HostFitTest, WhereNothingHelpsNothingIsPromised) {
  const HostNeed none = {.weights = 90 * kGiB, .kv_cache = kGiB, .int8_weights = 0};
  EXPECT_THAT(FitInHost(none, Machine(6)).text,
              AllOf(HasSubstr("larger machine"), Not(HasSubstr("int8"))));
  // Weights that are 8 bits already would not get smaller.
  const HostNeed same = {.weights = 90 * kGiB, .kv_cache = kGiB, .int8_weights = 90 * kGiB};
  EXPECT_THAT(FitInHost(same, Machine(6)).text, Not(HasSubstr("int8")));
}

// A model of 5.1 TB: it is refused before its weights are read, and explained.
TEST(HostFitTest, AModelThatDoesNotFitIsRefusedAtLoadAndExplained) {
  nlohmann::json config = ReadJson(SourceDirectory() / "models/tiny-v3-mtp3/config.json");
  config.erase("quantization_config");  // to draw its scales would take seconds
  config["intermediate_size"] = 1 << 24;
  config["num_hidden_layers"] = config["first_k_dense_replace"] = 200;
  const ModelDirectory model(config);
  EngineOptions options;
  options.model = model.directory().string();
  options.load_format = LoadFormat::kDummy;
  options.device = DeviceKind::kCpu;
  const auto refusal = [&] {
    try {
      LoadEngine(options, [](int64_t, int64_t) {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(refusal(), AllOf(HasSubstr("does not fit into memory"), HasSubstr("are needed"),
                               HasSubstr("larger machine")));
  const LoadedEngine explained = ExplainEngine(options);
  const Decision& memory = explained.decisions.back();
  EXPECT_EQ(memory.what, "memory");
  EXPECT_EQ(memory.value, "DOES NOT FIT");
  EXPECT_THAT(memory.why, HasSubstr("are needed"));

  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  EXPECT_EQ(ExplainEngine(options).decisions.back().value, "fits");
  options.kv_cache_memory_bytes = int64_t{1} << 50;
  options.max_num_seqs = 65536;
  EXPECT_EQ(ExplainEngine(options).decisions.back().value, "DOES NOT FIT");
}

}  // namespace
}  // namespace outrider
