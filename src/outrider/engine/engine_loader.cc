#include "outrider/engine/engine_loader.h"

#include <filesystem>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/engine/checkpoints.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/executor_maker.h"
#include "outrider/engine/host_fit.h"
#include "outrider/engine/page_offload.h"
#include "outrider/engine/plan/check_options.h"
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

/// What is decided before weights are read.
struct PlannedEngine {
  OpenedDevice device;
  Checkpoints checkpoints;
  EnginePlan plan;
  Decisions decisions;  // of the plan
  MeasuredWeights weights;
  // The KV cache's budget; in the memory of a GPU that it fills, by estimate.
  std::optional<GpuBudget> gpu;
  SchedulerConfig scheduler;
  Decisions cache_decisions;
  std::optional<HostFit> host_fit;  // nothing: the host takes nothing, or the system does not tell
};

/// gpu: of a GPU that the cache fills.
void PlanPages(const EngineOptions& options, const ModelConfig& config,
               const std::optional<GpuBudget>& gpu, PlannedEngine& planned) {
  planned.gpu = gpu;
  planned.cache_decisions.clear();
  planned.scheduler = PlanCache(options, config, planned.plan,
                                MemoryOfCache(options, gpu, planned.weights.largest_rank()),
                                planned.cache_decisions);
}

MemoryReport MemoryOf(const PlannedEngine& planned) {
  return ReportMemory(planned.plan, planned.scheduler, planned.weights, planned.gpu);
}

/// On a processor: whether weights and cache fit into its memory. On a GPU: whether pages that
/// leave it do.
std::optional<HostFit> FitInHost(const EngineOptions& options, const PlannedEngine& planned) {
  const EnginePlan& plan = planned.plan;
  const std::optional<HostMemory>& available = planned.device.facts.host_memory;
  if (!available) return std::nullopt;
  HostNeed need = {.offloaded = OffloadBytesInMemory(options)};
  if (plan.device != DeviceKind::kCpu) {
    if (need.offloaded == 0) return std::nullopt;
    return FitInHost(need, *available);
  }
  const MemoryReport memory = MemoryOf(planned);
  need.weights = planned.weights.all_ranks();
  need.kv_cache = plan.ranks * (memory.kv_cache_bytes + memory.kept_row_bytes);
  HostFit fit = FitInHost(need, *available);
  if (fit.fits || options.quantization != WeightQuantization::kNone) return fit;
  WeightForm int8 = plan.numbers.weights;
  int8.quantization = WeightQuantization::kInt8;
  need.int8_weights =
      MeasureWeights(*planned.device.ops, planned.checkpoints, plan, int8).all_ranks();
  return FitInHost(need, *available);
}

PlannedEngine Plan(const EngineOptions& options) {
  CheckOptions(options);
  PlannedEngine planned;
  planned.device = OpenDevice(options.device, options.tensor_parallel_size, options.rank_devices,
                              options.data_parallel_attention);
  planned.checkpoints = OpenCheckpoints(options);
  const DeviceFacts& device = planned.device.facts;
  const ModelFacts& model = planned.checkpoints.facts;
  planned.plan = PlanEngine(options, model, device, planned.decisions);
  const EnginePlan& plan = planned.plan;
  if (!plan.drafts.warning.empty()) spdlog::warn("{}", plan.drafts.warning);
  planned.weights =
      MeasureWeights(*planned.device.ops, planned.checkpoints, plan, plan.numbers.weights);
  std::optional<GpuBudget> gpu;
  if (FillsGpu(options, plan.device)) {
    gpu = EstimateGpu(options, device.memory, planned.weights.largest_rank());
  }
  PlanPages(options, model.config, gpu, planned);
  planned.host_fit = FitInHost(options, planned);
  return planned;
}

void Describe(const PlannedEngine& planned, LoadedEngine& loaded) {
  const EnginePlan& plan = planned.plan;
  loaded.memory = MemoryOf(planned);
  loaded.decisions = planned.decisions;
  loaded.decisions.insert(loaded.decisions.end(), planned.cache_decisions.begin(),
                          planned.cache_decisions.end());
  if (const auto& fit = planned.host_fit) {
    loaded.decisions.push_back({plan.device == DeviceKind::kCpu ? "memory" : "host memory",
                                fit->fits ? "fits" : "DOES NOT FIT", fit->text});
  }
  loaded.num_speculative_tokens = plan.drafts.k;
  loaded.kv_cache_form = plan.form.cache;
  loaded.row_paths = plan.form.paths;
  loaded.kernels = planned.device.ops->name();
}

}  // namespace

std::optional<ChatTemplate> LoadChatTemplate(const EngineOptions& options) {
  if (HasNoText(options)) return std::nullopt;
  const std::filesystem::path directory = TextDirectory(options);
  if (options.chat_template.empty()) return ChatTemplate::FromModelDirectory(directory);
  return ChatTemplate::FromFile(options.chat_template, ReadTokenizerConfig(directory));
}

LoadedEngine ExplainEngine(const EngineOptions& options) {
  const PlannedEngine planned = Plan(options);
  LoadedEngine loaded;
  loaded.config = planned.checkpoints.facts.config;
  Describe(planned, loaded);
  return loaded;
}

LoadedEngine LoadEngine(const EngineOptions& options, const LoadProgress& progress,
                        const StepTimesProgress& measured) {
  PlannedEngine planned = Plan(options);
  if (planned.host_fit && !planned.host_fit->fits) {
    throw InvalidArgument("{} does not fit into memory: {}", options.model, planned.host_fit->text);
  }
  const EnginePlan& plan = planned.plan;
  const Ops& ops = *planned.device.ops;
  LoadedEngine loaded;
  loaded.config = planned.checkpoints.facts.config;
  LoadText(options, loaded);

  auto maker = std::make_unique<ExecutorMaker>(options, plan, planned.device.ranks,
                                               std::move(planned.checkpoints));
  maker->ReadWeights(std::move(planned.device.own_ops), progress);
  maker->WarmUpDevice(planned.scheduler);
  if (FillsGpu(options, plan.device)) {
    PlanPages(
        options, loaded.config,
        MeasureGpu(options, LeastMemory(planned.device.ranks), planned.weights.largest_rank()),
        planned);
  }
  Describe(planned, loaded);
  maker->MakeCaches(planned.scheduler.cache);
  const int32_t k = plan.drafts.k;
  EngineParts parts;
  parts.scheduler = planned.scheduler;
  parts.executor = maker->Make();
  if (k > 0) {
    parts.draft_schedule =
        DraftSchedule(k, options.speculation.num_speculative_tokens_per_batch_size);
  }
  parts.prefix_caching = options.enable_prefix_caching;
  parts.tokenizer = loaded.tokenizer.get();
  parts.max_num_queued_reqs = options.max_num_queued_reqs;
  parts.max_logprobs = options.max_logprobs;
  parts.seed = options.seed;
  parts.routed = plan.routed;
  if (plan.device == DeviceKind::kCuda) {
    const int64_t weights = planned.weights.first_rank();
    const int64_t cache = loaded.memory.kv_cache_bytes;
    const DeviceMemoryState now = ops.memory();
    parts.gpu = {.total_bytes = now.total,
                 .weight_bytes = weights,
                 .kv_cache_bytes = cache,
                 .work_bytes = now.total - now.free - weights - cache};
  }
  if (k > 0 && options.speculation.IsAdaptive()) {
    loaded.step_times = options.speculation.step_times;
    if (!loaded.step_times) {
      const bool looks_up = options.speculation.method == DraftMethod::kNgram;
      loaded.step_times = MeasureStepTimes(parts, looks_up, measured);
    }
    if (options.speculation.enable_adaptive_verification) {
      maker->SetStepTimes(*loaded.step_times);
    }
    parts.draft_length_policy.emplace(k, *loaded.step_times);
  }
  parts.page_store = MakePageStore(options, parts.executor->page_bytes(), plan.device);
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
