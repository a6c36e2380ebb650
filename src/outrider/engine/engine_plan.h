// What is decided about an engine before weights are read, from options and config: what it
// computes with, what drafts, what memory holds. Each decision is a line of `outrider explain`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/draft/target_hidden_rows.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/host_fit.h"
#include "outrider/networks/network.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/weight_loader.h"
#include "outrider/sampling/sampler.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// One of the things that layers of a cache group keep.
struct CachePartReport {
  std::string what;
  int32_t layers = 0;
  double bytes_per_token = 0;
};

/// What a cache group takes of the pages that all groups share.
struct CacheGroupReport {
  CacheGroupSpec group;
  std::vector<CachePartReport> parts;  // empty where layers keep one thing
  int64_t bytes_per_token = 0;
  int64_t pages_per_request = 0;  // of a request of the greatest length, at most
};

/// What linear attention keeps of a request in the pages of the cache.
struct RunningStateReport {
  RunningStateSpec spec;
  int64_t state_pages = 0;  // of a state: of a request that runs, and of a checkpoint
  int64_t row_pages = 0;    // of a request that runs
  int64_t tokens_per_checkpoint = 0;
};

/// What is known of the memory of a GPU before the KV cache is made.
struct GpuBudget {
  int64_t total = 0;       // of the GPU
  int64_t usable = 0;      // gpu_memory_utilization of it
  int64_t work_space = 0;  // between operations, libraries and other processes
  bool measured = false;   // false: the work space is an estimate
};

/// What one of several ranks keeps, in bytes.
struct RankMemory {
  int64_t weights = 0;  // of target, modules and drafter
  int64_t cache = 0;    // and kept rows
};

/// Where the memory went, in bytes, and what the cache holds; of the first rank where there are
/// several.
struct MemoryReport {
  WeightSizes weights;                     // target, as computed with
  WeightSizes mtp_weights;                 // MTP modules
  WeightSizes drafter_weights;             // of a checkpoint of its own
  std::vector<WeightGroup> weight_groups;  // of target and modules, and of a drafter
  int64_t kv_cache_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // over all groups, while the token is in every window
  int64_t kv_tokens = 0;           // that the cache holds, of one request if there are windows
  int64_t kv_page_bytes = 0;
  int64_t kv_pages = 0;
  std::vector<CacheGroupReport> kv_groups;
  std::optional<RunningStateReport> state;  // of linear attention
  int64_t kept_row_bytes = 0;     // the target's hidden rows kept for modules that lag, at most
  std::vector<RankMemory> ranks;  // empty: there is one
  std::optional<GpuBudget> gpu;
};

/// A line of `outrider explain`: what was chosen, and why.
struct Decision {
  std::string what;   // e.g. "drafter"
  std::string value;  // e.g. "ChainDrafter, k = 3"
  std::string why;    // e.g. "the checkpoint has 3 chained MTP modules"
};

/// A drafter with a checkpoint of its own.
struct DrafterCheckpoint {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  std::vector<int32_t> taps;  // Eagle3Taps
};

/// Threads of a pool, the caller's included.
struct ComputeThreads {
  int count = 1;
  std::vector<int> processors;  // one for each; empty: they run where the system puts them
};

ComputeThreads ComputeThreadsOf(const EngineOptions& options);

/// Throws Error if the attention backend needs another form of the KV cache than is asked for.
void CheckAttentionOptions(const EngineOptions& options);

/// The options must outlive it.
class EnginePlan {
 public:
  /// Throws Error on anything wrong with the options or the checkpoint's config and headers.
  explicit EnginePlan(const EngineOptions& options);

  DeviceKind device() const { return device_.kind; }
  /// Of the device.
  const Ops& ops() const;
  /// The operations, if they belong to the engine: to be kept as long as the engine.
  std::unique_ptr<Ops> TakeOps() { return std::move(own_ops_); }

  const ModelConfig& config() const { return config_; }
  const WeightSource& source() const { return *source_; }
  /// source() and that of the drafter are not asked for any more.
  void CloseCheckpoints();
  const std::vector<Decision>& decisions() const { return decisions_; }
  DType dtype() const { return dtype_; }
  WeightForm weight_form() const;
  CacheNumbers cache_numbers() const { return {kv_dtype_, dtype_}; }
  KvCacheForm kv_cache_form() const { return form_; }
  RowPaths row_paths() const { return RowPathsOf(config_.first_cached_layer(), form_); }
  /// Of each rank: threads() shared out.
  ComputeThreads ThreadsOf(const RankPlace& place) const;
  int32_t ranks() const { return options_.tensor_parallel_size; }
  int32_t k() const { return k_; }
  int32_t modules_used() const { return modules_used_; }
  /// Null: what drafts is the model's own, or nothing.
  const DrafterCheckpoint* drafter() const { return drafter_ ? &*drafter_ : nullptr; }
  const ComputeThreads& threads() const { return threads_; }
  const AcceptanceOptions& acceptance() const { return acceptance_; }
  bool chained() const { return modules_used_ > 0 && modules_present_ > 1; }
  /// A DSpark drafter is used.
  bool drafts_blocks() const { return config_.dspark && modules_used_ > 0; }
  const SchedulerConfig& scheduler() const { return scheduler_; }
  /// By layer of the cache: the target's, then those of the modules that are used.
  const std::vector<CacheLayerSpec>& cache_layers() const { return cache_layers_; }

  /// Modules lag where fewer drafts than modules may be asked for; but not behind a window, whose
  /// entries could not be computed later.
  KeptRows kept_rows() const;

  MemoryReport Memory() const;

  /// Throws Error, on a processor, if weights and cache do not fit into the memory that the system
  /// would give: what is needed, what is there, what would make it fit.
  void CheckFitsHost() const;

  /// Whether the KV cache takes what is left of a GPU's memory: then the cache is to be planned
  /// anew once weights and work space are in it.
  bool FillsDevice() const {
    return device() == DeviceKind::kCuda && !options_.kv_cache_memory_bytes;
  }
  /// Plans the KV cache in what is free on the GPU now.
  void PlanCacheInFreeMemory();

 private:
  void Decide(std::string what, std::string value, std::string why) {
    decisions_.push_back({std::move(what), std::move(value), std::move(why)});
  }

  /// Throws Error if so many ranks cannot share the model, or do not run on the device.
  void PlanRanks();
  /// On a processor: whether a GPU would run the network.
  void PlanOtherDevice();
  void PlanNumbers();
  /// Throws Error if the model's cache cannot be rounded.
  void CheckFp8Cache() const;
  void PlanCacheForm();
  /// Of attention whose cache has one form.
  void PlanOneCacheForm(std::string why);
  void PlanAttention();
  void PlanDrafter();
  void PlanDSparkDrafter();
  void PlanMtpDrafter();
  void PlanEagle3Drafter();
  void PlanDraftVocabulary();
  /// Of linear attention. Throws Error for more drafts than its kept rows have room for.
  void PlanRunningState();
  void PlanAcceptance();
  void PlanDraftLength();
  void PlanCacheGroups();
  /// Plans the cache in so many bytes, in place of an earlier plan.
  void PlanCache(int64_t bytes, const std::string& why);
  void PlanPrefixCaching();
  void PlanOffload();
  /// As the options say; on a GPU that it fills, as an estimate.
  void PlanFirstCache();
  std::vector<CachePartReport> PartsOf(int32_t group) const;
  std::string CacheTypeText() const;
  void DescribeCache(std::string why);
  void PlanThreads();
  /// Of the target's hidden rows that are kept with a page, at most.
  int64_t KeptBytesPerPage() const;
  /// Rows that a request may have in a step, and positions that its drafter writes behind them.
  int32_t MostStepTokens() const;
  /// Of a rank's part of the model with its modules, and of a drafter with a checkpoint of its own.
  std::pair<NetworkWeightSizes, NetworkWeightSizes> MeasureAllWeights(const WeightForm& form,
                                                                      int32_t rank = 0) const;
  void MeasureRanks();
  int64_t WeightBytes() const;
  /// On a processor: whether weights and cache fit into its memory. On a GPU: whether pages that
  /// leave it do.
  void PlanHostMemory();
  bool HasModules() const { return modules_used_ > 0 || drafter_; }
  bool ModulesHaveWindows() const;

  const EngineOptions& options_;
  ChosenDevice device_;
  std::unique_ptr<Ops> own_ops_;
  const Ops* ops_ = nullptr;
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
  std::vector<Decision> decisions_;
  DType dtype_ = DType::kBF16;
  DType kv_dtype_ = DType::kBF16;
  KvCacheForm form_ = KvCacheForm::kLatent;
  std::optional<DrafterCheckpoint> drafter_;
  int32_t modules_present_ = 0;
  int32_t modules_used_ = 0;
  int32_t k_ = 0;
  int32_t lookahead_ = 0;  // positions that the drafter writes behind a step's rows, if more than k
  ComputeThreads threads_;
  AcceptanceOptions acceptance_;
  std::vector<CacheLayerSpec> cache_layers_;
  SchedulerConfig scheduler_;
  NetworkWeightSizes weight_sizes_;
  NetworkWeightSizes drafter_sizes_;   // of a checkpoint of its own
  std::vector<int64_t> rank_weights_;  // bytes by rank; empty: there is one
  std::optional<GpuBudget> gpu_;
  std::optional<HostFit> host_fit_;  // nothing: a GPU's memory counts, or the system does not tell
  size_t cache_decisions_ = 0;       // where those of PlanCache begin
};

}  // namespace outrider
