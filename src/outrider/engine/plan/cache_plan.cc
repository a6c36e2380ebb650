#include "outrider/engine/plan/cache_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "outrider/base/byte_size.h"
#include "outrider/base/error.h"
#include "outrider/engine/page_offload.h"

namespace outrider {

namespace {

constexpr int64_t kCacheOnAProcessor = int64_t{1} << 30;
// Bytes that a GPU's work space is taken to need until it is measured.
constexpr int64_t kEstimatedWorkSpace = int64_t{4} << 30;

GpuBudget BudgetOf(const EngineOptions& options, int64_t total) {
  return {
      .total = total,
      .usable = static_cast<int64_t>(options.gpu_memory_utilization * static_cast<double>(total))};
}

std::string CacheTypeText(const ModelConfig& config, const NumberPlan& numbers) {
  std::string name(DTypeName(numbers.kv_dtype));
  if (numbers.kv_dtype != DType::kF8E4M3) return name;
  const bool is_v4 = config.family == ModelFamily::kDeepSeekV4;
  if (is_v4 && numbers.cache_form == Fp8Form::kPublishedNumbers) {
    return "bfloat16 rounded as published";
  }
  const bool has_indexer = std::ranges::any_of(
      config.layers, [](const LayerSpec& layer) { return layer.indexer() != nullptr; });
  if (has_indexer || (is_v4 && numbers.cache_form == Fp8Form::kPerTensor)) {
    return name + " without scales, index keys with a scale each";
  }
  if (!is_v4) return name + " without scales";
  return fmt::format("{} in groups of {} but for rotated numbers, index keys {}", name,
                     kFp8CacheGroup, DTypeName(DType::kF4E2M1));
}

void DescribeGroups(const CacheConfig& cache, Decisions& decisions) {
  for (const CacheGroupSpec& group : cache.groups) {
    const bool window = group.kind == CacheGroupKind::kSlidingWindow;
    decisions.push_back(
        {"cache group",
         fmt::format("{}: {} layers, {} tokens per page", group.name, group.layers,
                     group.tokens_per_block),
         window ? fmt::format("rows read the last {} tokens; pages before them are freed while "
                              "the request runs",
                              group.window)
                : "rows read all tokens before them"});
  }
}

void DescribePrefixCaching(const EngineOptions& options, bool one_path, Decisions& decisions) {
  Decision decision = {"prefix caching", "prompts and answers", ""};
  if (!options.enable_prefix_caching) {
    decision.value = "off";
    decision.why = "--no-enable-prefix-caching";
  } else if (one_path) {
    decision.why = "all rows take one form of attention";
  } else if (options.fast_prefix) {
    decision.why = "--fast-prefix: NOT exact where a prompt repeats an earlier answer";
  } else {
    decision.value = "prompts";
    decision.why =
        "answers take another form of attention; --fast-prefix would reuse them, equal up to "
        "rounding";
  }
  decisions.push_back(std::move(decision));
}

}  // namespace

int64_t HistoryBytesPerToken(const std::vector<CacheGroupSpec>& groups) {
  std::vector<CacheGroupSpec> history = groups;
  std::erase_if(history, [](const CacheGroupSpec& group) {
    return group.kind == CacheGroupKind::kSlidingWindow;
  });
  return BytesPerToken(history);
}

bool FillsGpu(const EngineOptions& options, DeviceKind device) {
  return device == DeviceKind::kCuda && !options.kv_cache_memory_bytes;
}

GpuBudget EstimateGpu(const EngineOptions& options, const DeviceMemoryState& memory,
                      int64_t weight_bytes) {
  GpuBudget gpu = BudgetOf(options, memory.total);
  gpu.work_space = memory.total - memory.free + kEstimatedWorkSpace;
  if (gpu.usable > weight_bytes + gpu.work_space) return gpu;
  throw InvalidArgument(
      "the weights take {}, the work space and other processes about {}, but "
      "--gpu-memory-utilization {} allows {} of the GPU's {}: raise it, or free memory there",
      ByteSizeText(weight_bytes), ByteSizeText(gpu.work_space), options.gpu_memory_utilization,
      ByteSizeText(gpu.usable), ByteSizeText(gpu.total));
}

GpuBudget MeasureGpu(const EngineOptions& options, const DeviceMemoryState& memory,
                     int64_t weight_bytes) {
  GpuBudget gpu = BudgetOf(options, memory.total);
  gpu.work_space = memory.total - memory.free - weight_bytes;
  gpu.measured = true;
  return gpu;
}

CacheMemory MemoryOfCache(const EngineOptions& options, const std::optional<GpuBudget>& gpu,
                          int64_t weight_bytes) {
  if (options.kv_cache_memory_bytes) {
    return {*options.kv_cache_memory_bytes, "--kv-cache-memory-bytes"};
  }
  if (!gpu) return {kCacheOnAProcessor, "the default of --kv-cache-memory-bytes"};
  return {gpu->usable - weight_bytes - gpu->work_space,
          gpu->measured ? "what --gpu-memory-utilization leaves"
                        : "what --gpu-memory-utilization leaves, by estimate: measured at start"};
}

int64_t PagesWhileGenerating(const EnginePlan& plan, const CacheGroupSpec& group, int32_t tokens) {
  const int64_t blocks = group.BlocksBefore(tokens);
  if (group.kind != CacheGroupKind::kSlidingWindow) return blocks;
  // The rows of a step, what is written behind them, and the windows of the first of them.
  const int64_t span =
      int64_t{plan.MostDecodeTokens()} + plan.cache.config.rerun_tokens + group.window - 1;
  return std::min(blocks, (span + group.tokens_per_block - 2) / group.tokens_per_block + 1);
}

RequestPages PagesOfRequest(const EnginePlan& plan, int32_t tokens) {
  const CacheConfig& cache = plan.cache.config;
  RequestPages pages;
  for (const CacheGroupSpec& group : cache.groups) {
    const bool window = group.kind == CacheGroupKind::kSlidingWindow;
    (window ? pages.generating : pages.history) += PagesWhileGenerating(plan, group, tokens);
  }
  pages.generating += cache.StatePages() + cache.StateRowPages();
  pages.prompt = cache.MostPages(tokens, plan.MostStepTokens()) - pages.history;
  return pages;
}

std::string RequestPagesText(const RequestPages& pages, int64_t page_bytes) {
  return fmt::format("{} in {} pages while a request generates, at most {} in {} during its prompt",
                     ByteSizeText(pages.generating * page_bytes), pages.generating,
                     ByteSizeText(pages.prompt * page_bytes), pages.prompt);
}

SchedulerConfig PlanCache(const EngineOptions& options, const ModelConfig& config,
                          const EnginePlan& plan, const CacheMemory& memory, Decisions& decisions) {
  const DrafterReach& reach = plan.drafts.reach;
  SchedulerConfig scheduler = {.cache = plan.cache.config,
                               .cache_ranks = plan.cache_ranks,
                               .max_num_seqs = options.max_num_seqs,
                               .max_num_batched_tokens = plan.max_num_batched_tokens,
                               .max_drafts = plan.drafts.k,
                               .lookahead_tokens = reach.lookahead,
                               .tokens_ahead = reach.tokens_ahead};
  CacheConfig& cache = scheduler.cache;
  const int32_t step_tokens = plan.MostStepTokens();
  const int64_t kept = plan.cache.kept_bytes_per_page;
  const int64_t page_bytes = cache.PageBytes() + kept;
  const int64_t budget_pages =
      std::clamp<int64_t>(memory.bytes / page_bytes, 0, INT32_MAX / plan.cache_ranks);
  const int64_t trained = config.max_position_embeddings;
  if (options.max_model_len && *options.max_model_len > trained) {
    throw InvalidArgument("--max-model-len is {}, but the model was made for {} positions",
                          *options.max_model_len, trained);
  }
  const auto wanted = static_cast<int32_t>(std::min<int64_t>(
      options.max_model_len.value_or(static_cast<int32_t>(trained)), CacheConfig::kMostTokens));
  const int64_t holds = cache.MostTokens(budget_pages, step_tokens);
  if (holds < 2 || (options.max_model_len && holds < wanted)) {
    throw InvalidArgument(
        "a KV cache of {} ({}) holds {} tokens, a context of {} needs {}: give it more memory, or "
        "lower --max-model-len",
        ByteSizeText(std::max<int64_t>(memory.bytes, 0)), memory.why, holds, wanted,
        ByteSizeText(cache.MostPages(wanted, step_tokens) * page_bytes));
  }
  const auto length = static_cast<int32_t>(std::min<int64_t>(wanted, holds));
  if (length < 2) throw InvalidArgument("--max-model-len is {}: it must be at least 2", length);
  const int64_t useful = cache.MostPages(length, step_tokens) * options.max_num_seqs;
  cache.num_pages = static_cast<int32_t>(std::min(budget_pages, useful));
  scheduler.max_model_len = length;
  scheduler.publish_answers = !plan.form.paths.ByRole() || options.fast_prefix;
  decisions.push_back({"context", fmt::format("{} tokens", length),
                       length < wanted         ? "shrunk to what the KV cache holds"
                       : options.max_model_len ? "--max-model-len"
                                               : "max_position_embeddings"});
  decisions.push_back(
      {"KV cache",
       fmt::format("{} pages of {} bytes, {}, {} bytes per token of history, {} layers{}",
                   cache.num_pages, cache.PageBytes(), CacheTypeText(config, plan.numbers),
                   HistoryBytesPerToken(cache.groups), plan.cache.layers.size(),
                   kept == 0 ? "" : fmt::format(", and {} for kept hidden rows per page", kept)),
       budget_pages < useful ? memory.why : "as much as --max-num-seqs requests can use"});
  const RequestPages request = PagesOfRequest(plan, length);
  if (request.generating > 0) {
    decisions.push_back({"windows and states", RequestPagesText(request, cache.PageBytes()),
                         "in pages of the KV cache, beside the history"});
  }
  if (plan.cache_ranks > 1) {
    decisions.push_back({"requests at once",
                         fmt::format("in {} caches of {} pages, {} in all", plan.cache_ranks,
                                     cache.num_pages, plan.cache_ranks * cache.num_pages),
                         "--data-parallel-attention: a request is kept by one rank"});
  }
  DescribeGroups(cache, decisions);
  DescribePrefixCaching(options, !plan.form.paths.ByRole(), decisions);
  if (options.kv_offload_memory_bytes) {
    CheckOffloadHolds(options, plan.ranks / plan.cache_ranks * page_bytes);
    decisions.push_back({"pages that leave the KV cache", OffloadText(options),
                         "--kv-offload-memory-bytes: they come back when a prompt begins alike"});
  }
  return scheduler;
}

}  // namespace outrider
