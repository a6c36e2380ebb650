// The models that outrider_exactness_fuzz draws from, and their folders.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include "outrider/base/error.h"
#include "outrider/parallel/communicator.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/models_for_ranks.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/networks/small_v4_model.h"

namespace outrider::fuzz {

/// What the program is called with; the head of exactness_fuzz.cc says what each means.
struct Arguments {
  int64_t requests = INT64_MAX;
  int64_t seconds = INT64_MAX;
  uint32_t seed = 1;
  std::optional<uint32_t> round = std::nullopt;  // the first; else as the seed says
  int32_t engines = 1;                           // of a round's requests
  int32_t servings = 1;                          // of them by each engine
  bool late = false;
  bool v4 = false;
  bool eagle3 = false;
  bool sparse = false;
  bool int4 = false;
  bool fp8_cache = false;
  bool step = false;
  bool hybrid = false;
  int32_t ranks = 1;
  bool divided = false;
  DeviceKind device = DeviceKind::kCpu;
};

/// Numbers that a round's seed decides.
struct Random {
  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(numbers); }

  std::mt19937 numbers;
};

constexpr int32_t kSmallVocab = 1600;
constexpr int32_t kStatePageTokens = 256;  // of networks with running states on a GPU

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

/// Draws among the models that the arguments ask for, and has a folder for each.
class Models {
 public:
  Models(const Arguments& arguments, Random& random)
      : arguments_(arguments), random_(random), heads_(std::max(2, arguments.ranks)) {}

  bool on_gpu() const { return arguments_.device == DeviceKind::kCuda; }

  const ModelChoice& Draw() {
    constexpr int kMostDraws = 1000;
    for (int draw = 0; draw < kMostDraws; ++draw) {
      const ModelChoice& model = AnyModel();
      if (!arguments_.fp8_cache || model.rounded_cache) return model;
    }
    throw Error(ErrorCode::kInvalidArgument, "--fp8-cache: none of these models has an FP8 cache");
  }

  /// Options of an engine over it, with these operations.
  TestEngineOptions Options(const ModelChoice& model, const Ops* ops) {
    TestEngineOptions o;
    o.dummy_seed = model.dummy_seed;
    const auto take = [&](const ModelForRanks& bundled) {
      o.checkpoint = bundled.directory();
      if (bundled.has_dummy_weights()) o.dummy_seed = 9;
    };
    // Pages have to hold pieces of states.
    if (HasState(model) && on_gpu()) o.block_size = kStatePageTokens;
    switch (model.shape) {
      case Shape::kV3:
        if (on_gpu()) take(gpu_v3_);
        if (model.dummy_seed) o.checkpoint = small_model_.directory();
        break;
      case Shape::kStep:
        o.checkpoint = on_gpu() ? gpu_step_model_.directory() : small_step_model_.directory();
        break;
      case Shape::kSparse:
        o.checkpoint = on_gpu() ? gpu_v32_model_.directory() : small_sparse_model_.directory();
        break;
      case Shape::kGlm5:
        o.checkpoint = on_gpu() ? gpu_glm5_model_.directory() : small_glm5_model_.directory();
        break;
      case Shape::kLing:
        o.checkpoint = on_gpu() ? gpu_ling_.directory() : small_ling_.directory();
        if (!model.dummy_seed) o.checkpoint = TinyLingDirectory();
        break;
      case Shape::kLingInt4:
        if (!int4_ling_) int4_ling_.emplace(TinyLingDirectory());
        o.checkpoint = int4_ling_->directory();
        break;
      case Shape::kLingFp4:
        o.checkpoint = gpu_fp4_ling_.directory();
        break;
      case Shape::kKimi:
        o.checkpoint = on_gpu() ? gpu_kimi_.directory() : small_kimi_.directory();
        break;
      case Shape::kInt4:
        if (!int4_model_) int4_model_.emplace();
        o.checkpoint = int4_model_->directory();
        break;
      case Shape::kV4:
        o.checkpoint = model.dummy_seed ? small_v4_model_.directory() : TinyV4Directory();
        if (on_gpu()) take(gpu_v4_);
        break;
      case Shape::kV4DSpark:
        o.checkpoint = model.dummy_seed ? small_dspark_model_.directory() : TinyDSparkDirectory();
        if (on_gpu()) take(gpu_dspark_);
        break;
    }
    if (!IsV3(model)) o.cache_form = KvCacheForm::kHeads;
    o.dtype = model.dtype;
    o.rounded_cache = model.rounded_cache;
    o.fp8_form = model.fp8_form;
    o.ops = ops;
    o.drafter_checkpoint =
        model.dummy_seed ? SmallDrafterOf(model.shape).directory() : TinyEagle3Directory();
    // A GPU runs latent drafters only where the target's entries are latent.
    if ((on_gpu() && model.shape == Shape::kStep) || Uniform(0, 2) == 0) {
      // The trained one has two heads of keys.
      const bool trained = o.checkpoint == TinyModelDirectory() && arguments_.ranks <= 2;
      o.drafter_checkpoint = trained ? TinyLlamaEagle3Directory() : LlamaDrafterOf(o.checkpoint);
    }
    return o;
  }

 private:
  const SmallEagle3& SmallDrafterOf(Shape shape) const {
    switch (shape) {
      case Shape::kStep:
        return small_step_eagle3_;
      case Shape::kSparse:
        return on_gpu() ? gpu_v32_eagle3_ : small_sparse_eagle3_;
      case Shape::kGlm5:
        return on_gpu() ? gpu_glm5_eagle3_ : small_glm5_eagle3_;
      default:
        return small_eagle3_;
    }
  }

  /// With dummy weights, made when it is first asked for.
  std::filesystem::path LlamaDrafterOf(const std::filesystem::path& target) {
    const auto found = llama_drafters_.find(target);
    if (found != llama_drafters_.end()) return found->second.directory();
    const int32_t kv_heads = std::max(1, arguments_.ranks);
    return llama_drafters_
        .try_emplace(target, target, 2 * kv_heads, kv_heads, on_gpu() ? 128 : 16,
                     GpuV32Sizes(arguments_.ranks).gpu_width)
        .first->second.directory();
  }

  const ModelChoice& AnyModel() {
    if (arguments_.int4) {
      // A processor has no rounded cache of latent entries.
      return kInt4Models.at(static_cast<size_t>(on_gpu() ? Uniform(0, 1) : 0));
    }
    if (arguments_.step) {
      return (on_gpu() ? kGpuStepModels : kStepModels).at(static_cast<size_t>(Uniform(0, 1)));
    }
    if (arguments_.sparse && on_gpu())
      return kGpuSparseModels.at(static_cast<size_t>(Uniform(0, 3)));
    if (arguments_.v4 && on_gpu())
      return kGpuV4Models.at(static_cast<size_t>(Uniform(0, kGpuV4Models.size() - 1)));
    if (arguments_.hybrid && on_gpu()) {
      const auto count =
          arguments_.ranks > 1 ? kHybridsForRanks : static_cast<int>(kGpuHybridModels.size());
      return kGpuHybridModels.at(static_cast<size_t>(Uniform(0, count - 1)));
    }
    if (arguments_.hybrid) return kHybridModels.at(static_cast<size_t>(Uniform(0, 3)));
    if (on_gpu()) return kGpuModels.at(static_cast<size_t>(Uniform(0, kGpuModels.size() - 1)));
    if (arguments_.v4) return kV4Models.at(static_cast<size_t>(Uniform(0, kV4Models.size() - 1)));
    if (arguments_.sparse)
      return kSparseModels.at(static_cast<size_t>(Uniform(0, kSparseModels.size() - 1)));
    if (arguments_.eagle3)
      return kEagle3Models.at(static_cast<size_t>(Uniform(0, kEagle3Models.size() - 1)));
    const int kind = Uniform(0, 39);
    return kModels.at(static_cast<size_t>(kind < 2 ? kind : 2 + kind % (kModels.size() - 2)));
  }

  int Uniform(int low, int high) { return random_.Uniform(low, high); }

  const Arguments& arguments_;
  Random& random_;
  const int32_t heads_;  // of small models: all ranks can share them
  SmallModel small_model_{2, kSmallVocab, heads_};
  SmallStepModel small_step_model_{
      kSmallVocab, 20, {.heads = heads_, .kv_heads = std::max(1, arguments_.ranks)}};
  SmallStepModel gpu_step_model_{kSmallVocab, 20, GpuStepSizes(arguments_.ranks)};
  SmallSparseModel small_sparse_model_{kSmallVocab, {.heads = heads_}};
  SmallSparseModel small_glm5_model_{kSmallVocab, {.golden = "tiny-glm-dsa", .heads = heads_}};
  SmallSparseModel gpu_v32_model_{kSmallVocab, GpuV32Sizes(arguments_.ranks)};
  SmallSparseModel gpu_glm5_model_{kSmallVocab, GpuGlm5Sizes(arguments_.ranks)};
  ModelDirectory small_ling_{WithHeads(SmallLingConfig(kSmallVocab), std::max(4, heads_))};
  ModelDirectory small_kimi_{WithHeads(SmallKimiConfig(kSmallVocab), std::max(4, heads_))};
  ModelDirectory gpu_ling_{
      WithHeads(WithGpuHeads(SmallLingConfig(kSmallVocab)), std::max(4, heads_))};
  ModelDirectory gpu_kimi_{
      WithHeads(WithGpuHeads(SmallKimiConfig(kSmallVocab)), std::max(4, heads_))};
  ModelDirectory gpu_fp4_ling_{SmallFp4LingConfig(kSmallVocab)};
  V3ForRanks gpu_v3_{arguments_.ranks};
  V4ForRanks gpu_v4_{TinyV4Directory(), arguments_.ranks};
  V4ForRanks gpu_dspark_{TinyDSparkDirectory(), arguments_.ranks};
  SmallV4Model small_v4_model_{kSmallVocab, /*dspark=*/false, heads_};
  std::optional<Int4TinyModel> int4_model_;
  std::optional<Int4TinyModel> int4_ling_;
  SmallV4Model small_dspark_model_{kSmallVocab, /*dspark=*/true, heads_};
  std::map<std::filesystem::path, SmallLlamaEagle3> llama_drafters_;  // by target
  SmallEagle3 small_eagle3_{small_model_.directory()};
  SmallEagle3 small_step_eagle3_{small_step_model_.directory(), /*version31=*/true, heads_};
  SmallEagle3 small_sparse_eagle3_{small_sparse_model_.directory()};
  SmallEagle3 small_glm5_eagle3_{small_glm5_model_.directory()};
  // Of heads as the model, and of a width that GPUs can share.
  SmallEagle3 gpu_v32_eagle3_{gpu_v32_model_.directory(), /*version31=*/false, heads_,
                              GpuV32Sizes(arguments_.ranks).gpu_width};
  SmallEagle3 gpu_glm5_eagle3_{gpu_glm5_model_.directory(), /*version31=*/false, heads_,
                               GpuGlm5Sizes(arguments_.ranks).gpu_width};
};

}  // namespace outrider::fuzz
