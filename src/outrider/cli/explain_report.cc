#include "outrider/cli/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/cli/memory_table.h"
#include "outrider/cli/parameter_count.h"

namespace outrider::cli {

namespace {

using Json = nlohmann::ordered_json;
using Facts = std::vector<std::pair<std::string, std::string>>;

int64_t DenseLayers(const ModelConfig& config) {
  int64_t dense = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) ++dense;
  }
  return dense;
}

/// "671.0 B", "16.5 M".
std::string CountText(int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.1f} B", number / 1e9);
  return fmt::format("{:.1f} M", number / 1e6);
}

std::string QuantizationText(const ModelConfig& config) {
  const Quantization& quantization = config.quantization;
  if (quantization.method.empty()) return std::string(DTypeName(config.dtype));
  return fmt::format("{} in blocks of {} x {}, the rest {}", quantization.method,
                     quantization.block_rows, quantization.block_cols, DTypeName(config.dtype));
}

Facts ShapeFacts(const ModelConfig& c) {
  const int64_t dense = DenseLayers(c);
  const ParameterCount parameters = CountParameters(c);
  Facts facts = {
      {"layers", fmt::format("{}: {} dense, {} with experts", c.num_hidden_layers, dense,
                             c.num_hidden_layers - dense)},
      {"MTP modules", fmt::format("{} declared", c.num_nextn_predict_layers)},
      {"hidden size", fmt::to_string(c.hidden_size)},
      {"vocabulary", fmt::to_string(c.vocab_size)},
      {"heads", fmt::format("{}: query and key {} + {} rotated, value {}", c.num_attention_heads,
                            c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim)},
      {"latents", fmt::format("key and value {}, query {}", c.kv_lora_rank,
                              c.q_lora_rank > 0 ? fmt::to_string(c.q_lora_rank) : "none")},
      {"dense MLP", fmt::format("width {}", c.intermediate_size)}};
  if (c.n_routed_experts > 0) {
    facts.emplace_back(
        "experts", fmt::format("{} routed in {} groups, {} per token from {} groups; {} shared; "
                               "width {}",
                               c.n_routed_experts, c.n_group, c.num_experts_per_tok, c.topk_group,
                               c.n_shared_experts, c.moe_intermediate_size));
  }
  std::string context = fmt::to_string(c.max_position_embeddings);
  if (c.yarn.has_value()) {
    context += fmt::format(" (YaRN, factor {} over {})", c.yarn->factor,
                           c.yarn->original_max_position_embeddings);
  }
  facts.emplace_back("context", context);
  facts.emplace_back("stored as", QuantizationText(c));
  facts.emplace_back("parameters",
                     fmt::format("{}, {} of them per token; MTP {}", CountText(parameters.target),
                                 CountText(parameters.target_active), CountText(parameters.mtp)));
  return facts;
}

Json SizesJson(const WeightSizes& sizes) {
  Json object = Json::object();
  for (const auto& [dtype, bytes] : sizes) object[std::string(DTypeName(dtype))] = bytes;
  return object;
}

}  // namespace

std::string ExplainText(const std::string& model, const LoadedEngine& explained) {
  const ModelConfig& config = explained.config;
  std::string out = fmt::format("{}: {}{}\n\nShapes\n", model, config.model_type,
                                config.architecture.empty() ? "" : ", " + config.architecture);
  for (const auto& [name, value] : ShapeFacts(config)) {
    out += fmt::format("  {:<12} {}\n", name, value);
  }
  out += "\nMemory\n";
  for (const std::string& line : MemoryLines(explained.memory, 0)) out += "  " + line + "\n";
  out += "\nDecisions\n";
  size_t width = 0;
  for (const Decision& decision : explained.decisions) {
    width = std::max(width, decision.what.size());
  }
  for (const Decision& decision : explained.decisions) {
    out += fmt::format("  {:<{}}  {} ({})\n", decision.what, width, decision.value, decision.why);
  }
  return out;
}

std::string ExplainJson(const std::string& model, const LoadedEngine& explained) {
  const ModelConfig& c = explained.config;
  const MemoryReport& memory = explained.memory;
  const ParameterCount parameters = CountParameters(c);
  Json object = {{"model", model},
                 {"model_type", c.model_type},
                 {"architecture", c.architecture},
                 {"family", ModelFamilyName(c.family)},
                 {"shapes",
                  {{"num_hidden_layers", c.num_hidden_layers},
                   {"num_dense_layers", DenseLayers(c)},
                   {"num_nextn_predict_layers", c.num_nextn_predict_layers},
                   {"hidden_size", c.hidden_size},
                   {"vocab_size", c.vocab_size},
                   {"num_attention_heads", c.num_attention_heads},
                   {"qk_nope_head_dim", c.qk_nope_head_dim},
                   {"qk_rope_head_dim", c.qk_rope_head_dim},
                   {"v_head_dim", c.v_head_dim},
                   {"kv_lora_rank", c.kv_lora_rank},
                   {"q_lora_rank", c.q_lora_rank},
                   {"intermediate_size", c.intermediate_size},
                   {"n_routed_experts", c.n_routed_experts},
                   {"n_shared_experts", c.n_shared_experts},
                   {"num_experts_per_tok", c.num_experts_per_tok},
                   {"moe_intermediate_size", c.moe_intermediate_size},
                   {"max_position_embeddings", c.max_position_embeddings}}},
                 {"parameters",
                  {{"target", parameters.target},
                   {"target_active", parameters.target_active},
                   {"mtp", parameters.mtp}}},
                 {"memory",
                  {{"weight_bytes", SumOf(memory.weights)},
                   {"weight_bytes_by_type", SizesJson(memory.weights)},
                   {"mtp_bytes", SumOf(memory.mtp_weights)},
                   {"mtp_bytes_by_type", SizesJson(memory.mtp_weights)},
                   {"kv_cache_bytes", memory.kv_cache_bytes},
                   {"kv_bytes_per_token", memory.kv_bytes_per_token},
                   {"kv_tokens", memory.kv_tokens},
                   {"kept_row_bytes", memory.kept_row_bytes}}},
                 {"decisions", Json::array()}};
  for (const Decision& decision : explained.decisions) {
    object["decisions"].push_back(
        {{"what", decision.what}, {"value", decision.value}, {"why", decision.why}});
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace outrider::cli
