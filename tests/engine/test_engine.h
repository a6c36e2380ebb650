// Engines over the bundled model with any configuration, for tests. Longer than most files: it
// makes every part of an engine.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/function_ref.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/draft/block_drafter.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/ngram_drafter.h"
#include "outrider/draft/repeated_drafter.h"
#include "outrider/engine/engine.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/measure_step_times.h"
#include "outrider/execute/queued_executor.h"
#include "outrider/execute/step_runner.h"
#include "outrider/kv/file_page_store.h"
#include "outrider/kv/memory_page_store.h"
#include "outrider/networks/dspark_draft_model.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/networks/mtp_draft_model.h"
#include "outrider/parallel/thread_communicator.h"
#include "tests/draft/fake_draft_model.h"
#include "tests/execute/late_executor.h"
#include "tests/networks/loaded_model.h"

namespace outrider {

/// kFake: a FakeDraftModel in place of MTP modules, its first module repeated. kBlock:
/// DeepSeek-V4's DSpark drafter. kEagle3: a drafter with a checkpoint of its own.
enum class DrafterKind { kNone, kChain, kRepeated, kNgram, kFake, kBlock, kEagle3 };

struct TestEngineOptions {
  const Ops* ops = nullptr;               // null: the best of this machine's processor
  std::vector<const Ops*> rank_ops = {};  // of several ranks, of each; empty: `ops` of all
  std::filesystem::path checkpoint = TinyModelDirectory();
  std::optional<uint64_t> dummy_seed = std::nullopt;  // random weights in the checkpoint's shapes
  /// kEagle3; with random weights if there are no others.
  std::filesystem::path drafter_checkpoint = {};
  DType dtype = DType::kBF16;
  bool rounded_cache = false;  // as --kv-cache-dtype fp8
  Fp8Form fp8_form = Fp8Form::kPublished;
  WeightQuantization quantization = WeightQuantization::kNone;
  DrafterKind drafter = DrafterKind::kChain;
  int32_t k = 3;
  std::vector<DraftRange> draft_ranges = {};
  bool adaptive = false;                               // up to k drafts, as it pays
  std::optional<StepTimes> step_times = std::nullopt;  // adaptive; unset: StepTimesOfACrowd
  bool measures_steps = false;  // adaptive: before it serves; step_times is used all the same
  DraftForm draft_form = DraftForm::kCompacted;
  std::optional<int32_t> draft_vocab_size = std::nullopt;
  int32_t block_size = 16;
  int32_t num_blocks = 512;
  int32_t max_num_seqs = 32;
  int32_t max_num_batched_tokens = 256;
  int32_t max_model_len = 1024;
  int32_t threads = 1;  // of each rank
  int32_t ranks = 1;
  bool divides_requests = false;  // as --data-parallel-attention
  double rank_seconds = 60;       // that a rank waits for another
  bool prefix_caching = true;
  bool fast_prefix = false;
  int32_t host_pages = 0;                     // that a HostCache holds; 0: there is none
  std::filesystem::path host_directory = {};  // in a file there; empty: in memory
  /// Set: makes the store of a HostCache, of pages of so many bytes.
  std::function<std::unique_ptr<PageStore>(int64_t page_bytes)> make_page_store = nullptr;
  AttentionBackend attention_backend = AttentionBackend::kRagged;
  KvCacheForm cache_form = KvCacheForm::kLatent;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  AcceptanceOptions acceptance = {};
  std::optional<int32_t> max_num_queued_reqs = std::nullopt;
  bool probabilistic_drafts = false;
  bool queued = false;                               // steps run on a thread (QueuedExecutor)
  std::optional<uint32_t> late_seed = std::nullopt;  // set: steps end late (LateExecutor)
  const LateExecutor** late_executor = nullptr;      // with late_seed: is set to the executor
  /// Set: makes the executor, of a StepRunner's ranks.
  std::function<std::unique_ptr<Executor>(std::vector<RankParts>)> make_executor = nullptr;
  bool tells_experts = false;
  std::vector<std::vector<float>>* seen_by_fake = nullptr;  // see FakeDraftModel::seen
  /// Set: makes the communicators of ranks on GPUs in place of MakeRankCommunicators.
  std::function<std::vector<std::unique_ptr<Communicator>>(const std::vector<const Ops*>&, double)>
      make_communicators = nullptr;
};

/// With one request drafts are free, with 16 each costs as much as a token: as requests come and go
/// every number of drafts is the best for a while.
inline StepTimes StepTimesOfACrowd(int32_t k) {
  StepTimes times;
  for (const int32_t n : {1, 4, 16}) {
    times.batches.push_back({n, {}});
    for (int32_t d = 0; d <= k; ++d)
      times.batches.back().seconds.push_back(std::max(4, n * (1 + d)));
  }
  return times;
}

/// The times that the adaptive number is chosen by. Waiting for tokens costs a little where drafts
/// are looked up.
inline StepTimes StepTimesOf(const TestEngineOptions& options) {
  if (options.step_times) return *options.step_times;
  StepTimes times = StepTimesOfACrowd(options.k);
  if (options.drafter == DrafterKind::kNgram) {
    for (StepTimes::Batch& batch : times.batches) batch.looking_seconds = 1.05 * batch.seconds[0];
  }
  return times;
}

/// How many ranks share the heads of attention.
inline int32_t HeadRanks(const TestEngineOptions& options) {
  return options.divides_requests ? 1 : options.ranks;
}

inline WeightForm WeightFormOf(const TestEngineOptions& options) {
  WeightForm form = {options.dtype, options.quantization};
  form.whole_attention = options.divides_requests;
  return form;
}

/// What target and drafter of these options keep in the cache.
inline NetworkCache TestCacheNeeds(const TestEngineOptions& options, const ModelConfig& whole) {
  const ModelConfig config = OfOneRank(whole, HeadRanks(options));
  if (options.drafter == DrafterKind::kFake) {
    return FakeDraftModel::CacheNeeds(config, options.cache_form);
  }
  if (options.drafter == DrafterKind::kEagle3) {
    return Eagle3DraftModel::CacheNeeds(
        config, OfOneRank(ReadModelConfig(options.drafter_checkpoint), HeadRanks(options)),
        options.cache_form);
  }
  int64_t modules = 0;
  if (options.drafter == DrafterKind::kChain || options.drafter == DrafterKind::kRepeated) {
    modules = config.num_nextn_predict_layers;
  } else if (options.drafter == DrafterKind::kBlock) {
    modules = config.dspark->stages;
  }
  return NetworkCacheOf(config, static_cast<int32_t>(modules), options.cache_form);
}

inline CacheNumbers CacheNumbersOf(const TestEngineOptions& options) {
  return {options.rounded_cache ? DType::kF8E4M3 : options.dtype, options.dtype, options.fp8_form};
}

/// The cache of an engine with these options.
inline CacheConfig TestCacheConfig(const TestEngineOptions& options) {
  return MakeCacheConfig(TestCacheNeeds(options, ReadModelConfig(options.checkpoint)),
                         CacheNumbersOf(options), options.block_size, options.num_blocks);
}

/// The draft model of these options, which need one.
inline std::unique_ptr<DraftModel> MakeTestDraftModel(const TestEngineOptions& options,
                                                      Network& network) {
  if (options.drafter == DrafterKind::kFake) {
    auto fake = std::make_unique<FakeDraftModel>(network);
    fake->seen = options.seen_by_fake;
    return fake;
  }
  if (options.drafter != DrafterKind::kEagle3) {
    return std::make_unique<MtpDraftModel>(network, options.draft_vocab_size);
  }
  const std::filesystem::path& directory = options.drafter_checkpoint;
  const ModelConfig config = ReadModelConfig(directory);
  const auto source = std::filesystem::exists(directory / "model.safetensors")
                          ? OpenCheckpoint(directory, config)
                          : MakeDummyWeights(config, 9);
  return std::make_unique<Eagle3DraftModel>(
      config,
      Eagle3Taps(*config.eagle3, network.config().num_hidden_layers(), {}, directory.string()),
      LoadEagle3(config, *source, WeightFormOf(options), network.device(), nullptr), network);
}

/// One rank of an engine; ranks: with the others, or null.
inline RankParts MakeTestRank(const TestEngineOptions& options,
                              std::unique_ptr<Communicator> ranks) {
  RankParts inside;
  inside.pool = std::make_unique<ThreadPool>(options.threads);
  inside.ranks = std::move(ranks);
  const ModelConfig config = ReadModelConfig(options.checkpoint);
  const auto source = options.dummy_seed ? MakeDummyWeights(config, *options.dummy_seed)
                                         : OpenCheckpoint(options.checkpoint, config);
  const bool uses_mtp = options.drafter == DrafterKind::kChain ||
                        options.drafter == DrafterKind::kRepeated ||
                        options.drafter == DrafterKind::kBlock;
  const int mtp = uses_mtp ? CountMtpLayers(*source, config) : 0;
  const int32_t k = options.drafter == DrafterKind::kNone ? 0 : options.k;
  const Ops* ops = options.ops != nullptr ? options.ops : &cpu::GetCpuOps(SelectIsa());
  const RankPlace place = inside.ranks == nullptr ? RankPlace() : inside.ranks->place();
  if (inside.ranks && !options.rank_ops.empty()) {
    ops = options.rank_ops[static_cast<size_t>(place.rank)];
    ops->UseOnThisThread();
  }
  inside.model = LoadNetwork(
      config, mtp, *source, WeightFormOf(options),
      {{*ops, inside.pool.get(), inside.ranks.get(), inside.between_launches.get()},
       options.dtype,
       AttentionPlan(options.attention_backend, 1 + k, RowPathsOf(config, options.cache_form),
                     options.divides_requests ? place : RankPlace())});
  const NetworkCache network = TestCacheNeeds(options, config);
  const CacheConfig cache = TestCacheConfig(options);
  inside.cache = std::make_unique<KvCache>(inside.model->device(), cache, network.layers,
                                           CacheNumbersOf(options));
  const auto modules = static_cast<size_t>(network.layers.back().group);
  const bool varies = options.adaptive || !options.draft_ranges.empty();
  const bool windows = cache.groups[modules].kind == CacheGroupKind::kSlidingWindow;
  const KeptRows kept_rows = varies && !windows ? KeptRows::kAll : KeptRows::kLast;
  const ModuleDrafterOptions drafter = {.k = options.k,
                                        .num_slots = options.max_num_seqs,
                                        .form = options.draft_form,
                                        .kept_rows = kept_rows};
  if (options.drafter == DrafterKind::kBlock) {
    auto stages =
        std::make_unique<DSparkDraftModel>(dynamic_cast<DeepSeekV4Network&>(*inside.model));
    inside.drafter = std::make_unique<BlockDrafter>(
        std::move(stages), *inside.cache,
        BlockDrafterOptions{.k = options.k, .form = options.draft_form});
  } else if (options.drafter == DrafterKind::kNgram) {
    inside.drafter = std::make_unique<NgramDrafter>(options.k, 2, 5);
  } else if (options.drafter != DrafterKind::kNone) {
    std::unique_ptr<DraftModel> draft_model = MakeTestDraftModel(options, *inside.model);
    if (options.drafter == DrafterKind::kChain) {
      inside.drafter =
          std::make_unique<ChainDrafter>(std::move(draft_model), *inside.cache, drafter);
    } else {
      inside.drafter =
          std::make_unique<RepeatedDrafter>(std::move(draft_model), *inside.cache, drafter);
    }
  }
  inside.logprobs_mode = options.logprobs_mode;
  inside.acceptance = options.acceptance;
  inside.probabilistic_drafts = options.probabilistic_drafts;
  inside.num_slots = options.max_num_seqs;
  return inside;
}

inline bool HasGpuRanks(const TestEngineOptions& options) {
  return !options.rank_ops.empty() && options.rank_ops.front()->name() == "cuda";
}

inline std::vector<std::unique_ptr<Communicator>> MakeTestCommunicators(
    const TestEngineOptions& options) {
  if (options.ranks == 1 || !HasGpuRanks(options)) {
    return MakeThreadCommunicators(options.ranks, options.rank_seconds);
  }
  if (options.make_communicators) {
    return options.make_communicators(options.rank_ops, options.rank_seconds);
  }
  return MakeRankCommunicators(DeviceKind::kCuda, options.rank_ops, options.rank_seconds);
}

inline EngineParts MakeTestParts(const TestEngineOptions& options,
                                 const Tokenizer* tokenizer = nullptr) {
  std::vector<RankParts> ranks;
  for (auto& communicator : MakeTestCommunicators(options)) {
    ranks.push_back(MakeTestRank(options, options.ranks == 1 ? nullptr : std::move(communicator)));
  }
  const RankParts& inside = ranks.front();
  CacheConfig cache = TestCacheConfig(options);
  EngineParts parts;
  parts.tokenizer = tokenizer;
  const DrafterReach reach = inside.drafter ? inside.drafter->reach() : DrafterReach();
  cache.rerun_tokens = reach.rerun_tokens;
  parts.scheduler = {
      .cache = std::move(cache),
      .cache_ranks = options.divides_requests ? options.ranks : 1,
      .max_num_seqs = options.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .max_model_len = options.max_model_len,
      .max_drafts = inside.drafter ? inside.drafter->max_drafts() : 0,
      .lookahead_tokens = reach.lookahead,
      .tokens_ahead = reach.tokens_ahead,
      .publish_answers = options.fast_prefix || options.cache_form == KvCacheForm::kHeads};
  if (inside.drafter) parts.draft_schedule = DraftSchedule(options.k, options.draft_ranges);
  std::vector<Drafter*> drafters;  // the executor's
  for (const RankParts& rank : ranks) drafters.push_back(rank.drafter.get());
  parts.executor = options.make_executor
                       ? options.make_executor(std::move(ranks))
                       : std::make_unique<StepRunner>(std::move(ranks), options.rank_seconds);
  if (options.queued) {
    parts.executor = std::make_unique<QueuedExecutor>(std::move(parts.executor));
  } else if (options.late_seed) {
    auto late = std::make_unique<LateExecutor>(std::move(parts.executor), *options.late_seed);
    if (options.late_executor != nullptr) *options.late_executor = late.get();
    parts.executor = std::move(late);
  }
  if (HasGpuRanks(options)) parts.gpu.emplace();
  if (options.tells_experts) parts.routed = RoutedShapeOf(ReadModelConfig(options.checkpoint));
  const int64_t page_bytes = parts.executor->page_bytes();
  if (options.make_page_store) {
    parts.page_store = options.make_page_store(page_bytes);
  } else if (options.host_pages > 0 && options.host_directory.empty()) {
    parts.page_store = std::make_unique<MemoryPageStore>(options.host_pages, page_bytes);
  } else if (options.host_pages > 0) {
    parts.page_store = std::make_unique<FilePageStore>(options.host_directory.string(),
                                                       options.host_pages, page_bytes);
  }
  parts.prefix_caching = options.prefix_caching;
  parts.max_num_queued_reqs = options.max_num_queued_reqs;
  if (options.measures_steps) {
    MeasureStepTimes(parts, options.drafter == DrafterKind::kNgram, nullptr);
  }
  if (options.adaptive) {
    const StepTimes times = StepTimesOf(options);
    parts.draft_length_policy.emplace(options.k, times);
    for (Drafter* drafter : drafters) drafter->SetStepTimes(times);
  }
  return parts;
}

inline std::unique_ptr<Engine> MakeTestEngine(const TestEngineOptions& options,
                                              const Tokenizer* tokenizer = nullptr) {
  return std::make_unique<Engine>(std::make_unique<EngineCore>(MakeTestParts(options, tokenizer)));
}

/// Everything that a request gave.
struct Generated {
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::vector<std::vector<int32_t>> drafts;  // per step with a token; for trace_steps
  std::string text;
  std::optional<FinishReason> finish_reason;
  RequestStats stats;
  std::shared_ptr<const RoutedExperts> experts;

  void Take(OutputDelta&& delta) {
    tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
    logprobs.insert(logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    prompt_logprobs.insert(prompt_logprobs.end(), delta.prompt_logprobs.begin(),
                           delta.prompt_logprobs.end());
    for (StepTrace& step : delta.steps) drafts.push_back(std::move(step.drafts));
    text += delta.text;
    if (delta.finish_reason) {
      finish_reason = delta.finish_reason;
      stats = delta.stats;
      experts = delta.experts;
    }
  }
};

inline RequestId Submit(Engine& engine, GenerationRequest request, Generated* out) {
  return engine.Submit(std::move(request),
                       [out](RequestId, OutputDelta&& delta) { out->Take(std::move(delta)); });
}

/// What the engine says of a request that it does not take; "": it takes it.
inline std::string RefusalOf(Engine& engine, const GenerationRequest& request) {
  try {
    engine.Submit(request, [](RequestId, OutputDelta&&) {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline void RunUntilIdle(Engine& engine) {
  while (engine.Step()) {
  }
}

inline Generated RunOne(Engine& engine, GenerationRequest request) {
  Generated result;
  Submit(engine, std::move(request), &result);
  RunUntilIdle(engine);
  return result;
}

/// One after the other.
inline std::vector<Generated> RunEach(Engine& engine,
                                      const std::vector<GenerationRequest>& requests) {
  std::vector<Generated> results;
  for (const GenerationRequest& request : requests) results.push_back(RunOne(engine, request));
  return results;
}

/// After each request `steps_between()` steps run before the next one comes.
inline std::vector<Generated> RunJoining(Engine& engine,
                                         const std::vector<GenerationRequest>& requests,
                                         FunctionRef<uint32_t()> steps_between) {
  std::vector<Generated> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(engine, requests[i], &results[i]);
    for (uint32_t steps = steps_between(); steps > 0; --steps) engine.Step();
  }
  RunUntilIdle(engine);
  return results;
}

inline std::vector<Generated> RunTogether(Engine& engine,
                                          const std::vector<GenerationRequest>& requests,
                                          uint32_t steps_between = 0) {
  return RunJoining(engine, requests, [&] { return steps_between; });
}

/// Of requests that come one in a step.
inline std::vector<Generated> AnswersOf(const TestEngineOptions& options,
                                        const std::vector<GenerationRequest>& requests,
                                        const Tokenizer* tokenizer,
                                        EngineCounters* counters = nullptr) {
  const auto engine = MakeTestEngine(options, tokenizer);
  std::vector<Generated> results = RunTogether(*engine, requests, /*steps_between=*/1);
  if (counters != nullptr) *counters = engine->Counters();
  return results;
}

}  // namespace outrider
