#include "outrider/ops/weight_groups.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

struct Stored {
  std::string text;
  double bits = 0;
};

Stored StoredAs(const WeightTensor& tensor) {
  const std::string_view type = DTypeName(tensor.stored_dtype());
  if (const GroupScales* groups = tensor.group_scales()) {
    const double scale_bits = 8 * static_cast<double>(DTypeSize(groups->dtype));
    return {fmt::format("{}, a {} scale for {} columns", type, DTypeName(groups->dtype),
                        groups->stored_cols),
            4 + scale_bits / static_cast<double>(groups->stored_cols)};
  }
  const double bits = 8 * static_cast<double>(DTypeSize(tensor.stored_dtype()));
  const BlockScales* blocks = tensor.block_scales();
  if (blocks == nullptr) return {std::string(type), bits};
  if (blocks->block_cols < tensor.cols() ||
      (blocks->block_rows > 1 && blocks->block_rows < tensor.rows())) {
    return {fmt::format("{}, a scale for blocks of {} x {}", type, blocks->block_rows,
                        blocks->block_cols),
            bits};
  }
  return {fmt::format("{}, a scale for each {}", type, blocks->block_rows == 1 ? "row" : "matrix"),
          bits};
}

struct Part {
  std::string_view mark;  // in the name of a tensor
  std::string_view name;
};

/// The first mark that a name has decides.
constexpr auto kParts = std::to_array<Part>({
    {".experts.", "routed experts"},
    {".indexer.", "indexers"},
    {".moe.gate_proj", "routed experts"},
    {".moe.up_proj", "routed experts"},
    {".moe.down_proj", "routed experts"},
    {"share_expert", "shared experts"},
    {"shared_experts", "shared experts"},
    {"e_score_correction_bias", "router biases"},
    {"router_bias", "router biases"},
    {".gate.bias", "router biases"},
    {".gate.tid2eid", "experts by token"},
    {".gate.", "routers"},
    {"eh_proj", "draft inputs"},
    {"fc.weight", "draft inputs"},
    {"norm", "norms and others"},
    {"attn.", "attention"},
    {".attention.", "attention"},
    {"mlp.", "dense MLPs"},
    {"ffn.", "dense MLPs"},
    {"embed", "embedding"},
    {"lm_head", "head"},
    {"head.weight", "head"},
    {"shared_head.output", "head"},
});

std::string_view PartOf(std::string_view name) {
  for (const Part& part : kParts) {
    if (name.find(part.mark) != std::string_view::npos) return part.name;
  }
  return "norms and others";
}

}  // namespace

int64_t SumOf(const WeightSizes& sizes) {
  int64_t sum = 0;
  for (const auto& [dtype, bytes] : sizes) sum += bytes;
  return sum;
}

void WeightGroups::Add(const std::string& first_name, std::span<const WeightTensor* const> tensors,
                       const WeightSizes& packed) {
  const Stored stored = StoredAs(*tensors.front());
  const std::string_view name = PartOf(first_name);
  auto group = std::ranges::find_if(
      groups_, [&](const WeightGroup& g) { return g.name == name && g.stored == stored.text; });
  if (group == groups_.end()) {
    groups_.push_back(
        {.name = std::string(name), .stored = stored.text, .stored_bits = stored.bits});
    group = groups_.end() - 1;
  }
  for (const WeightTensor* tensor : tensors) group->weights += tensor->rows() * tensor->cols();
  for (const auto& [dtype, bytes] : packed) group->packed[dtype] += bytes;
}

std::vector<WeightGroup> WeightGroups::Take() {
  std::ranges::stable_sort(groups_, std::ranges::greater(),
                           [](const WeightGroup& group) { return SumOf(group.packed); });
  return std::move(groups_);
}

}  // namespace outrider
