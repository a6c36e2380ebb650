// The models that outrider_exactness_fuzz can draw: what each is made of.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/model_config.h"
#include "tests/engine/test_engine.h"

namespace outrider::fuzz {

enum class Shape {
  kV3,        // latent attention, three chained MTP modules
  kStep,      // Step-3.5, which has two cache groups
  kV4,        // DeepSeek-V4 with its MTP module
  kV4DSpark,  // DeepSeek-V4 with a DSpark drafter
  kSparse,    // DeepSeek-V3.2 with its MTP module
  kGlm5,      // GLM-5 with its MTP module
  kInt4,      // the bundled one, whose experts are INT4
  kLing,      // Ling-3.0
  kLingInt4,  // the bundled one, whose experts are INT4
  kLingFp4,   // with experts in MXFP4 beside blocks of FP8
  kKimi,      // Kimi-Linear
};

/// Requests run alone once per model.
struct ModelChoice {
  const char* name;
  DType dtype;
  std::optional<uint64_t> dummy_seed = std::nullopt;  // set: random weights in the small shapes
  Shape shape = Shape::kV3;
  bool rounded_cache = false;
  Fp8Form fp8_form = Fp8Form::kPublished;  // of DeepSeek-V4's
};

// Most rounds run a small model: what is tested is everything around it, too.
constexpr std::array kModels = {
    ModelChoice{"bundled, bfloat16", DType::kBF16},
    ModelChoice{"bundled, float32", DType::kF32},
    ModelChoice{"small, bfloat16", DType::kBF16, 5},
    ModelChoice{"small, float32", DType::kF32, 6},
    ModelChoice{"small with windows, bfloat16", DType::kBF16, 7, Shape::kStep},
    ModelChoice{"small with windows, float32", DType::kF32, 8, Shape::kStep},
    ModelChoice{"small V4, bfloat16", DType::kBF16, 9, Shape::kV4},
    ModelChoice{"small V4, float32", DType::kF32, 10, Shape::kV4},
    ModelChoice{"small V4 with DSpark, bfloat16", DType::kBF16, 9, Shape::kV4DSpark},
    ModelChoice{"small V4 with DSpark, float32", DType::kF32, 10, Shape::kV4DSpark},
    ModelChoice{"small V3.2, bfloat16", DType::kBF16, 11, Shape::kSparse},
    ModelChoice{"small V3.2, float32", DType::kF32, 12, Shape::kSparse},
    ModelChoice{"small V3.2, bfloat16, FP8 cache", DType::kBF16, 11, Shape::kSparse, true},
    ModelChoice{"small V3.2, float32, FP8 cache", DType::kF32, 12, Shape::kSparse, true},
};

constexpr std::array kSparseModels = {
    ModelChoice{"small V3.2, bfloat16", DType::kBF16, 11, Shape::kSparse},
    ModelChoice{"small V3.2, float32", DType::kF32, 12, Shape::kSparse},
    ModelChoice{"small GLM-5, bfloat16", DType::kBF16, 17, Shape::kGlm5},
    ModelChoice{"small GLM-5, float32", DType::kF32, 18, Shape::kGlm5},
    ModelChoice{"small V3.2, bfloat16, FP8 cache", DType::kBF16, 11, Shape::kSparse, true},
    ModelChoice{"small V3.2, float32, FP8 cache", DType::kF32, 12, Shape::kSparse, true},
    ModelChoice{"small GLM-5, bfloat16, FP8 cache", DType::kBF16, 17, Shape::kGlm5, true},
    ModelChoice{"small GLM-5, float32, FP8 cache", DType::kF32, 18, Shape::kGlm5, true},
};

constexpr std::array kV4Models = {
    ModelChoice{"bundled V4, bfloat16", DType::kBF16, std::nullopt, Shape::kV4},
    ModelChoice{"bundled V4, float32", DType::kF32, std::nullopt, Shape::kV4},
    ModelChoice{"small V4, bfloat16", DType::kBF16, 9, Shape::kV4},
    ModelChoice{"small V4, float32", DType::kF32, 10, Shape::kV4},
    ModelChoice{"bundled V4, rounded cache", DType::kBF16, std::nullopt, Shape::kV4, true},
    ModelChoice{"small V4, rounded cache", DType::kF32, 9, Shape::kV4, true},
    ModelChoice{"bundled V4 with DSpark, rounded cache", DType::kF32, std::nullopt,
                Shape::kV4DSpark, true},
    ModelChoice{"small V4 with DSpark, rounded cache", DType::kBF16, 10, Shape::kV4DSpark, true},
    ModelChoice{"bundled V4 with DSpark, bfloat16", DType::kBF16, std::nullopt, Shape::kV4DSpark},
    ModelChoice{"bundled V4 with DSpark, float32", DType::kF32, std::nullopt, Shape::kV4DSpark},
    ModelChoice{"small V4 with DSpark, bfloat16", DType::kBF16, 9, Shape::kV4DSpark},
    ModelChoice{"small V4 with DSpark, float32", DType::kF32, 10, Shape::kV4DSpark},
};

constexpr std::array kEagle3Models = {
    ModelChoice{"bundled, bfloat16", DType::kBF16},
    ModelChoice{"small, bfloat16", DType::kBF16, 5},
    ModelChoice{"bundled, float32", DType::kF32},
    ModelChoice{"small, float32", DType::kF32, 6},
    ModelChoice{"bundled, bfloat16", DType::kBF16},
    ModelChoice{"small with windows, bfloat16", DType::kBF16, 7, Shape::kStep},
};

constexpr std::array kGpuModels = {
    ModelChoice{.name = "bundled, bfloat16", .dtype = DType::kBF16},
    ModelChoice{.name = "bundled, FP8 cache", .dtype = DType::kBF16, .rounded_cache = true},
};

constexpr std::array kInt4Models = {
    ModelChoice{.name = "INT4 experts, bfloat16", .dtype = DType::kBF16, .shape = Shape::kInt4},
    ModelChoice{.name = "INT4 experts, FP8 cache",
                .dtype = DType::kBF16,
                .shape = Shape::kInt4,
                .rounded_cache = true},
};

constexpr std::array kStepModels = {
    ModelChoice{"small Step, bfloat16", DType::kBF16, 7, Shape::kStep},
    ModelChoice{"small Step, float32", DType::kF32, 8, Shape::kStep},
};

constexpr std::array kHybridModels = {
    ModelChoice{"small Ling, bfloat16", DType::kBF16, 13, Shape::kLing},
    ModelChoice{"small Ling, float32", DType::kF32, 14, Shape::kLing},
    ModelChoice{"small Kimi-Linear, bfloat16", DType::kBF16, 15, Shape::kKimi},
    ModelChoice{"small Kimi-Linear, float32", DType::kF32, 16, Shape::kKimi},
};

constexpr std::array kGpuStepModels = {
    ModelChoice{"Step, bfloat16", DType::kBF16, 7, Shape::kStep},
    ModelChoice{"Step, FP8 cache", DType::kBF16, 8, Shape::kStep, true},
};

constexpr std::array kGpuSparseModels = {
    ModelChoice{"V3.2, bfloat16", DType::kBF16, 11, Shape::kSparse},
    ModelChoice{"GLM-5, bfloat16", DType::kBF16, 17, Shape::kGlm5},
    ModelChoice{"V3.2, FP8 cache", DType::kBF16, 11, Shape::kSparse, true},
    ModelChoice{"GLM-5, FP8 cache", DType::kBF16, 17, Shape::kGlm5, true},
};

constexpr std::array kGpuV4Models = {
    ModelChoice{"bundled V4, bfloat16", DType::kBF16, std::nullopt, Shape::kV4},
    ModelChoice{"bundled V4 with DSpark, bfloat16", DType::kBF16, std::nullopt, Shape::kV4DSpark},
    ModelChoice{"bundled V4, FP8 cache", DType::kBF16, std::nullopt, Shape::kV4, true,
                Fp8Form::kPerTensor},
    ModelChoice{"bundled V4 with DSpark, FP8 cache", DType::kBF16, std::nullopt, Shape::kV4DSpark,
                true, Fp8Form::kPerTensor},
    ModelChoice{"bundled V4 with DSpark, rounded cache", DType::kBF16, std::nullopt,
                Shape::kV4DSpark, true, Fp8Form::kPublishedNumbers},
};

constexpr std::array kGpuHybridModels = {
    ModelChoice{"Ling, bfloat16", DType::kBF16, 13, Shape::kLing},
    ModelChoice{"Kimi-Linear, bfloat16", DType::kBF16, 15, Shape::kKimi},
    ModelChoice{"bundled Ling, FP8", DType::kBF16, std::nullopt, Shape::kLing},
    ModelChoice{"Ling, FP8 with FP4 experts", DType::kBF16, 19, Shape::kLingFp4},
    ModelChoice{"bundled Ling, INT4 experts", DType::kBF16, std::nullopt, Shape::kLingInt4},
};
constexpr int kHybridsForRanks = 2;  // of these: several ranks can share them

inline bool IsV4(const ModelChoice& model) {
  return model.shape == Shape::kV4 || model.shape == Shape::kV4DSpark;
}

inline bool IsLing(const ModelChoice& model) {
  return model.shape == Shape::kLing || model.shape == Shape::kLingInt4 ||
         model.shape == Shape::kLingFp4;
}

inline bool HasState(const ModelChoice& model) {
  return IsLing(model) || model.shape == Shape::kKimi;
}

/// Whether its cache has two forms.
inline bool IsV3(const ModelChoice& model) {
  return model.shape == Shape::kV3 || model.shape == Shape::kInt4 || HasState(model);
}

/// The shape whose rules hold for a model of this config.
inline Shape ShapeOf(const ModelConfig& config) {
  switch (config.family) {
    case ModelFamily::kStep3p5:
      return Shape::kStep;
    case ModelFamily::kDeepSeekV4:
      return config.dspark ? Shape::kV4DSpark : Shape::kV4;
    case ModelFamily::kBailingHybrid:
      return Shape::kLing;
    case ModelFamily::kKimiLinear:
      return Shape::kKimi;
    default:
      return std::get<MlaSpec>(config.layers.front().attention).indexer ? Shape::kSparse
                                                                        : Shape::kV3;
  }
}

}  // namespace outrider::fuzz
