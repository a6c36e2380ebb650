#include "outrider/cli/explain_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "outrider/base/byte_size.h"
#include "outrider/base/dtype.h"
#include "outrider/cli/explain_shapes.h"
#include "outrider/cli/memory_table.h"
#include "outrider/cli/parameter_count.h"

namespace outrider::cli {

namespace {

using Json = nlohmann::ordered_json;

Json SizesJson(const WeightSizes& sizes) {
  Json object = Json::object();
  for (const auto& [dtype, bytes] : sizes) object[std::string(DTypeName(dtype))] = bytes;
  return object;
}

/// Null without linear attention.
Json StateJson(const MemoryReport& memory) {
  if (!memory.state) return nullptr;
  const RunningStateReport& state = *memory.state;
  return {{"request_bytes", state.spec.StateBytes() + state.spec.RowBytes()},
          {"request_pages", state.state_pages + state.row_pages},
          {"checkpoint_bytes", state.spec.StateBytes()},
          {"checkpoint_pages", state.state_pages},
          {"tokens_per_checkpoint", state.tokens_per_checkpoint}};
}

/// Of the greatest length; beside its history windows and states.
Json RequestJson(const MemoryReport& memory) {
  const RequestPages& request = memory.request;
  return {{"history_pages", request.history},
          {"generating_pages", request.generating},
          {"generating_bytes", request.generating * memory.kv_page_bytes},
          {"prompt_pages", request.prompt},
          {"prompt_bytes", request.prompt * memory.kv_page_bytes}};
}

/// Null without a GPU.
Json GpuJson(const MemoryReport& memory) {
  if (!memory.gpu) return nullptr;
  return {{"total_bytes", memory.gpu->total},
          {"usable_bytes", memory.gpu->usable},
          {"work_space_bytes", memory.gpu->work_space},
          {"measured", memory.gpu->measured}};
}

Json RanksJson(const MemoryReport& memory) {
  Json ranks = Json::array();
  for (const RankMemory& rank : memory.ranks) {
    ranks.push_back({{"weight_bytes", rank.weights}, {"cache_bytes", rank.cache}});
  }
  return ranks;
}

Json WeightGroupsJson(const MemoryReport& memory) {
  Json groups = Json::array();
  for (const WeightGroup& group : memory.weight_groups) {
    groups.push_back({{"name", group.name},
                      {"weights", group.weights},
                      {"stored", group.stored},
                      {"stored_bits", group.stored_bits},
                      {"bytes_by_type", SizesJson(group.packed)}});
    if (memory.ranks.empty()) groups.back()["memory_bits"] = group.packed_bits();
  }
  return groups;
}

Json GroupsJson(const MemoryReport& memory) {
  Json groups = Json::array();
  for (const CacheGroupReport& report : memory.kv_groups) {
    const CacheGroupSpec& group = report.group;
    Json parts = Json::array();
    for (const CachePartReport& part : report.parts) {
      parts.push_back({{"name", part.what},
                       {"layers", part.layers},
                       {"bytes_per_token", part.bytes_per_token}});
    }
    groups.push_back({{"name", group.name},
                      {"layers", group.layers},
                      {"window", group.window},
                      {"tokens_per_page", group.tokens_per_block},
                      {"bytes_per_token", report.bytes_per_token},
                      {"pages_per_request", report.pages_per_request},
                      {"pages_generating", report.pages_generating},
                      {"parts", parts}});
  }
  return groups;
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
  out += "\nWeights\n";
  size_t name_width = 0;
  for (const WeightGroup& group : explained.memory.weight_groups) {
    name_width = std::max(name_width, group.name.size());
  }
  for (const WeightGroup& group : explained.memory.weight_groups) {
    std::vector<std::string_view> types;
    for (const auto& [dtype, bytes] : group.packed) types.push_back(DTypeName(dtype));
    // A rank has some of the weights: bytes by all of them are no weight's bits.
    const std::string in_memory =
        explained.memory.ranks.empty()
            ? fmt::format("in memory {}: {:.2f} bits", fmt::join(types, ", "), group.packed_bits())
            : fmt::format("on the first rank {}", fmt::join(types, ", "));
    out += fmt::format("  {:<{}}  {} of {}: {} bits; {}, {}\n", group.name, name_width,
                       ParameterCountText(group.weights), group.stored, group.stored_bits,
                       in_memory, ByteSizeText(SumOf(group.packed)));
  }
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
                 {"shapes", ShapesJson(c)},
                 {"parameters",
                  {{"target", parameters.target},
                   {"target_active", parameters.target_active},
                   {"mtp", parameters.mtp}}},
                 {"memory",
                  {{"weight_bytes", SumOf(memory.weights)},
                   {"weight_bytes_by_type", SizesJson(memory.weights)},
                   {"mtp_bytes", SumOf(memory.mtp_weights)},
                   {"mtp_bytes_by_type", SizesJson(memory.mtp_weights)},
                   {"weight_groups", WeightGroupsJson(memory)},
                   {"drafter_bytes", SumOf(memory.drafter_weights)},
                   {"drafter_bytes_by_type", SizesJson(memory.drafter_weights)},
                   {"kv_cache_bytes", memory.kv_cache_bytes},
                   {"kv_bytes_per_token", memory.kv_bytes_per_token},
                   {"kv_tokens", memory.kv_tokens},
                   {"kv_pages", memory.kv_pages},
                   {"kv_page_bytes", memory.kv_page_bytes},
                   {"kv_groups", GroupsJson(memory)},
                   {"running_state", StateJson(memory)},
                   {"request", RequestJson(memory)},
                   {"kept_row_bytes", memory.kept_row_bytes},
                   {"ranks", RanksJson(memory)},
                   {"cache_ranks", memory.cache_ranks},
                   {"gpu", GpuJson(memory)}}},
                 {"decisions", Json::array()}};
  for (const Decision& decision : explained.decisions) {
    object["decisions"].push_back(
        {{"what", decision.what}, {"value", decision.value}, {"why", decision.why}});
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace outrider::cli
