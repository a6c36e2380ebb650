#include "outrider/engine/engine_loader.h"

#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/thread_pool.h"
#include "outrider/draft/block_drafter.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/ngram_drafter.h"
#include "outrider/draft/repeated_drafter.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/warm_up.h"
#include "outrider/execute/queued_executor.h"
#include "outrider/execute/step_runner.h"
#include "outrider/networks/block_draft_model.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/networks/mtp_draft_model.h"
#include "outrider/networks/network_loader.h"
#include "outrider/parallel/thread_communicator.h"
#include "outrider/text/token_id_encoder.h"
#include "outrider/text/tokenizer_config.h"

namespace outrider {

namespace {

std::filesystem::path TextDirectory(const EngineOptions& options) {
  return options.tokenizer.empty() ? options.model : options.tokenizer;
}

/// Dummy weights need none.
bool HasNoText(const EngineOptions& options) {
  return options.load_format == LoadFormat::kDummy && !Tokenizer::IsIn(TextDirectory(options));
}

void LoadText(const EngineOptions& options, LoadedEngine& loaded) {
  if (HasNoText(options)) return;
  const std::filesystem::path directory = TextDirectory(options);
  loaded.tokenizer = std::make_unique<Tokenizer>(Tokenizer::FromModelDirectory(directory));
  const TokenizerConfig config = ReadTokenizerConfig(directory);
  loaded.special_tokens = config.special_tokens;
  loaded.chat_template = LoadChatTemplate(options);
  loaded.grammars = std::make_unique<GrammarCompiler>(
      *loaded.tokenizer, static_cast<int32_t>(loaded.config.vocab_size),
      loaded.config.eos_token_ids);
}

/// The draft model with a checkpoint of its own, if there is one.
std::unique_ptr<DraftModel> LoadDraftModel(const EnginePlan& plan, const Network& network) {
  const DrafterCheckpoint* const own = plan.drafter();
  if (own == nullptr) return nullptr;
  return std::make_unique<Eagle3DraftModel>(
      own->config, own->taps,
      LoadEagle3(own->config, *own->source, plan.weight_form(), network.device(), nullptr),
      network);
}

/// own: of LoadDraftModel.
std::unique_ptr<Drafter> MakeDrafter(const EnginePlan& plan, const SpeculationOptions& options,
                                     Network& network, std::unique_ptr<DraftModel> own,
                                     KvCache& cache) {
  const int32_t k = plan.k();
  if (k == 0) return nullptr;
  if (options.method == DraftMethod::kNgram) {
    return std::make_unique<NgramDrafter>(k, options.prompt_lookup_min, options.prompt_lookup_max);
  }
  if (plan.drafts_blocks()) {
    return std::make_unique<BlockDrafter>(network.MakeBlockDraftModel(), cache,
                                          BlockDrafterOptions{.k = k, .form = options.draft_form});
  }
  const ModuleDrafterOptions drafter = {.k = k,
                                        .num_slots = plan.scheduler().max_num_seqs,
                                        .form = options.draft_form,
                                        .kept_rows = plan.kept_rows()};
  if (own) return std::make_unique<RepeatedDrafter>(std::move(own), cache, drafter);
  auto model = std::make_unique<MtpDraftModel>(network, options.draft_vocab_size);
  if (plan.chained()) return std::make_unique<ChainDrafter>(std::move(model), cache, drafter);
  return std::make_unique<RepeatedDrafter>(std::move(model), cache, drafter);
}

/// On a GPU, passes of the largest step. A lack of memory is told with the options that need less.
void WarmUpDevice(const EnginePlan& plan, Network& network, DraftModel* draft_model) {
  if (plan.device() == DeviceKind::kCpu) return;
  try {
    WarmUp(network, plan.scheduler(), plan.k(), plan.cache_layers(), plan.cache_numbers());
    if (draft_model == nullptr) return;
    WarmUp(*draft_model, network.hidden_size(), plan.scheduler(), plan.cache_layers(),
           plan.cache_numbers());
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format(
        "the work space of the largest step does not fit beside the weights ({}): lower "
        "--max-model-len, --max-num-batched-tokens or --max-num-seqs",
        error.what()));
  }
}

/// What the ranks have read, each on a thread of its own, as one progress.
class RanksProgress {
 public:
  RanksProgress(int32_t ranks, const LoadProgress& progress)
      : read_(static_cast<size_t>(ranks)), progress_(progress) {}

  WeightLoader::Progress Of(int32_t rank) {
    if (!progress_) return nullptr;
    return [this, rank](int64_t done, int64_t total) {
      const std::lock_guard lock(mutex_);
      read_[static_cast<size_t>(rank)] = {done, total};
      Read sum;
      for (const Read& read : read_) {
        sum.done += read.done;
        sum.total += read.total == 0 ? total : read.total;  // it has not begun: as much as this one
      }
      progress_(sum.done, sum.total);
    };
  }

 private:
  struct Read {
    int64_t done = 0;
    int64_t total = 0;
  };

  std::mutex mutex_;
  std::vector<Read> read_;  // by rank
  const LoadProgress& progress_;
};

/// A rank with its weights, and the draft model that has a checkpoint of its own.
struct LoadedRank {
  RankParts parts;
  std::unique_ptr<DraftModel> draft_model;
};

/// All ranks of the plan, which read side by side.
std::vector<LoadedRank> LoadRanks(const EnginePlan& plan, AttentionBackend backend,
                                  const LoadProgress& progress) {
  std::vector<std::unique_ptr<Communicator>> communicators = MakeThreadCommunicators(plan.ranks());
  std::vector<LoadedRank> ranks(communicators.size());
  RanksProgress read(plan.ranks(), progress);
  ThreadPool(plan.ranks()).ParallelForThrowing(plan.ranks(), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    const RankPlace place = communicators[index]->place();
    auto& [rank, draft_model] = ranks[index];
    if (place.ranks > 1) rank.ranks = std::move(communicators[index]);
    const ComputeThreads threads = plan.ThreadsOf(place);
    rank.pool = std::make_unique<ThreadPool>(threads.count, threads.processors);
    rank.model = LoadNetwork(plan.config(), plan.modules_used(), plan.source(), plan.weight_form(),
                             {{plan.ops(), rank.pool.get(), rank.ranks.get()},
                              plan.dtype(),
                              AttentionPlan(backend, 1 + plan.k(), plan.kv_cache_form())},
                             read.Of(place.rank));
    draft_model = LoadDraftModel(plan, *rank.model);
  });
  return ranks;
}

}  // namespace

std::optional<ChatTemplate> LoadChatTemplate(const EngineOptions& options) {
  if (HasNoText(options)) return std::nullopt;
  const std::filesystem::path directory = TextDirectory(options);
  if (options.chat_template.empty()) return ChatTemplate::FromModelDirectory(directory);
  return ChatTemplate::FromFile(options.chat_template, ReadTokenizerConfig(directory));
}

LoadedEngine ExplainEngine(const EngineOptions& options) {
  const EnginePlan plan(options);
  LoadedEngine loaded;
  loaded.config = plan.config();
  loaded.decisions = plan.decisions();
  loaded.num_speculative_tokens = plan.k();
  loaded.kv_cache_form = plan.kv_cache_form();
  loaded.kernels = plan.ops().name();
  loaded.memory = plan.Memory();
  return loaded;
}

LoadedEngine LoadEngine(const EngineOptions& options, const LoadProgress& progress,
                        const StepTimesProgress& measured) {
  EnginePlan plan(options);
  plan.CheckFitsHost();
  LoadedEngine loaded;
  loaded.config = plan.config();
  loaded.num_speculative_tokens = plan.k();
  loaded.kv_cache_form = plan.kv_cache_form();
  loaded.kernels = plan.ops().name();
  LoadText(options, loaded);

  const Ops& ops = plan.ops();
  PreparePrompts(ops, plan.config());
  if (plan.drafter() != nullptr) PreparePrompts(ops, plan.drafter()->config);
  std::unique_ptr<Ops> own_ops = plan.TakeOps();
  std::vector<LoadedRank> ranks = LoadRanks(plan, options.attention_backend, progress);
  ranks.front().parts.ops = std::move(own_ops);
  WarmUpDevice(plan, *ranks.front().parts.model, ranks.front().draft_model.get());
  if (plan.FillsDevice()) plan.PlanCacheInFreeMemory();
  loaded.decisions = plan.decisions();
  loaded.memory = plan.Memory();
  EngineParts parts;
  parts.scheduler = plan.scheduler();
  std::vector<Drafter*> drafters;  // the executor's
  std::vector<RankParts> rank_parts;
  for (LoadedRank& loaded_rank : ranks) {
    RankParts& rank = rank_parts.emplace_back(std::move(loaded_rank.parts));
    rank.cache = std::make_unique<KvCache>(rank.model->device(), parts.scheduler.cache,
                                           plan.cache_layers(), plan.cache_numbers());
    rank.drafter = MakeDrafter(plan, options.speculation, *rank.model,
                               std::move(loaded_rank.draft_model), *rank.cache);
    rank.acceptance = plan.acceptance();
    rank.probabilistic_drafts = options.speculation.probabilistic_drafts;
    rank.logprobs_mode = options.logprobs_mode;
    rank.num_slots = parts.scheduler.max_num_seqs;
    drafters.push_back(rank.drafter.get());
  }
  if (const Drafter* drafter = drafters.front()) {
    parts.draft_schedule =
        DraftSchedule(plan.k(), options.speculation.num_speculative_tokens_per_batch_size);
    parts.scheduler.cache.rerun_tokens = drafter->rerun_tokens();
    parts.scheduler.max_drafts = drafter->max_drafts();
    parts.scheduler.lookahead_tokens = drafter->lookahead();
    parts.scheduler.tokens_ahead = drafter->tokens_ahead();
  }
  parts.executor = std::make_unique<StepRunner>(std::move(rank_parts));
  if (plan.device() != DeviceKind::kCpu) {
    parts.executor = std::make_unique<QueuedExecutor>(std::move(parts.executor));
  }
  parts.prefix_caching = options.enable_prefix_caching;
  parts.tokenizer = loaded.tokenizer.get();
  parts.max_num_queued_reqs = options.max_num_queued_reqs;
  parts.max_logprobs = options.max_logprobs;
  parts.seed = options.seed;
  if (plan.device() == DeviceKind::kCuda) {
    const MemoryReport& memory = loaded.memory;
    const int64_t weights =
        SumOf(memory.weights) + SumOf(memory.mtp_weights) + SumOf(memory.drafter_weights);
    const DeviceMemoryState now = ops.memory();
    parts.gpu = {.total_bytes = now.total,
                 .weight_bytes = weights,
                 .kv_cache_bytes = memory.kv_cache_bytes,
                 .work_bytes = now.total - now.free - weights - memory.kv_cache_bytes};
  }
  if (plan.k() > 0 && options.speculation.IsAdaptive()) {
    loaded.step_times = options.speculation.step_times;
    if (!loaded.step_times) {
      const bool repeats = options.speculation.method == DraftMethod::kNgram;
      loaded.step_times = MeasureStepTimes(parts, repeats, measured);
    }
    if (options.speculation.enable_adaptive_verification) {
      for (Drafter* drafter : drafters) drafter->SetStepTimes(*loaded.step_times);
    }
    parts.draft_length_policy.emplace(plan.k(), *loaded.step_times);
  }
  loaded.engine = std::make_unique<Engine>(std::make_unique<EngineCore>(std::move(parts)));
  return loaded;
}

TextPromptEncoder MakePromptEncoder(const LoadedEngine& loaded) {
  if (loaded.tokenizer == nullptr) throw NeedsTokenizer();
  return {*loaded.tokenizer, loaded.chat_template.has_value() ? &*loaded.chat_template : nullptr,
          static_cast<int32_t>(loaded.config.vocab_size), loaded.special_tokens};
}

std::unique_ptr<PromptEncoder> MakeRequestEncoder(const LoadedEngine& loaded) {
  if (loaded.tokenizer == nullptr) {
    return std::make_unique<TokenIdEncoder>(static_cast<int32_t>(loaded.config.vocab_size));
  }
  // Constructed in place: it cannot be moved.
  return std::unique_ptr<PromptEncoder>(new TextPromptEncoder(MakePromptEncoder(loaded)));
}

}  // namespace outrider
