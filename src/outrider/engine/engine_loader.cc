#include "outrider/engine/engine_loader.h"

#include <filesystem>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/executor_maker.h"
#include "outrider/engine/page_offload.h"
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
  loaded.row_paths = plan.row_paths();
  loaded.kernels = plan.ops().name();
  loaded.memory = plan.Memory();
  return loaded;
}

LoadedEngine LoadEngine(const EngineOptions& options, const LoadProgress& progress,
                        const StepTimesProgress& measured) {
  auto maker = std::make_unique<ExecutorMaker>(options);
  EnginePlan& plan = maker->plan();
  LoadedEngine loaded;
  loaded.config = plan.config();
  loaded.num_speculative_tokens = plan.k();
  loaded.kv_cache_form = plan.kv_cache_form();
  loaded.row_paths = plan.row_paths();
  loaded.kernels = plan.ops().name();
  LoadText(options, loaded);

  const Ops& ops = plan.ops();
  maker->ReadWeights(progress);
  maker->WarmUpDevice();
  if (plan.FillsDevice()) plan.PlanCacheInFreeMemory();
  loaded.decisions = plan.decisions();
  loaded.memory = plan.Memory();
  plan.CloseCheckpoints();
  EngineParts parts;
  parts.scheduler = plan.scheduler();
  parts.executor = maker->Make();
  if (const Drafter* drafter = maker->drafter()) {
    parts.draft_schedule =
        DraftSchedule(plan.k(), options.speculation.num_speculative_tokens_per_batch_size);
    parts.scheduler.cache.rerun_tokens = drafter->rerun_tokens();
    parts.scheduler.max_drafts = drafter->max_drafts();
    parts.scheduler.lookahead_tokens = drafter->lookahead();
    parts.scheduler.tokens_ahead = drafter->tokens_ahead();
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
      maker->SetStepTimes(*loaded.step_times);
    }
    parts.draft_length_policy.emplace(plan.k(), *loaded.step_times);
  }
  parts.page_store = MakePageStore(options, parts.executor->page_bytes());
  parts.maker = std::move(maker);
  parts.weight_version = options.weight_version;
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
