// The part of an EnginePlan that divides the memory of the KV cache.
#include <algorithm>
#include <utility>

#include "outrider/base/byte_size.h"
#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/engine/engine_plan.h"
#include "outrider/engine/page_offload.h"
#include "outrider/networks/eagle3_draft_model.h"

namespace outrider {

namespace {

constexpr int64_t kCacheOnAProcessor = int64_t{1} << 30;
// Of a GPU's work space, until it is measured.
constexpr int64_t kEstimatedWorkSpace = int64_t{4} << 30;

int64_t BytesOf(const NetworkWeightSizes& sizes) {
  return SumOf(sizes.target) + SumOf(sizes.modules);
}

}  // namespace

MemoryReport EnginePlan::Memory() const {
  MemoryReport memory;
  memory.weights = weight_sizes_.target;
  memory.mtp_weights = weight_sizes_.modules;
  memory.gpu = gpu_;
  memory.drafter_weights = drafter_sizes_.modules;
  memory.weight_groups = weight_sizes_.groups;
  memory.weight_groups.insert(memory.weight_groups.end(), drafter_sizes_.groups.begin(),
                              drafter_sizes_.groups.end());
  const CacheConfig& cache = scheduler_.cache;
  memory.kv_bytes_per_token = BytesPerToken(cache.groups);
  memory.kv_tokens = cache.MostTokens(cache.num_pages, MostStepTokens());
  memory.kv_page_bytes = cache.PageBytes();
  memory.kv_pages = cache.num_pages;
  memory.kv_cache_bytes = memory.kv_page_bytes * memory.kv_pages;
  memory.kept_row_bytes = KeptBytesPerPage() * memory.kv_pages;
  for (const int64_t weights : rank_weights_) {
    memory.ranks.push_back({weights, memory.kv_cache_bytes + memory.kept_row_bytes});
  }
  for (const CacheGroupSpec& group : cache.groups) {
    const auto index = static_cast<int32_t>(memory.kv_groups.size());
    const CacheConfig alone{.groups = {group}, .num_pages = 1, .rerun_tokens = cache.rerun_tokens};
    memory.kv_groups.push_back(
        {.group = group,
         .parts = PartsOf(index),
         .bytes_per_token = BytesPerToken(alone.groups),
         .pages_per_request = alone.MostPages(scheduler_.max_model_len, MostStepTokens())});
  }
  if (cache.state.heads > 0) {
    memory.state = {.spec = cache.state,
                    .state_pages = cache.StatePages(),
                    .row_pages = cache.StateRowPages(),
                    .tokens_per_checkpoint = cache.TokensPerCheckpoint()};
  }
  return memory;
}

std::vector<CachePartReport> EnginePlan::PartsOf(int32_t group) const {
  std::vector<CachePartReport> parts;
  for (const CacheLayerSpec& layer : cache_layers_) {
    if (layer.group != group || layer.what.empty()) continue;
    auto part = std::ranges::find(parts, layer.what, &CachePartReport::what);
    if (part == parts.end()) part = parts.insert(part, {.what = layer.what});
    ++part->layers;
    part->bytes_per_token += static_cast<double>(EntryBytes(layer, cache_numbers())) / layer.ratio;
  }
  return parts;
}

void EnginePlan::PlanCacheGroups() {
  const ModelConfig config = OfOneRank(config_, ranks());
  NetworkCache network =
      drafter_ ? Eagle3DraftModel::CacheNeeds(config, OfOneRank(drafter_->config, ranks()), form_)
               : NetworkCacheOf(config, modules_used_, form_);
  scheduler_.cache =
      MakeCacheConfig(network, cache_numbers(), options_.block_size, /*num_pages=*/0);
  scheduler_.cache.rerun_tokens = modules_used_;  // at most, see LoadEngine
  cache_layers_ = std::move(network.layers);
}

void EnginePlan::PlanRunningState() {
  const CacheConfig& cache = scheduler_.cache;
  if (cache.state.heads == 0) return;
  if (k_ > kMostStateDrafts) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but {} has linear attention, which keeps rows for {} "
        "drafts: "
        "use 0 to {}",
        k_, options_.model, kMostStateDrafts, kMostStateDrafts);
  }
  Decide("running state",
         fmt::format("{} of a request, and {} of its last {} rows",
                     ByteSizeText(cache.state.StateBytes()), ByteSizeText(cache.state.RowBytes()),
                     kKeptStateRows),
         fmt::format("linear attention, float32, in pages of the KV cache; drafts never write it"));
  Decide("checkpoints",
         options_.enable_prefix_caching
             ? fmt::format("{} each, every {} tokens of a prompt and near its end",
                           ByteSizeText(cache.state.StateBytes()), cache.TokensPerCheckpoint())
             : "none",
         options_.enable_prefix_caching ? "where requests that begin alike may go on"
                                        : "--no-enable-prefix-caching");
}

bool EnginePlan::ModulesHaveWindows() const {
  const CacheLayerSpec& last = cache_layers_.back();
  return HasModules() && scheduler_.cache.groups[static_cast<size_t>(last.group)].kind ==
                             CacheGroupKind::kSlidingWindow;
}

KeptRows EnginePlan::kept_rows() const {
  return options_.speculation.DraftLengthVaries() && !ModulesHaveWindows() ? KeptRows::kAll
                                                                           : KeptRows::kLast;
}

int64_t EnginePlan::KeptBytesPerPage() const {
  if (!HasModules() || kept_rows() == KeptRows::kLast) return 0;
  const auto group = static_cast<size_t>(cache_layers_.back().group);
  const int64_t width = drafter_ ? drafter_->config.hidden_size : config_.hidden_size;
  return TargetHiddenRows::BytesPerToken(width, ops().activation_type()) *
         scheduler_.cache.groups[group].tokens_per_block;
}

void EnginePlan::MeasureRanks() {
  if (ranks() == 1) return;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    const auto [model, drafter] = MeasureAllWeights(weight_form(), rank);
    rank_weights_.push_back(BytesOf(model) + BytesOf(drafter));
  }
}

int64_t EnginePlan::WeightBytes() const { return BytesOf(weight_sizes_) + BytesOf(drafter_sizes_); }

void EnginePlan::PlanHostMemory() {
  const std::optional<HostMemory> available = AvailableHostMemory();
  if (!available) return;
  HostNeed need;
  need.offloaded = OffloadBytesInMemory(options_);
  if (device() != DeviceKind::kCpu) {
    if (need.offloaded == 0) return;
    host_fit_ = FitInHost(need, *available);
    Decide("host memory", host_fit_->fits ? "fits" : "DOES NOT FIT", host_fit_->text);
    return;
  }
  const MemoryReport memory = Memory();
  need.weights = ranks() == 1 ? WeightBytes() : 0;
  for (const int64_t weights : rank_weights_) need.weights += weights;
  need.kv_cache = ranks() * (memory.kv_cache_bytes + memory.kept_row_bytes);
  host_fit_ = FitInHost(need, *available);
  if (!host_fit_->fits && options_.quantization == WeightQuantization::kNone) {
    WeightForm form = weight_form();
    form.quantization = WeightQuantization::kInt8;
    const auto [model, drafter] = MeasureAllWeights(form);
    need.int8_weights = ranks() * (BytesOf(model) + BytesOf(drafter));
    host_fit_ = FitInHost(need, *available);
  }
  Decide("memory", host_fit_->fits ? "fits" : "DOES NOT FIT", host_fit_->text);
}

void EnginePlan::CheckFitsHost() const {
  if (host_fit_ && !host_fit_->fits) {
    throw InvalidArgument("{} does not fit into memory: {}", options_.model, host_fit_->text);
  }
}

int32_t EnginePlan::MostStepTokens() const {
  const int32_t rows = std::min(scheduler_.max_num_batched_tokens, CacheConfig::kMostTokens);
  return std::max(rows, 1 + k_) + 1 + std::max(k_, lookahead_);
}

void EnginePlan::PlanFirstCache() {
  cache_decisions_ = decisions_.size();
  if (options_.kv_cache_memory_bytes) {
    return PlanCache(*options_.kv_cache_memory_bytes, "--kv-cache-memory-bytes");
  }
  if (device() == DeviceKind::kCpu) {
    return PlanCache(kCacheOnAProcessor, "the default of --kv-cache-memory-bytes");
  }
  const DeviceMemoryState memory = ops().memory();
  gpu_ = {.total = memory.total,
          .usable = static_cast<int64_t>(options_.gpu_memory_utilization *
                                         static_cast<double>(memory.total)),
          .work_space = memory.total - memory.free + kEstimatedWorkSpace};
  const int64_t weights = WeightBytes();
  const int64_t left = gpu_->usable - weights - gpu_->work_space;
  if (left <= 0) {
    throw InvalidArgument(
        "the weights take {}, the work space and other processes about {}, but "
        "--gpu-memory-utilization {} allows {} of the GPU's {}: raise it, or free memory there",
        ByteSizeText(weights), ByteSizeText(gpu_->work_space), options_.gpu_memory_utilization,
        ByteSizeText(gpu_->usable), ByteSizeText(gpu_->total));
  }
  PlanCache(left, "what --gpu-memory-utilization leaves, by estimate: measured at start");
}

void EnginePlan::PlanCacheInFreeMemory() {
  OUTRIDER_CHECK(FillsDevice());
  const DeviceMemoryState memory = ops().memory();
  const int64_t used = memory.total - memory.free;
  gpu_->work_space = used - WeightBytes();
  gpu_->measured = true;
  PlanCache(gpu_->usable - used, "what --gpu-memory-utilization leaves");
}

void EnginePlan::PlanCache(int64_t bytes, const std::string& why) {
  decisions_.resize(cache_decisions_);
  CacheConfig& cache = scheduler_.cache;
  const int64_t page_bytes = cache.PageBytes() + KeptBytesPerPage();
  const int64_t budget_pages = std::clamp<int64_t>(bytes / page_bytes, 0, INT32_MAX);
  const int64_t trained = config_.max_position_embeddings;
  if (options_.max_model_len && *options_.max_model_len > trained) {
    throw InvalidArgument("--max-model-len is {}, but the model was made for {} positions",
                          *options_.max_model_len, trained);
  }
  const auto wanted = static_cast<int32_t>(std::min<int64_t>(
      options_.max_model_len.value_or(static_cast<int32_t>(trained)), CacheConfig::kMostTokens));
  const int64_t holds = cache.MostTokens(budget_pages, MostStepTokens());
  if (holds < 2 || (options_.max_model_len && holds < wanted)) {
    throw InvalidArgument(
        "a KV cache of {} ({}) holds {} tokens, a context of {} needs {}: give it more memory, or "
        "lower --max-model-len",
        ByteSizeText(std::max<int64_t>(bytes, 0)), why, holds, wanted,
        ByteSizeText(cache.MostPages(wanted, MostStepTokens()) * page_bytes));
  }
  const auto length = static_cast<int32_t>(std::min<int64_t>(wanted, holds));
  if (length < 2) throw InvalidArgument("--max-model-len is {}: it must be at least 2", length);
  const int64_t useful = cache.MostPages(length, MostStepTokens()) * options_.max_num_seqs;
  cache.num_pages = static_cast<int32_t>(std::min(budget_pages, useful));
  scheduler_.max_model_len = length;
  Decide("context", fmt::format("{} tokens", length),
         length < wanted
             ? "shrunk to what the KV cache holds"
             : (options_.max_model_len ? "--max-model-len" : "max_position_embeddings"));
  DescribeCache(budget_pages < useful ? why : "as much as --max-num-seqs requests can use");
  PlanPrefixCaching();
}

void EnginePlan::PlanPrefixCaching() {
  const bool one_path = row_paths().AreOne();
  scheduler_.publish_answers = one_path || options_.fast_prefix;
  if (!options_.enable_prefix_caching) {
    Decide("prefix caching", "off", "--no-enable-prefix-caching");
  } else if (one_path) {
    Decide("prefix caching", "prompts and answers", "all rows take one form of attention");
  } else if (options_.fast_prefix) {
    Decide("prefix caching", "prompts and answers",
           "--fast-prefix: NOT exact where a prompt repeats an earlier answer");
  } else {
    Decide("prefix caching", "prompts",
           "answers take another form of attention; --fast-prefix would reuse them, equal up to "
           "rounding");
  }
  PlanOffload();
}

void EnginePlan::PlanOffload() {
  if (!options_.kv_offload_memory_bytes) return;
  CheckOffloadHolds(options_, ranks() * (scheduler_.cache.PageBytes() + KeptBytesPerPage()));
  Decide("pages that leave the KV cache", OffloadText(options_),
         "--kv-offload-memory-bytes: they come back when a prompt begins alike");
}

std::string EnginePlan::CacheTypeText() const {
  std::string name(DTypeName(kv_dtype_));
  if (kv_dtype_ != DType::kF8E4M3) return name;
  if (config_.family != ModelFamily::kDeepSeekV4) return name + " without scales";
  return fmt::format("{} in groups of {} but for rotated numbers, index keys {}", name,
                     kFp8CacheGroup, DTypeName(DType::kF4E2M1));
}

void EnginePlan::DescribeCache(std::string why) {
  const CacheConfig& cache = scheduler_.cache;
  const int64_t kept = KeptBytesPerPage();
  Decide("KV cache",
         fmt::format("{} pages of {} bytes, {}, {} bytes per token over {} layers{}",
                     cache.num_pages, cache.PageBytes(), CacheTypeText(),
                     BytesPerToken(cache.groups), cache_layers_.size(),
                     kept == 0 ? "" : fmt::format(", and {} for kept hidden rows per page", kept)),
         std::move(why));
  for (const CacheGroupSpec& group : cache.groups) {
    const bool window = group.kind == CacheGroupKind::kSlidingWindow;
    Decide("cache group",
           fmt::format("{}: {} layers, {} tokens per page", group.name, group.layers,
                       group.tokens_per_block),
           window ? fmt::format("rows read the last {} tokens; pages before them are freed while "
                                "the request runs",
                                group.window)
                  : "rows read all tokens before them");
  }
}

}  // namespace outrider
