// Random requests through random engines: together, with speculation, batching, chunks, preemption,
// prefix hits, priorities, grammars and aborts, against each alone without any of it. Tokens and
// logprob bits must be equal. Long because engines and requests are drawn together.
//
//   outrider_exactness_fuzz [--requests N] [--seconds T] [--seed S] [--round R] [--late 1] [--v4 1]
//                           [--eagle3 1] [--sparse 1] [--step 1] [--hybrid 1] [--device cuda]
//                           [--int4 1] [--fp8-cache 1]
//
// In half of the rounds pages that a request gets hold NaN until they are written, and the host and
// the device stop at random moments.
//
// With --v4 1 all models are DeepSeek-V4s, half of the rounds over the bundled checkpoints.
//
// With --eagle3 1 all drafters are EAGLE-3 drafters, half of the rounds with the bundled one.
//
// With --sparse 1 all models are DeepSeek-V3.2s and GLM-5s, whose rows read 12 tokens; in half of
// the rounds over FP8 caches.
//
// With --fp8-cache 1 all models have FP8 caches.
//
// With --step 1 all models are Step-3.5s.
//
// With --hybrid 1 all models have linear attention: Kimi-Linears and Ling-3.0s.
//
// With --ranks N the processor's threads are N ranks that share each model that they can share (the
// small ones have heads enough); each request alone runs on one. With --device cuda ranks are
// spread over the GPUs that there are, several on each where these are fewer. With --divided 1 each
// rank keeps the cache of its own requests (--data-parallel-attention).
//
// With --late 1 results of steps come one step late (LateExecutor, in every other round
// QueuedExecutor): the next step is planned and launched while one is in flight; and drafts stay on
// the device, as far as the processor can play one (TokenKeepingOps). With --device cuda
// the bundled model runs on a GPU, over a QueuedExecutor; with --int4 1 with its routed experts
// rounded to INT4, beside the rest in bfloat16; with --step 1 a Step-3.5; with --sparse 1 a
// DeepSeek-V3.2 or a GLM-5, over caches in bfloat16 and FP8; with --v4 1 the bundled DeepSeek-V4s,
// with an MTP module or a DSpark drafter, over bfloat16 caches.
//
// Ends after N requests or T seconds, whichever comes first; exit status 1 at the first difference,
// with its round: --round R begins with that. Long because every kind of model, drafter and request
// is drawn in one program.
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/plan/rank_plan.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#endif
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/execute/disturbing_executor.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/networks/small_v4_model.h"
#include "tests/ops/token_keeping_ops.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

struct Arguments {
  int64_t requests = INT64_MAX;
  int64_t seconds = INT64_MAX;
  uint32_t seed = 1;
  std::optional<uint32_t> round = std::nullopt;  // the first; else as the seed says
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

[[noreturn]] void RefuseArguments() {
  fmt::print(stderr,
             "usage: outrider_exactness_fuzz [--requests N] [--seconds T] [--seed S] [--round R] "
             "[--late 1] [--v4 1] [--eagle3 1] [--sparse 1] [--int4 1] [--step 1] [--hybrid 1] "
             "[--fp8-cache 1] [--ranks N] [--divided 1] "
             "[--device cpu|cuda]\n");
  std::exit(2);
}

Arguments ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) RefuseArguments();
    const std::string_view text = argv[i + 1];
    if (name == "--device" && (text == "cpu" || text == "cuda")) {
      arguments.device = text == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
      continue;
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) RefuseArguments();
    if (name == "--requests") {
      arguments.requests = value;
    } else if (name == "--seconds") {
      arguments.seconds = value;
    } else if (name == "--seed") {
      arguments.seed = static_cast<uint32_t>(value);
    } else if (name == "--round") {
      arguments.round = static_cast<uint32_t>(value);
    } else if (name == "--ranks" && value >= 1 && value <= kMostRanks) {
      arguments.ranks = static_cast<int32_t>(value);
    } else if (name == "--divided") {
      arguments.divided = value != 0;
    } else if (name == "--late") {
      arguments.late = value != 0;
    } else if (name == "--v4") {
      arguments.v4 = value != 0;
    } else if (name == "--sparse") {
      arguments.sparse = value != 0;
    } else if (name == "--int4") {
      arguments.int4 = value != 0;
    } else if (name == "--fp8-cache") {
      arguments.fp8_cache = value != 0;
    } else if (name == "--step") {
      arguments.step = value != 0;
    } else if (name == "--hybrid") {
      arguments.hybrid = value != 0;
    } else if (name == "--eagle3") {
      arguments.eagle3 = value != 0;
    } else {
      RefuseArguments();
    }
  }
  if (arguments.eagle3 && arguments.v4) {
    fmt::print(stderr, "outrider_exactness_fuzz: --eagle3 and --v4 have models of their own\n");
    std::exit(2);
  }
  if (arguments.requests == INT64_MAX && arguments.seconds == INT64_MAX) arguments.seconds = 60;
  return arguments;
}

constexpr int32_t kSmallVocab = 1600;
constexpr int32_t kMaxModelLen = 400;

/// What a round found.
class Different : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Shape {
  kV3,        // latent attention, three chained MTP modules
  kStep,      // Step-3.5, which has two cache groups
  kV4,        // DeepSeek-V4 with its MTP module
  kV4DSpark,  // DeepSeek-V4 with a DSpark drafter
  kSparse,    // DeepSeek-V3.2 with its MTP module
  kGlm5,      // GLM-5 with its MTP module
  kInt4,      // the bundled one, whose experts are INT4
  kLing,      // Ling-3.0
  kKimi,      // Kimi-Linear
};

/// Requests run alone once per model.
struct ModelChoice {
  const char* name;
  DType dtype;
  std::optional<uint64_t> dummy_seed = std::nullopt;  // set: random weights in the small shapes
  Shape shape = Shape::kV3;
  bool rounded_cache = false;
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
};

/// Of the processor, or of GPUs' operations, by rank.
Disturbances DisturbancesOf(const std::vector<const Ops*>& ranks) {
  if (ranks.empty()) {
    return {.fill_with_ones = [](size_t /*rank*/, std::byte* memory,
                                 size_t bytes) { std::memset(memory, 0xFF, bytes); },
            .stall = nullptr};
  }
#ifdef OUTRIDER_ENGINE_CUDA
  // The device of the rank is the thread's meanwhile.
  const auto in_stream_of = [ranks](size_t rank, auto act) {
    ranks[rank]->UseOnThisThread();
    act(static_cast<const cuda::CudaOps&>(*ranks[rank]).stream());
    ranks.front()->UseOnThisThread();
  };
  return {.fill_with_ones =
              [in_stream_of](size_t rank, std::byte* memory, size_t bytes) {
                in_stream_of(rank, [&](cudaStream_t stream) {
                  cuda::CheckCuda(cudaMemsetAsync(memory, 0xFF, bytes, stream), "poison");
                });
              },
          .stall =
              [in_stream_of](size_t rank) {
                const auto wait = [](void*) {
                  std::this_thread::sleep_for(std::chrono::microseconds(300));
                };
                in_stream_of(rank, [&](cudaStream_t stream) {
                  cuda::CheckCuda(cudaLaunchHostFunc(stream, wait, nullptr), "stall");
                });
              }};
#else
  OUTRIDER_CHECK(false);
#endif
}

/// GPUs of so many ranks, in turn those that there are; none without GPUs.
std::vector<int> DevicesOf([[maybe_unused]] int32_t ranks) {
  std::vector<int> devices;
#ifdef OUTRIDER_ENGINE_CUDA
  const int count = cuda::DescribeGpu().count;
  for (int32_t rank = 0; rank < ranks; ++rank) devices.push_back(rank % std::max(count, 1));
#endif
  return devices;
}

class Fuzz {
 public:
  explicit Fuzz(const Arguments& arguments)
      : late_(arguments.late),
        v4_(arguments.v4),
        eagle3_(arguments.eagle3),
        sparse_(arguments.sparse),
        int4_(arguments.int4),
        fp8_cache_(arguments.fp8_cache),
        step_(arguments.step),
        hybrid_(arguments.hybrid),
        ranks_(arguments.ranks),
        divided_(arguments.divided),
        ops_(MakeDeviceOps(arguments.device)),
        own_rank_ops_(ranks_ == 1 ? MakeRankOps(DeviceKind::kCpu, {})
                                  : MakeRankOps(arguments.device, DevicesOf(ranks_))),
        rank_ops_(PointersTo(own_rank_ops_)),
        disturbances_(DisturbancesOf(DisturbedOps())),
        random_(arguments.seed) {}

  int64_t preemptions() const { return preemptions_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t returned_tokens() const { return returned_tokens_; }
  int64_t accepted() const { return accepted_; }
  int64_t with_grammar() const { return with_grammar_; }

  /// One engine, some requests. Returns their number; throws Different.
  int Round(uint32_t round_seed) {
    random_.seed(round_seed);
    const ModelChoice& model = RandomModel();
    TestEngineOptions options = RandomOptions(model);
    options.ranks = ranks_;
    options.rank_ops = rank_ops_;
    options.divides_requests = divided_;
    if (!IsShared(options)) return 0;
    // A GPU is served over a thread of its own.
    options.queued = late_ ? round_seed % 2 == 0 : on_gpu();
    if (late_ && !options.queued) options.late_seed = round_seed;
    const TokenKeepingOps keeping_ops(cpu::GetCpuOps(SelectIsa()).kernels());
    if (late_ && !on_gpu() && !IsV4(model)) options.ops = &keeping_ops;
    if (CanBeDisturbed(options) && Uniform(0, 1) == 0) {
      options.make_executor = [this, round_seed](std::vector<RankParts> parts) {
        return std::make_unique<DisturbingExecutor>(std::move(parts), round_seed, disturbances_);
      };
    }
    std::vector<GenerationRequest> requests =
        RandomRequests(round_seed, model.dummy_seed || on_gpu() ? Uniform(4, 48) : Uniform(2, 12));
    if (IsV4(model) || HasState(model)) LengthenPrompts(requests);
    for (size_t i = 1; i < requests.size(); ++i) Vary(requests, i, options);
    AddGrammars(round_seed, model.dummy_seed ? kSmallVocab : kBundledVocab, requests);

    const auto engine = MakeTestEngine(options, &BundledTokenizer());
    std::vector<Generated> together(requests.size());
    std::vector<RequestId> ids;
    std::vector<bool> aborted(requests.size(), false);
    for (size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(Submit(*engine, requests[i], &together[i]));
      for (int steps = Uniform(0, 3); steps > 0; --steps) engine->Step();
      if (Uniform(0, 15) == 0) {
        const auto victim = static_cast<size_t>(Uniform(0, static_cast<int>(i)));
        if (!together[victim].finish_reason) aborted[victim] = true;
        engine->Abort(ids[victim]);
      }
    }
    RunUntilIdle(*engine);
    AddSecondTurns(*engine, requests, together, aborted);
    FinishWork();
    const bool crosses_roles =
        options.prefix_caching && options.fast_prefix && options.cache_form == KvCacheForm::kLatent;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (crosses_roles && SharesAnAnswer(requests, together, i)) continue;
      Check(requests[i], model, options.cache_form, together[i], aborted[i],
            fmt::format("round {}, {}, {}, request {}", round_seed, model.name, Describe(options),
                        i));
    }
    const EngineCounters counters = engine->Counters();
    if (counters.kv_cache_usage != 0) {
      throw Different(fmt::format("DIFFERENT: round {}: pages of ended requests", round_seed));
    }
    preemptions_ += counters.num_preemptions;
    cached_tokens_ += counters.prefix_cache_hits;
    returned_tokens_ += counters.host_cache_hits;
    for (const GenerationRequest& request : requests) {
      if (request.grammar.grammar) ++with_grammar_;
    }
    accepted_ += counters.speculation.num_accepted_tokens;
    return static_cast<int>(requests.size());
  }

 private:
  bool on_gpu() const { return ops_ != nullptr; }

  /// Nothing runs on the GPUs of ranks when requests run alone in another stream: there are kernels
  /// whose blocks wait for each other.
  void FinishWork() const {
#ifdef OUTRIDER_ENGINE_CUDA
    for (const Ops* ops : rank_ops_) static_cast<const cuda::CudaOps*>(ops)->Synchronize();
#endif
  }

  static std::vector<const Ops*> PointersTo(const std::vector<std::unique_ptr<Ops>>& ops) {
    std::vector<const Ops*> pointers;
    for (const auto& each : ops) pointers.push_back(each.get());
    return pointers;
  }
  /// Of the GPUs that requests run on together.
  std::vector<const Ops*> DisturbedOps() const {
    if (!on_gpu() || !rank_ops_.empty()) return rank_ops_;
    return {ops_.get()};
  }

  static bool CanBeDisturbed(const TestEngineOptions& options) {
    return std::ranges::all_of(TestCacheConfig(options).groups, [](const CacheGroupSpec& group) {
      return group.kind == CacheGroupKind::kFullHistory;
    });
  }

  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  /// Whether the ranks can share the models.
  static bool IsShared(const TestEngineOptions& options) {
    try {
      const bool divided = options.divides_requests;
      const ModelConfig config = ReadModelConfig(options.checkpoint);
      if (divided) CheckDividesRequests(config, options.ranks, DeviceKind::kCpu);
      CheckRanks(config, options.ranks, "--ranks", divided);
      if (options.drafter == DrafterKind::kEagle3) {
        CheckRanks(ReadModelConfig(options.drafter_checkpoint), options.ranks, "--ranks", divided);
      }
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static bool IsV4(const ModelChoice& model) {
    return model.shape == Shape::kV4 || model.shape == Shape::kV4DSpark;
  }

  static bool HasState(const ModelChoice& model) {
    return model.shape == Shape::kLing || model.shape == Shape::kKimi;
  }

  /// Whether its cache has two forms.
  static bool IsV3(const ModelChoice& model) {
    return model.shape == Shape::kV3 || model.shape == Shape::kInt4 || HasState(model);
  }

  const ModelChoice& RandomModel() {
    constexpr int kMostDraws = 1000;
    for (int draw = 0; draw < kMostDraws; ++draw) {
      const ModelChoice& model = AnyModel();
      if (!fp8_cache_ || model.rounded_cache) return model;
    }
    throw Error(ErrorCode::kInvalidArgument, "--fp8-cache: none of these models has an FP8 cache");
  }

  const ModelChoice& AnyModel() {
    if (int4_) {
      // A processor has no rounded cache of latent entries.
      return kInt4Models.at(static_cast<size_t>(on_gpu() ? Uniform(0, 1) : 0));
    }
    if (step_) {
      return (on_gpu() ? kGpuStepModels : kStepModels).at(static_cast<size_t>(Uniform(0, 1)));
    }
    if (sparse_ && on_gpu()) return kGpuSparseModels.at(static_cast<size_t>(Uniform(0, 3)));
    if (v4_ && on_gpu()) return kGpuV4Models.at(static_cast<size_t>(Uniform(0, 1)));
    if (hybrid_) return kHybridModels.at(static_cast<size_t>(Uniform(0, 3)));
    if (on_gpu()) return kGpuModels.at(static_cast<size_t>(Uniform(0, kGpuModels.size() - 1)));
    if (v4_) return kV4Models.at(static_cast<size_t>(Uniform(0, kV4Models.size() - 1)));
    if (sparse_) return kSparseModels.at(static_cast<size_t>(Uniform(0, kSparseModels.size() - 1)));
    if (eagle3_) return kEagle3Models.at(static_cast<size_t>(Uniform(0, kEagle3Models.size() - 1)));
    const int kind = Uniform(0, 39);
    return kModels.at(static_cast<size_t>(kind < 2 ? kind : 2 + kind % (kModels.size() - 2)));
  }

  /// Half of them begin with up to 270 tokens of one text: windows and compressed entries are cut
  /// and found again.
  void LengthenPrompts(std::vector<GenerationRequest>& requests) {
    std::vector<int32_t> text(270);
    for (int32_t& token : text) token = Uniform(6, 1548);
    for (GenerationRequest& request : requests) {
      if (Uniform(0, 1) == 0) continue;
      auto& prompt = request.prompt_token_ids;
      prompt.resize(std::min<size_t>(prompt.size(), 60));
      const int length = Uniform(0, 1) == 0 ? 270 : Uniform(1, 270);
      prompt.insert(prompt.begin(), text.begin(), text.begin() + length);
    }
  }

  TestEngineOptions ModelOptions(const ModelChoice& model) {
    TestEngineOptions o;
    switch (model.shape) {
      case Shape::kV3:
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
        o.checkpoint = small_ling_.directory();
        break;
      case Shape::kKimi:
        o.checkpoint = small_kimi_.directory();
        break;
      case Shape::kInt4:
        if (!int4_model_) int4_model_.emplace();
        o.checkpoint = int4_model_->directory();
        break;
      case Shape::kV4:
        o.checkpoint = model.dummy_seed ? small_v4_model_.directory() : TinyV4Directory();
        break;
      case Shape::kV4DSpark:
        o.checkpoint = model.dummy_seed ? small_dspark_model_.directory() : TinyDSparkDirectory();
        break;
    }
    if (!IsV3(model)) o.cache_form = KvCacheForm::kHeads;
    o.dummy_seed = model.dummy_seed;
    o.dtype = model.dtype;
    o.rounded_cache = model.rounded_cache;
    o.ops = ops_.get();
    const SmallEagle3& small = model.shape == Shape::kStep ? small_step_eagle3_ : small_eagle3_;
    o.drafter_checkpoint = model.dummy_seed ? small.directory() : TinyEagle3Directory();
    return o;
  }

  TestEngineOptions RandomOptions(const ModelChoice& model) {
    TestEngineOptions o = ModelOptions(model);
    using enum DrafterKind;
    constexpr std::array kDrafters = {kNone,  kChain,  kChain,  kRepeated,
                                      kNgram, kEagle3, kEagle3, kFake};
    // The last does not run on a GPU.
    o.drafter =
        kDrafters.at(static_cast<size_t>(Uniform(0, kDrafters.size() - (on_gpu() ? 2 : 1))));
    // That one knows the pages of one rank.
    if (divided_ && o.drafter == kFake) o.drafter = kChain;
    if (eagle3_) o.drafter = kEagle3;
    // EAGLE-3 drafters have latent attention.
    if (on_gpu() && model.shape == Shape::kStep && o.drafter == kEagle3) o.drafter = kChain;
    if (model.shape == Shape::kSparse || model.shape == Shape::kGlm5) {  // it has one module
      constexpr std::array kOfSparse = {kNone, kRepeated, kRepeated, kNgram};
      o.drafter = kOfSparse.at(static_cast<size_t>(Uniform(0, kOfSparse.size() - 1)));
    }
    if (IsV4(model)) {
      const int kind = Uniform(0, 5);
      const DrafterKind own = model.shape == Shape::kV4 ? kRepeated : kBlock;
      o.drafter = kind == 0 ? kNone : kind == 1 ? kNgram : own;
    }
    if (HasState(model)) {  // Ling-3.0 has one module
      const DrafterKind own = model.shape == Shape::kLing ? kRepeated : kNgram;
      constexpr std::array kShares = {kNone, kNgram};
      const auto kind = static_cast<size_t>(Uniform(0, 3));
      o.drafter = kind < kShares.size() ? kShares.at(kind) : own;
    }
    o.k = Uniform(1, o.drafter == kChain ? 3 : o.drafter == kBlock ? 5 : 6);
    if (HasState(model) && Uniform(0, 3) == 0) o.k = Uniform(7, kMostStateDrafts);
    RandomDraftLengths(o);
    o.draft_form = Uniform(0, 1) == 0 ? DraftForm::kCompacted : DraftForm::kPadded;
    o.probabilistic_drafts = Uniform(0, 1) == 0;
    o.block_size = on_gpu() ? 16 << Uniform(0, 2) : Uniform(1, 40);
    o.max_model_len = kMaxModelLen;
    o.max_num_batched_tokens = Uniform(0, 1) == 0 ? Uniform(1, 64) : 512;
    if (IsV3(model) && !on_gpu()) RandomForm(o);
    const int32_t least = LeastPages(o);
    o.num_blocks = least + (Uniform(0, 2) == 0 ? Uniform(0, 4) : least * 8);
    o.max_num_seqs = Uniform(1, 32);
    o.threads = Uniform(1, 2);
    o.prefix_caching = Uniform(0, 3) > 0;
    o.fast_prefix = Uniform(0, 3) == 0;
    // Of some rounds, so that the others have the pages that they would have without it.
    if (o.prefix_caching && Uniform(0, 1) == 0) RandomHostCache(o, least);
    return o;
  }

  /// From one that forgets nearly all to one that keeps all, in a file or in memory, mostly behind
  /// a pool that gives pages up.
  void RandomHostCache(TestEngineOptions& o, int32_t least) {
    if (Uniform(0, 2) > 0) o.num_blocks = least + Uniform(0, 4);
    o.host_pages = Uniform(0, 2) == 0 ? Uniform(1, 8) : Uniform(1, 8 * least);
    if (Uniform(0, 3) == 0) o.host_directory = host_directory_.path();
  }

  void RandomForm(TestEngineOptions& o) {
    if (Uniform(0, 1) == 0) {
      o.cache_form = KvCacheForm::kHeads;
    } else if (Uniform(0, 1) == 0) {
      o.attention_backend = AttentionBackend::kUniformPad;
    }
  }

  /// Of a request of the greatest length, so that it can run alone.
  static int32_t LeastPages(const TestEngineOptions& o) {
    CacheConfig cache = TestCacheConfig(o);
    cache.rerun_tokens = o.k;
    const int32_t lookahead = o.drafter == DrafterKind::kBlock ? 5 : o.k;
    const int32_t rows = std::max(o.max_num_batched_tokens, 1 + o.k) + 1 + lookahead;
    return static_cast<int32_t>(cache.MostPages(o.max_model_len, rows));
  }

  /// Always k; or by the number of requests, up and down as they come and go; or as times say.
  void RandomDraftLengths(TestEngineOptions& o) {
    switch (o.drafter == DrafterKind::kNone ? 0 : Uniform(0, 3)) {
      case 0:
        return;
      case 1:
        o.adaptive = true;
        return;
      default:
        for (int32_t low = 1; low <= 32;) {
          const int32_t high = low + (Uniform(0, 1) == 0 ? 0 : Uniform(0, 4));
          o.draft_ranges.push_back({low, high, Uniform(0, 1) == 0 ? 0 : Uniform(0, o.k)});
          low = high + 1;
        }
    }
  }

  static std::string Describe(const TestEngineOptions& o) {
    return fmt::format(
        "drafter {} k {} ranges {} adaptive {} form {} drawn {} block {} blocks {} seqs {} tokens "
        "{} "
        "threads {} prefix "
        "{} "
        "fast {} host pages {}{} backend {} cache {}",
        static_cast<int>(o.drafter), o.k, o.draft_ranges.size(), o.adaptive,
        static_cast<int>(o.draft_form), o.probabilistic_drafts, o.block_size, o.num_blocks,
        o.max_num_seqs, o.max_num_batched_tokens, o.threads, o.prefix_caching, o.fast_prefix,
        o.host_pages, o.host_directory.empty() ? "" : " in a file",
        AttentionBackendName(o.attention_backend), KvCacheFormName(o.cache_form));
  }

  /// Shared beginnings, priorities, salts, fewer drafts.
  void Vary(std::vector<GenerationRequest>& requests, size_t i, const TestEngineOptions& options) {
    GenerationRequest& request = requests[i];
    if (Uniform(0, 1) == 0) {
      const auto& other = requests[static_cast<size_t>(Uniform(0, static_cast<int>(i) - 1))];
      const auto& source = other.prompt_token_ids;
      const auto shared = static_cast<size_t>(Uniform(1, static_cast<int>(source.size())));
      auto& prompt = request.prompt_token_ids;
      prompt.resize(std::max(prompt.size(), shared), 7);
      std::copy_n(source.begin(), shared, prompt.begin());
    }
    if (Uniform(0, 3) == 0) request.priority = Uniform(-2, 2);
    if (Uniform(0, 9) == 0) request.cache_salt = "salt";
    if (Uniform(0, 3) == 0) {
      constexpr std::array kStops = {"e", "a", "th", " s", "in", "."};
      for (int n = Uniform(1, 2); n > 0; --n) {
        request.sampling.stop.emplace_back(
            kStops.at(static_cast<size_t>(Uniform(0, kStops.size() - 1))));
      }
    }
    if (Uniform(0, 4) == 0 && options.drafter != DrafterKind::kNone) {
      request.num_speculative_tokens = Uniform(0, options.k);
    }
  }

  /// Some requests go on as chats do: the prompt and the answer, then a few tokens more.
  void AddSecondTurns(Engine& engine, std::vector<GenerationRequest>& requests,
                      std::vector<Generated>& together, std::vector<bool>& aborted) {
    const size_t first_turns = requests.size();
    for (size_t i = 0; i < first_turns; ++i) {
      if (aborted[i] || requests[i].grammar.grammar || Uniform(0, 2) > 0) continue;
      GenerationRequest request = requests[i];
      std::vector<int32_t>& prompt = request.prompt_token_ids;
      prompt.insert(prompt.end(), together[i].tokens.begin(), together[i].tokens.end());
      for (int n = Uniform(1, 9); n > 0; --n) prompt.push_back(Uniform(6, 1548));
      const int32_t room = kMaxModelLen - static_cast<int32_t>(prompt.size());
      request.sampling.min_tokens = std::min(request.sampling.min_tokens, room);
      requests.push_back(std::move(request));
    }
    together.resize(requests.size());
    aborted.resize(requests.size(), false);
    for (size_t i = first_turns; i < requests.size(); ++i) {
      Submit(engine, requests[i], &together[i]);
      for (int steps = Uniform(0, 3); steps > 0; --steps) engine.Step();
    }
    RunUntilIdle(engine);
  }

  /// Whether a prompt goes on as another request's prompt and answer do, by chance, and request i
  /// is one of the two. Over latent entries a prefix hit then has other bits, if fast_prefix lets
  /// answers be found (docs/speculation.md).
  static bool SharesAnAnswer(const std::vector<GenerationRequest>& requests,
                             const std::vector<Generated>& together, size_t i) {
    const auto goes_on = [&](size_t prompt, size_t answered) {
      const std::vector<int32_t>& tokens = requests[prompt].prompt_token_ids;
      const std::vector<int32_t>& start = requests[answered].prompt_token_ids;
      const auto& answer = together[answered].tokens;
      return !answer.empty() && tokens.size() > start.size() &&
             std::equal(start.begin(), start.end(), tokens.begin()) &&
             tokens[start.size()] == answer.front();
    };
    for (size_t j = 0; j < requests.size(); ++j) {
      if (j != i && (goes_on(i, j) || goes_on(j, i))) return true;
    }
    return false;
  }

  void Check(GenerationRequest request, const ModelChoice& model, KvCacheForm form,
             const Generated& got, bool aborted, const std::string& what) {
    std::unique_ptr<Engine>& engine = alone_[{model.name, form}];
    if (!engine) {
      TestEngineOptions options = ModelOptions(model);
      options.drafter = DrafterKind::kNone;
      options.max_num_batched_tokens = 1024;
      options.max_model_len = kMaxModelLen;
      options.prefix_caching = false;
      options.cache_form = form;
      engine = MakeTestEngine(options, &BundledTokenizer());
    }
    request.num_speculative_tokens.reset();
    Generated expected;
    Submit(*engine, std::move(request), &expected);
    RunUntilIdle(*engine);
    std::string difference;
    if (aborted) {
      // What came before the end must be the beginning.
      const bool begins = got.tokens.size() <= expected.tokens.size() &&
                          std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin());
      if (!begins) difference = "tokens before the abort";
    } else {
      difference = Difference(got, expected);
    }
    if (difference.empty()) return;
    throw Different(fmt::format("DIFFERENT: {}: {}", what, difference));
  }

  bool late_;
  bool v4_;
  bool eagle3_;
  bool sparse_;
  bool int4_;
  bool fp8_cache_;
  bool step_;
  bool hybrid_;
  int32_t ranks_;
  bool divided_;
  std::unique_ptr<Ops> ops_;                        // of a GPU, or null
  std::vector<std::unique_ptr<Ops>> own_rank_ops_;  // of several ranks on GPUs
  std::vector<const Ops*> rank_ops_;
  Disturbances disturbances_;
  const int32_t heads_ = std::max(2, ranks_);  // of small models: all ranks can share them
  const TemporaryDirectory host_directory_;
  SmallModel small_model_{2, kSmallVocab, heads_};
  SmallStepModel small_step_model_{
      kSmallVocab, 20, {.heads = heads_, .kv_heads = std::max(1, ranks_)}};
  SmallStepModel gpu_step_model_{kSmallVocab, 20, kGpuStepSizes};
  SmallSparseModel small_sparse_model_{kSmallVocab, {.heads = heads_}};
  SmallSparseModel small_glm5_model_{kSmallVocab, {.golden = "tiny-glm-dsa", .heads = heads_}};
  SmallSparseModel gpu_v32_model_{kSmallVocab, kGpuV32Sizes};
  SmallSparseModel gpu_glm5_model_{kSmallVocab, kGpuGlm5Sizes};
  SmallHybridModel small_ling_{SmallLingConfig(kSmallVocab)};
  SmallHybridModel small_kimi_{SmallKimiConfig(kSmallVocab)};
  SmallV4Model small_v4_model_{kSmallVocab, /*dspark=*/false, heads_};
  std::optional<Int4TinyModel> int4_model_;
  SmallV4Model small_dspark_model_{kSmallVocab, /*dspark=*/true, heads_};
  SmallEagle3 small_eagle3_{small_model_.directory()};
  SmallEagle3 small_step_eagle3_{small_step_model_.directory(), /*version31=*/true, heads_};
  std::mt19937 random_;
  std::map<std::pair<std::string, KvCacheForm>, std::unique_ptr<Engine>> alone_;
  int64_t preemptions_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t returned_tokens_ = 0;
  int64_t accepted_ = 0;
  int64_t with_grammar_ = 0;
};

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  Fuzz fuzz(arguments);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
  };
  int64_t requests = 0;
  int64_t next_line = 10;
  const uint32_t first_round = arguments.round.value_or(arguments.seed * 1000000);
  uint32_t round = first_round;
  while (requests < arguments.requests && elapsed() < arguments.seconds) {
    requests += fuzz.Round(round++);
    if (elapsed() >= next_line) {
      fmt::print("{} s: {} requests equal\n", elapsed(), requests);
      std::fflush(stdout);
      next_line = elapsed() + 10;
    }
  }
  fmt::print(
      "{} requests in {} rounds equal (seed {}, {} s; {} with grammars, {} preemptions, {} cached "
      "tokens, {} that came back, {} drafts accepted)\n",
      requests, round - first_round, arguments.seed, elapsed(), fuzz.with_grammar(),
      fuzz.preemptions(), fuzz.cached_tokens(), fuzz.returned_tokens(), fuzz.accepted());
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  try {
    return outrider::Main(argc, argv);
  } catch (const outrider::Different& difference) {
    fmt::print("{}\n", difference.what());
    return 1;
  } catch (const outrider::Error& error) {
    fmt::print(stderr, "outrider_exactness_fuzz: error: {}\n", error.what());
    return 2;
  }
}
