#include "outrider/ops/weight_loader.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// Buffers that are computed, not stored.
bool IsRedundant(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

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
  const int64_t trunk = config.num_hidden_layers();
  const bool modules_apart = config.family == ModelFamily::kDeepSeekV4;  // mtp.N, not layers.N
  const auto of_model = [&](std::string_view name) {
    return name.starts_with(config.tensor_prefix) && !IsRedundant(name);
  };
  /// "model.layers.61." or "mtp.0.", of a module's tensor; else "".
  const auto module_of = [&](std::string_view name) -> std::string_view {
    const std::string_view own = name.substr(std::min(config.tensor_prefix.size(), name.size()));
    if (!modules_apart && LayerOf(name) < trunk) return "";
    if (modules_apart && !own.starts_with("mtp.")) return "";
    const size_t number = name.find(modules_apart ? "mtp." : "layers.");
    return name.substr(0, name.find('.', name.find('.', number) + 1) + 1);
  };
  // Modules that are there and not declared are fine; other layers behind the trunk are not.
  const int64_t layers = trunk + (modules_apart ? 0 : CountMtpLayers(source(), config));
  for (const std::string& name : source().names()) {
    if (of_model(name) && name.ends_with(".eh_proj.weight") && LayerOf(name) < trunk) {
      throw InvalidArgument(
          "{}: layer {} has an eh_proj.weight, so it is an MTP module, but \"num_hidden_layers\" "
          "of config.json is {}; it must be the number of layers before the modules",
          source().where(), LayerOf(name), trunk);
    }
    if (of_model(name) && LayerOf(name) >= layers) {
      throw InvalidArgument(
          "{}: holds {}, but \"num_hidden_layers\" of config.json is {}{}; it must be the number "
          "of "
          "layers that the files hold",
          source().where(), name, trunk,
          modules_apart
              ? std::string()
              : fmt::format(" and layer {} is no MTP module (it has no eh_proj.weight)", layers));
    }
  }
  std::set<std::string, std::less<>> declared_modules;
  for (const ExpectedTensor& tensor : Declared()) {
    declared_modules.emplace(module_of(tensor.name));
  }
  Check([&](std::string_view name) {
    if (!of_model(name)) return true;
    const std::string_view module = module_of(name);
    return !module.empty() && !declared_modules.contains(module);
  });
}

void WeightLoader::CheckCopy(const WeightSource& source, const ExpectedTensor& copy,
                             const ExpectedTensor& original, const Share& rows,
                             std::string_view why, ThreadPool& pool) {
  constexpr int64_t kRowsPerTask = 64;
  const auto opened = source.Open(copy);
  const auto first_opened = source.Open(original);
  const int64_t cols = opened->cols();
  pool.ParallelForThrowing((rows.count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = rows.first + task * kRowsPerTask;
    const int64_t count = std::min(kRowsPerTask, rows.end() - first);
    std::vector<float> values(static_cast<size_t>(count * cols));
    std::vector<float> others(values.size());
    opened->ReadRows(first, count, values.data());
    first_opened->ReadRows(first, count, others.data());
    const auto [value, other] = std::mismatch(values.begin(), values.end(), others.begin());
    if (value == values.end()) return;
    throw InvalidArgument("{}: {} differs from {} in row {}, but {}", source.where(), copy.name,
                          original.name, first + (value - values.begin()) / cols, why);
  });
}

}  // namespace outrider
