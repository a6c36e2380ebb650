// A round of outrider_exactness_fuzz: random requests through a random engine, together and each
// alone.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>

#include "outrider/engine/engine_device.h"
#include "outrider/engine/plan/rank_plan.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#endif
#include "tests/engine/fuzz_options.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/execute/disturbing_executor.h"
#include "tests/ops/token_keeping_ops.h"

namespace outrider::fuzz {

/// What a round found.
class Different : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Of the processor, or of GPUs' operations, by rank.
inline Disturbances DisturbancesOf(const std::vector<const Ops*>& ranks) {
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

/// The GPUs of `ranks` ranks, taken in turn from those that there are; none without GPUs.
inline std::vector<int> DevicesOf([[maybe_unused]] int32_t ranks) {
  std::vector<int> devices;
#ifdef OUTRIDER_ENGINE_CUDA
  const int count = cuda::DescribeGpu().count;
  for (int32_t rank = 0; rank < ranks; ++rank) devices.push_back(rank % std::max(count, 1));
#endif
  return devices;
}

class Rounds {
 public:
  explicit Rounds(const Arguments& arguments)
      : arguments_(arguments),
        random_{std::mt19937(arguments.seed)},
        models_(arguments_, random_),
        options_(arguments_, models_, random_),
        ops_(MakeDeviceOps(arguments.device)),
        own_rank_ops_(
            arguments_.ranks == 1
                ? MakeRankOps(DeviceKind::kCpu, {})
                : MakeRankOps(arguments.device, DevicesOf(arguments_.ranks), arguments_.divided)),
        rank_ops_(PointersTo(own_rank_ops_)),
        disturbances_(DisturbancesOf(DisturbedOps())) {}

  int64_t preemptions() const { return preemptions_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t returned_tokens() const { return returned_tokens_; }
  int64_t accepted() const { return accepted_; }
  int64_t with_grammar() const { return with_grammar_; }

  /// One engine, some requests. Returns their number; throws Different.
  int Run(uint32_t round_seed) {
    random_.numbers.seed(round_seed);
    const ModelChoice& model = models_.Draw();
    TestEngineOptions options = options_.Draw(model, ops_.get());
    options.ranks = arguments_.ranks;
    options.rank_ops = rank_ops_;
    options.divides_requests = arguments_.divided;
    if (!IsShared(options)) return 0;
    // A GPU is served over a thread of its own.
    options.queued = arguments_.late ? round_seed % 2 == 0 : models_.on_gpu();
    if (arguments_.late && !options.queued) options.late_seed = round_seed;
    std::vector<std::unique_ptr<Ops>> keeping_ops;
    if (arguments_.late && !models_.on_gpu() && !IsV4(model)) {
      for (int32_t rank = 0; rank < arguments_.ranks; ++rank) {
        keeping_ops.push_back(
            std::make_unique<TokenKeepingOps>(cpu::GetCpuOps(SelectIsa()).kernels()));
      }
      options.ops = keeping_ops.front().get();
      options.rank_ops = PointersTo(keeping_ops);
    }
    if (CanBeDisturbed(options) && Uniform(0, 1) == 0) {
      options.make_executor = [this, round_seed](std::vector<RankParts> parts) {
        return std::make_unique<DisturbingExecutor>(std::move(parts), round_seed, disturbances_);
      };
    }
    std::vector<GenerationRequest> requests = RandomRequests(
        round_seed, model.dummy_seed || models_.on_gpu() ? Uniform(4, 48) : Uniform(2, 12));
    if (IsV4(model) || HasState(model)) LengthenPrompts(requests);
    for (size_t i = 1; i < requests.size(); ++i) Vary(requests, i, options);
    const int64_t vocab = ReadModelConfig(options.checkpoint).vocab_size;
    AddGrammars(round_seed, static_cast<int32_t>(vocab), requests);

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
            fmt::format("round {}, {}, {}, request {}", round_seed, model.name,
                        RandomOptions::Describe(options), i));
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
    if (!models_.on_gpu() || !rank_ops_.empty()) return rank_ops_;
    return {ops_.get()};
  }

  static bool CanBeDisturbed(const TestEngineOptions& options) {
    return std::ranges::all_of(TestCacheConfig(options).groups, [](const CacheGroupSpec& group) {
      return group.kind == CacheGroupKind::kFullHistory;
    });
  }

  /// Whether the ranks can share the models.
  static bool IsShared(const TestEngineOptions& options) {
    try {
      const bool divided = options.divides_requests;
      const ModelConfig config = ReadModelConfig(options.checkpoint);
      if (divided) CheckDividesRequests(config, options.ranks);
      CheckRanks(config, options.ranks, "--ranks", divided);
      if (options.drafter == DrafterKind::kEagle3) {
        CheckRanks(ReadModelConfig(options.drafter_checkpoint), options.ranks, "--ranks", divided);
      }
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  int Uniform(int low, int high) { return random_.Uniform(low, high); }

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
      TestEngineOptions options = models_.Options(model, ops_.get());
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

  const Arguments arguments_;
  Random random_;
  Models models_;
  RandomOptions options_;
  std::unique_ptr<Ops> ops_;                        // of a GPU, or null
  std::vector<std::unique_ptr<Ops>> own_rank_ops_;  // of several ranks on GPUs
  std::vector<const Ops*> rank_ops_;
  Disturbances disturbances_;
  std::map<std::pair<std::string, KvCacheForm>, std::unique_ptr<Engine>> alone_;
  int64_t preemptions_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t returned_tokens_ = 0;
  int64_t accepted_ = 0;
  int64_t with_grammar_ = 0;
};

}  // namespace outrider::fuzz
