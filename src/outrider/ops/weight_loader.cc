#include "outrider/ops/weight_loader.h"

#include <algorithm>
#include <string_view>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// Copies of the target's embedding and head that some checkpoints carry in every MTP layer, and
/// buffers that are computed, not stored.
bool IsRedundant(std::string_view name) {
  return name.ends_with(".shared_head.head.weight") ||
         (name.ends_with(".embed_tokens.weight") &&
          name.find(".layers.") != std::string_view::npos) ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// The layer of a "...layers.N..." name, or -1.
int64_t LayerOf(std::string_view name) {
  constexpr std::string_view kKey = "layers.";
  const size_t at = name.find(kKey);
  if (at == std::string_view::npos) return -1;
  int64_t layer = -1;
  for (const char c : name.substr(at + kKey.size())) {
    if (c < '0' || c > '9' || layer > 1'000'000) break;
    layer = std::max<int64_t>(layer, 0) * 10 + (c - '0');
  }
  return layer;
}

}  // namespace

std::vector<WeightGroup> WeightLoader::Groups() {
  WeightGroups groups;
  AddGroups(groups);
  return groups.Take();
}

void WeightLoader::Check(FunctionRef<bool(std::string_view)> ignorable) const {
  source().Check(Declared(), ignorable);
}

void WeightLoader::Check(const ModelConfig& config) const {
  // Modules that are there and not declared are fine; other layers behind the trunk are not.
  const int64_t layers = config.num_hidden_layers() + CountMtpLayers(source(), config);
  const auto of_model = [&](std::string_view name) {
    return name.starts_with(config.tensor_prefix) && !IsRedundant(name);
  };
  for (const std::string& name : source().names()) {
    if (of_model(name) && name.ends_with(".eh_proj.weight") &&
        LayerOf(name) < config.num_hidden_layers()) {
      throw InvalidArgument(
          "{}: layer {} has an eh_proj.weight, so it is an MTP module, but \"num_hidden_layers\" "
          "of config.json is {}; it must be the number of layers before the modules",
          source().where(), LayerOf(name), config.num_hidden_layers());
    }
    if (of_model(name) && LayerOf(name) >= layers) {
      throw InvalidArgument(
          "{}: holds {}, but \"num_hidden_layers\" of config.json is {} and layer {} is no MTP "
          "module (it has no eh_proj.weight); it must be the number of layers that the files hold",
          source().where(), name, config.num_hidden_layers(), layers);
    }
  }
  Check([&](std::string_view name) {
    return !of_model(name) || LayerOf(name) >= config.num_hidden_layers() ||
           name.substr(config.tensor_prefix.size()).starts_with("mtp.");
  });
}

void WeightLoader::CheckCopy(const WeightSource& source, const ExpectedTensor& copy,
                             const ExpectedTensor& original, ThreadPool& pool) {
  constexpr int64_t kRowsPerTask = 64;
  const auto opened = source.Open(copy);
  const auto first_opened = source.Open(original);
  const int64_t rows = opened->rows();
  const int64_t cols = opened->cols();
  pool.ParallelForThrowing((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = task * kRowsPerTask;
    const int64_t count = std::min(kRowsPerTask, rows - first);
    std::vector<float> values(static_cast<size_t>(count * cols));
    std::vector<float> others(values.size());
    opened->ReadRows(first, count, values.data());
    first_opened->ReadRows(first, count, others.data());
    const auto [value, other] = std::mismatch(values.begin(), values.end(), others.begin());
    if (value == values.end()) return;
    throw InvalidArgument(
        "{}: {} differs from {} in row {}, but \"tie_word_embeddings\" of config.json is true; it "
        "must be false, or the two tensors equal",
        source.where(), copy.name, original.name, first + (value - values.begin()) / cols);
  });
}

}  // namespace outrider
