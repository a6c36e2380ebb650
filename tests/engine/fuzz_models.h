// The models that outrider_exactness_fuzz draws from, and their folders.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include "outrider/base/error.h"
#include "outrider/parallel/communicator.h"
#include "tests/engine/fuzz_choices.h"
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
  std::filesystem::path model = {};  // set: of all rounds, with random weights
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

/// Draws among the models that the arguments ask for, and has a folder for each.
class Models {
 public:
  Models(const Arguments& arguments, Random& random)
      : arguments_(arguments), random_(random), heads_(std::max(2, arguments.ranks)) {
    if (arguments.model.empty()) return;
    given_ = {.name = "given",
              .dtype = DType::kBF16,
              .dummy_seed = 21,
              .shape = ShapeOf(ReadModelConfig(arguments.model)),
              .rounded_cache = arguments.fp8_cache,
              .fp8_form = on_gpu() ? Fp8Form::kPerTensor : Fp8Form::kPublished};
  }

  bool on_gpu() const { return arguments_.device == DeviceKind::kCuda; }

  const ModelChoice& Draw() {
    if (given_) return *given_;
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
    if (given_) o.checkpoint = arguments_.model;
    if (!IsV3(model)) o.cache_form = KvCacheForm::kHeads;
    o.dtype = model.dtype;
    o.rounded_cache = model.rounded_cache;
    o.fp8_form = model.fp8_form;
    o.ops = ops;
    o.drafter_checkpoint =
        model.dummy_seed ? SmallDrafterOf(model.shape).directory() : TinyEagle3Directory();
    // A GPU runs latent drafters only where the target's entries are latent.
    if (given_ || (on_gpu() && model.shape == Shape::kStep) || Uniform(0, 2) == 0) {
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
  std::optional<ModelChoice> given_;
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
