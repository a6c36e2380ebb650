// Facts that plans are made of, without a machine or weights: configs of bundled checkpoints, and
// devices as tests want them.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>

#include "outrider/base/error.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/facts.h"
#include "tests/networks/loaded_model.h"

namespace outrider {

inline DeviceFacts Processor() {
  return {.chosen = {DeviceKind::kCpu, "asked for"},
          .kernels = "avx2",
          .best_isa = "amx",
          .max_fp8_weights_as_bf16 = 1000,
          .host_memory = std::nullopt,
          .processors = {0, 1, 2, 3}};
}

inline DeviceFacts Gpu() {
  return {.chosen = {DeviceKind::kCuda, "there is one"},
          .activation_type = DType::kBF16,
          .memory = {.total = int64_t{140} << 30, .free = int64_t{139} << 30},
          .host_memory = std::nullopt};
}

/// The bundled DeepSeek-V3 with so many of its chained MTP modules.
inline ModelFacts TinyV3(int32_t modules = 3) {
  return {.config = ReadModelConfig(TinyModelDirectory()), .modules = modules};
}

inline ModelFacts TinyV3WithEagle3() {
  ModelFacts facts = TinyV3();
  facts.drafter = {.config = ReadModelConfig(TinyEagle3Directory()), .own_embedding = false};
  return facts;
}

/// DeepSeek-V4 with the stages of a DSpark drafter.
inline ModelFacts TinyDSpark() {
  ModelFacts facts = {.config = ReadModelConfig(TinyDSparkDirectory())};
  facts.modules = static_cast<int32_t>(facts.config.dspark->stages);
  return facts;
}

inline ModelFacts GoldenModel(const std::string& name) {
  return {.config = ReadModelConfig(CheckpointDirectory(name))};
}

/// What an Error says that `plan` throws; "": none.
inline std::string RefusalBy(const std::function<void()>& plan) {
  try {
    plan();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// "value (why)" of a decision; "": there is none.
inline std::string DecisionOn(const std::string& what, const Decisions& decisions) {
  const auto found = std::ranges::find(decisions, what, &Decision::what);
  return found == decisions.end() ? "" : found->value + " (" + found->why + ")";
}

}  // namespace outrider
