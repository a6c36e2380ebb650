// A round of outrider_exactness_fuzz: random requests through random engines, together and each
// alone.
#pragma once

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "outrider/engine/engine_device.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#endif
#include "tests/engine/fuzz_options.h"
#include "tests/engine/fuzz_references.h"
#include "tests/engine/fuzz_requests.h"
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

/// What was compared, and what it took.
struct Counts {
  int64_t requests = 0;  // once for each serving
  int64_t with_grammar = 0;
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;
  int64_t returned_tokens = 0;
  int64_t accepted = 0;
  int64_t steps = 0;  // of engines that serve several
  double making_seconds = 0;
  double serving_seconds = 0;
};

class Rounds {
 public:
  explicit Rounds(const Arguments& arguments)
      : arguments_(arguments),
        random_{std::mt19937(arguments.seed)},
        models_(arguments_, random_),
        options_(arguments_, models_, random_),
        requests_(random_),
        ops_(MakeDeviceOps(arguments.device)),
        own_rank_ops_(
            arguments_.ranks == 1
                ? MakeRankOps(DeviceKind::kCpu, {})
                : MakeRankOps(arguments.device, DevicesOf(arguments_.ranks), arguments_.divided)),
        rank_ops_(PointersTo(own_rank_ops_)),
        disturbances_(DisturbancesOf(DisturbedOps())),
        references_(models_) {}

  const Counts& counts() const { return counts_; }
  const References& references() const { return references_; }

  double Elapsed() const { return Since(start_); }
  /// Whether the time or the requests that were asked for are used up.
  bool IsDone() const {
    return counts_.requests >= arguments_.requests ||
           Elapsed() >= static_cast<double>(arguments_.seconds);
  }

  /// Some requests of a model, in several engines. Throws Different.
  void Run(uint32_t round_seed) {
    random_.numbers.seed(round_seed);
    const ModelChoice& model = models_.Draw();
    const ModelConfig config = ReadModelConfig(models_.Options(model, ops_.get()).checkpoint);
    const bool many = model.dummy_seed || models_.on_gpu();
    const int count = !many                    ? Uniform(2, 12)
                      : arguments_.engines > 1 ? Uniform(16, 64)
                                               : Uniform(4, 48);
    const RequestSet set =
        requests_.Draw(round_seed, count, model, static_cast<int32_t>(config.vocab_size));
    references_.BeginRequests();
    for (int32_t e = 0; e < arguments_.engines && (e == 0 || !IsDone()); ++e) {
      RunEngine(round_seed, e, model, set);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double Since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// A request of a serving.
  struct Served {
    size_t number;  // of References
    GenerationRequest request;
    Generated got;
    RequestId id = {};
    bool aborted = false;
  };

  /// One random engine that serves the requests as often as the arguments say.
  void RunEngine(uint32_t round_seed, int32_t engine_number, const ModelChoice& model,
                 const RequestSet& set) {
    std::optional<TestEngineOptions> drawn = options_.Draw(model, ops_.get());
    if (!drawn) return;
    TestEngineOptions& options = *drawn;
    options.rank_ops = rank_ops_;
    // A GPU is served over a thread of its own.
    const uint32_t seed = round_seed + static_cast<uint32_t>(engine_number);
    options.queued = arguments_.late ? seed % 2 == 0 : models_.on_gpu();
    if (arguments_.late && !options.queued) options.late_seed = seed;
    std::vector<std::unique_ptr<Ops>> keeping_ops;
    if (arguments_.late && !models_.on_gpu()) {
      for (int32_t rank = 0; rank < arguments_.ranks; ++rank) {
        keeping_ops.push_back(
            std::make_unique<TokenKeepingOps>(cpu::GetCpuOps(SelectIsa()).kernels()));
      }
      options.ops = keeping_ops.front().get();
      options.rank_ops = PointersTo(keeping_ops);
    }
    if (Uniform(0, 1) == 0) {
      options.make_executor = [this, seed](std::vector<RankParts> parts) {
        return std::make_unique<DisturbingExecutor>(std::move(parts), seed, disturbances_);
      };
    }
    const auto begin = Clock::now();
    const auto engine = MakeTestEngine(options, &BundledTokenizer());
    counts_.making_seconds += Since(begin);
    // Other bits after answers that are found are those of one serving: SharesAnAnswer.
    const bool crosses_roles =
        options.prefix_caching && options.fast_prefix && options.cache_form == KvCacheForm::kLatent;
    const int32_t servings = crosses_roles ? 1 : arguments_.servings;
    for (int32_t s = 0; s < servings && (s == 0 || !IsDone()); ++s) {
      // Of half of the later ones nothing is found that earlier ones computed.
      const std::string salt = s > 0 && Uniform(0, 1) == 0 ? fmt::format("serving {} ", s) : "";
      const auto serving_begin = Clock::now();
      std::vector<Served> served = Serve(*engine, set, options, salt);
      FinishWork();
      counts_.serving_seconds += Since(serving_begin);
      std::string differences;  // of all requests: which ones says more than the first
      for (size_t i = 0; i < served.size(); ++i) {
        if (crosses_roles && SharesAnAnswer(served, i)) continue;
        differences += DifferenceOf(served[i], model, options);
      }
      if (!differences.empty()) {
        throw Different(
            fmt::format("DIFFERENT: round {}, engine {}, serving {}, {}, {}, {} requests{}",
                        round_seed, engine_number, s, model.name, RandomOptions::Describe(options),
                        served.size(), differences));
      }
      counts_.requests += static_cast<int64_t>(served.size());
      for (const Served& each : served)
        counts_.with_grammar += each.request.grammar.grammar ? 1 : 0;
      if (engine->Counters().kv_cache_usage != 0) {
        throw Different(fmt::format("DIFFERENT: round {}: pages of ended requests", round_seed));
      }
    }
    const EngineCounters counters = engine->Counters();
    counts_.steps += counters.num_steps;
    counts_.preemptions += counters.num_preemptions;
    counts_.cached_tokens += counters.prefix_cache_hits;
    counts_.returned_tokens += counters.host_cache_hits;
    counts_.accepted += counters.speculation.num_accepted_tokens;
  }

  /// Requests come in any order, and some are aborted; then some go on as chats do: the prompt and
  /// the answer, then a few tokens more.
  std::vector<Served> Serve(Engine& engine, const RequestSet& set, const TestEngineOptions& options,
                            const std::string& salt) {
    const Arrivals arrivals = requests_.DrawArrivals(set, options);
    std::vector<Served> served;
    served.reserve(2 * arrivals.order.size());  // engines know where answers go
    const auto submit = [&](size_t number, GenerationRequest request) {
      served.push_back({number, requests_.Vary(std::move(request), options, salt), {}, {}, false});
      Served& last = served.back();
      last.id = Submit(engine, last.request, &last.got);
      for (int steps = Uniform(0, arrivals.most_steps); steps > 0; --steps) engine.Step();
    };
    for (const size_t number : arrivals.order) {
      submit(number, set.requests[number]);
      if (Uniform(0, 15) > 0) continue;
      Served& victim = served[static_cast<size_t>(Uniform(0, static_cast<int>(served.size()) - 1))];
      if (!victim.got.finish_reason) victim.aborted = true;
      engine.Abort(victim.id);
    }
    RunUntilIdle(engine);
    for (size_t i = 0; i < arrivals.order.size(); ++i) {
      const size_t number = arrivals.order[i];
      if (!set.second_turns[number] || served[i].aborted) continue;
      GenerationRequest request = set.requests[number];
      std::vector<int32_t>& prompt = request.prompt_token_ids;
      prompt.insert(prompt.end(), served[i].got.tokens.begin(), served[i].got.tokens.end());
      prompt.insert(prompt.end(), set.second_turns[number]->begin(),
                    set.second_turns[number]->end());
      const int32_t room = kMaxModelLen - static_cast<int32_t>(prompt.size());
      request.sampling.min_tokens = std::min(request.sampling.min_tokens, room);
      submit(set.requests.size() + number, std::move(request));
    }
    RunUntilIdle(engine);
    return served;
  }

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

  int Uniform(int low, int high) { return random_.Uniform(low, high); }

  /// Whether a prompt goes on as another request's prompt and answer do, and request i is one of
  /// the two. Over latent entries a prefix hit then has other bits, if fast_prefix lets answers be
  /// found (docs/speculation.md).
  static bool SharesAnAnswer(const std::vector<Served>& served, size_t i) {
    const auto goes_on = [&](size_t prompt, size_t answered) {
      const std::vector<int32_t>& tokens = served[prompt].request.prompt_token_ids;
      const std::vector<int32_t>& start = served[answered].request.prompt_token_ids;
      const auto& answer = served[answered].got.tokens;
      return !answer.empty() && tokens.size() > start.size() &&
             std::equal(start.begin(), start.end(), tokens.begin()) &&
             tokens[start.size()] == answer.front();
    };
    for (size_t j = 0; j < served.size(); ++j) {
      if (j != i && (goes_on(i, j) || goes_on(j, i))) return true;
    }
    return false;
  }

  /// A line of how a request differs from itself alone; empty where it does not.
  std::string DifferenceOf(const Served& served, const ModelChoice& model,
                           const TestEngineOptions& options) {
    const Generated& expected =
        references_.Of(served.number, served.request, model, options.cache_form, ops_.get());
    const Generated& got = served.got;
    std::string difference;
    if (served.aborted) {
      // What came before the end must be the beginning.
      const bool begins = got.tokens.size() <= expected.tokens.size() &&
                          std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin());
      if (!begins) difference = "tokens before the abort";
    } else {
      difference = Difference(got, expected);
    }
    if (difference.empty()) return "";
    const Generated again =
        references_.Again(served.request, model, options.cache_form, ops_.get());
    return fmt::format("\n  request {}, {} tokens: {}; alone again, it gives {}", served.number,
                       served.request.prompt_token_ids.size(), difference,
                       Difference(again, expected).empty() ? "the same" : "something else");
  }

  const Arguments arguments_;
  const Clock::time_point start_ = Clock::now();
  Random random_;
  Models models_;
  RandomOptions options_;
  DrawRequests requests_;
  std::unique_ptr<Ops> ops_;                        // of a GPU, or null
  std::vector<std::unique_ptr<Ops>> own_rank_ops_;  // of several ranks on GPUs
  std::vector<const Ops*> rank_ops_;
  Disturbances disturbances_;
  References references_;  // its engines run on these
  Counts counts_;
};

}  // namespace outrider::fuzz
