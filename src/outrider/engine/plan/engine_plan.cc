#include "outrider/engine/plan/engine_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "outrider/base/error.h"
#include "outrider/engine/plan/device_rules.h"
#include "outrider/networks/network.h"

namespace outrider {

namespace {

void DescribeThreads(const EngineOptions& options, const ComputeThreads& threads, size_t nodes,
                     Decisions& decisions) {
  decisions.push_back(
      {"compute threads",
       fmt::format("{}{}", threads.count, threads.processors.empty() ? "" : ", pinned"),
       fmt::format("{}{}",
                   options.num_threads > 0 ? "--num-threads" : "all processors of this process",
                   nodes > 1 ? fmt::format("; memory on {} NUMA nodes in turn", nodes) : "")});
}

/// Throws Error where no layer has experts, or layers have unlike ones.
RoutedShape PlanRoutedExperts(const std::string& model, const ModelConfig& config,
                              Decisions& decisions) {
  constexpr const char* kFlag = "--enable-return-routed-experts";
  const RoutedShape shape = RoutedShapeOf(config);
  if (shape.top_k == 0) throw InvalidArgument("{}: no layer of {} has experts", kFlag, model);
  for (const LayerSpec& layer : config.layers) {
    const MoeSpec* const moe = layer.moe();
    if (moe == nullptr) continue;
    if (moe->router.top_k != shape.top_k ||
        moe->router.experts > std::numeric_limits<int16_t>::max()) {
      throw InvalidArgument(
          "{}: tells as many experts in every layer, with numbers of 16 bits; "
          "the layers of {} have others",
          kFlag, model);
    }
  }
  decisions.push_back({"experts of tokens",
                       fmt::format("told: {} layers of {}", shape.layers, shape.top_k), kFlag});
  return shape;
}

/// On the processor only rows that read lists of entries read them in 8 bits.
void CheckDrafterCache(const EngineOptions& options, const EnginePlan& plan) {
  if (plan.device == DeviceKind::kCuda || plan.numbers.kv_dtype != DType::kF8E4M3 ||
      !plan.drafts.own_checkpoint) {
    return;
  }
  throw InvalidArgument(
      "--kv-cache-dtype fp8 on the processor is for layers with an indexer, and the EAGLE-3 "
      "drafter {} has none: use float32 or bfloat16",
      options.speculation.model);
}

}  // namespace

int32_t EnginePlan::MostStepTokens() const {
  const int32_t rows = std::min(max_num_batched_tokens, CacheConfig::kMostTokens);
  return MostDecodeTokens() + std::max(rows - (1 + drafts.k), 0);
}

int32_t EnginePlan::MostDecodeTokens() const {
  return 1 + drafts.k + 1 + std::max(drafts.k, drafts.reach.lookahead);
}

EnginePlan PlanEngine(const EngineOptions& options, const ModelFacts& model,
                      const DeviceFacts& device, Decisions& decisions) {
  EnginePlan plan;
  plan.device = device.chosen.kind;
  plan.ranks = options.tensor_parallel_size;
  plan.cache_ranks = options.data_parallel_attention ? plan.ranks : 1;
  plan.max_num_batched_tokens =
      options.max_num_batched_tokens.value_or(plan.device == DeviceKind::kCuda ? 8192 : 512);
  decisions.push_back({"model",
                       fmt::format("{} ({})", options.model, ModelFamilyName(model.config.family)),
                       options.load_format == LoadFormat::kDummy
                           ? "--load-format dummy: random weights"
                           : fmt::format("model_type {}", model.config.model_type)});
  plan.numbers = PlanNumbers(options, model.config, device, decisions);
  plan.form = PlanForm(options, model.config, plan.numbers.kv_dtype, plan.device, decisions);
  plan.drafts = PlanDrafts(options, model, decisions);
  CheckDrafterCache(options, plan);
  PlanRanks(options, model, plan.device, decisions);
  plan.cache =
      PlanCacheLayout(options, model, plan.drafts, plan.form.cache, plan.numbers.cache(), device);
  DescribeRunningState(options, plan.cache.config, plan.drafts.k, decisions);
  plan.threads = PlanThreads(options, device.processors);
  DescribeThreads(options, plan.threads, device.memory_nodes, decisions);
  CheckRunsOnDevice(options, model, plan);
  if (options.enable_return_routed_experts) {
    plan.routed = PlanRoutedExperts(options.model, model.config, decisions);
  }
  DescribeGpu(model, plan, decisions);
  return plan;
}

}  // namespace outrider
