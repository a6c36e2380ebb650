// What is decided about an engine before weights are read, from options and config: what it
// computes with, what drafts, what memory holds. Each decision is a line of `outrider explain`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/engine/engine_options.h"
#include "outrider/networks/network.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/weight_loader.h"
#include "outrider/sampling/sampler.h"
#include "outrider/schedule/scheduler.h"
#include "outrider/speculate/target_hidden_rows.h"

namespace outrider {

/// Where the memory went, in bytes, and what the cache holds.
struct MemoryReport {
  WeightSizes weights;      // target, as computed with
  WeightSizes mtp_weights;  // MTP modules
  int64_t kv_cache_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_tokens = 0;
  int64_t kept_row_bytes = 0;  // the target's hidden rows kept for modules that lag, at most
};

/// A line of `outrider explain`: what was chosen, and why.
struct Decision {
  std::string what;   // e.g. "drafter"
  std::string value;  // e.g. "MtpChainDrafter, k = 3"
  std::string why;    // e.g. "the checkpoint has 3 chained MTP modules"
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

  const ModelConfig& config() const { return config_; }
  const WeightSource& source() const { return *source_; }
  const std::vector<Decision>& decisions() const { return decisions_; }
  DType dtype() const { return dtype_; }
  WeightForm weight_form() const;
  DType kv_dtype() const { return kv_dtype_; }
  KvCacheForm kv_cache_form() const { return form_; }
  int32_t k() const { return k_; }
  int32_t modules_used() const { return modules_used_; }
  const ComputeThreads& threads() const { return threads_; }
  const AcceptanceOptions& acceptance() const { return acceptance_; }
  bool chained() const { return modules_present_ > 1; }
  const SchedulerConfig& scheduler() const { return scheduler_; }
  int32_t cache_layers() const {
    return static_cast<int32_t>(config_.num_hidden_layers()) + modules_used_;
  }
  int32_t cache_width() const {
    return static_cast<int32_t>(CacheWidth(form_, CacheShapeOf(config_)));
  }

  /// Modules lag where fewer drafts than modules may be asked for.
  KeptRows kept_rows() const {
    return options_.speculation.DraftLengthVaries() ? KeptRows::kAll : KeptRows::kLast;
  }
  int64_t kept_bytes_per_token() const {
    const bool keeps = modules_used_ > 0 && kept_rows() == KeptRows::kAll;
    return keeps ? TargetHiddenRows::BytesPerToken(config_.hidden_size) : 0;
  }

  MemoryReport Memory(const NetworkWeightSizes& sizes) const;

 private:
  void Decide(std::string what, std::string value, std::string why) {
    decisions_.push_back({std::move(what), std::move(value), std::move(why)});
  }

  void PlanNumbers();
  void PlanCacheForm();
  void PlanAttention();
  void PlanDrafter();
  void PlanDraftVocabulary();
  void PlanAcceptance();
  void PlanDraftLength();
  void PlanCache();
  void PlanThreads();

  const EngineOptions& options_;
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
  std::vector<Decision> decisions_;
  DType dtype_ = DType::kBF16;
  DType kv_dtype_ = DType::kBF16;
  KvCacheForm form_ = KvCacheForm::kLatent;
  int32_t modules_present_ = 0;
  int32_t modules_used_ = 0;
  int32_t k_ = 0;
  ComputeThreads threads_;
  AcceptanceOptions acceptance_;
  SchedulerConfig scheduler_;
};

}  // namespace outrider
