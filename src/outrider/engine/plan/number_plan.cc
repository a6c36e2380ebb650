#include "outrider/engine/plan/number_plan.h"

#include <bit>
#include <optional>
#include <variant>

#include "outrider/attention/row_path.h"
#include "outrider/base/error.h"

namespace outrider {

namespace {

/// The width of a layer's index keys; nothing if it never has any, 0 if it has none.
std::optional<int64_t> IndexWidth(const LayerSpec& layer) {
  if (const auto* compressed = std::get_if<CompressedSpec>(&layer.attention)) {
    return compressed->index_dim;
  }
  const IndexerSpec* indexer = layer.indexer();
  if (indexer == nullptr) return std::nullopt;
  return indexer->dim;
}

void CheckFp8Cache(const EngineOptions& options, const ModelConfig& config,
                   const ChosenDevice& device) {
  if (options.published_cache && config.family != ModelFamily::kDeepSeekV4) {
    throw InvalidArgument(
        "--kv-cache-dtype fp8_published is for DeepSeek-V4, and {} is a {}: use fp8", options.model,
        ModelFamilyName(config.family));
  }
  if (device.kind == DeviceKind::kCuda) return;
  if (RowPathsOf(config, KvCacheForm::kLatent) != RowPaths(RowPath::kListed)) {
    throw InvalidArgument(
        "--kv-cache-dtype fp8 is for a GPU or a model with an indexer (DeepSeek-V3.2, GLM-5, "
        "DeepSeek-V4), and {} is a {} on the processor ({}): use float32 or bfloat16",
        options.model, ModelFamilyName(config.family), device.why);
  }
  for (const LayerSpec& layer : config.layers) {
    const int64_t dim = IndexWidth(layer).value_or(0);
    if (std::has_single_bit(static_cast<uint64_t>(dim)) || dim == 0) continue;
    throw InvalidArgument(
        "--kv-cache-dtype fp8 needs an \"index_head_dim\" that is a power of two, and that of {} "
        "is {}: use float32 or bfloat16",
        options.model, dim);
  }
}

}  // namespace

NumberPlan PlanNumbers(const EngineOptions& options, const ModelConfig& config,
                       const DeviceFacts& device, Decisions& decisions) {
  NumberPlan plan;
  plan.dtype = options.dtype.value_or(config.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  plan.kv_dtype = options.kv_cache_dtype.value_or(plan.dtype);
  if (plan.kv_dtype == DType::kF8E4M3) CheckFp8Cache(options, config, device.chosen);
  if (device.chosen.kind == DeviceKind::kCuda) {
    plan.cache_form = options.published_cache ? Fp8Form::kPublishedNumbers : Fp8Form::kPerTensor;
  }
  plan.weights = {.compute_dtype = plan.dtype,
                  .quantization = options.quantization,
                  .max_fp8_weights_as_bf16 = device.max_fp8_weights_as_bf16,
                  .whole_attention = options.data_parallel_attention};
  decisions.push_back(
      {"dtype", std::string(DTypeName(plan.dtype)),
       options.dtype ? "--dtype" : fmt::format("the checkpoint says {}", DTypeName(config.dtype))});
  const bool int8 = options.quantization == WeightQuantization::kInt8;
  const bool is_cpu = device.chosen.kind == DeviceKind::kCpu;
  const int64_t few = is_cpu ? device.max_fp8_weights_as_bf16 : 0;
  decisions.push_back(
      {"quantization", int8 ? "int8" : "none",
       int8 ? "--quantization: matrices are rounded to 8 bits, with a scale per output"
            : fmt::format("FP8 matrices{} stay 8 bits in memory, others as dtype says",
                          few > 0 ? fmt::format(" of more than {} weights", few) : "")});
  decisions.push_back({"device", is_cpu ? "processor" : "GPU", device.chosen.why});
  if (is_cpu) {
    decisions.push_back({"kernels", device.kernels,
                         fmt::format("best instruction set of this machine: {}", device.best_isa)});
  }
  return plan;
}

}  // namespace outrider
