#include "outrider/ops/weight_loader.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

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

Weight WeightLoader::Handle(const void* packed, int64_t count, int64_t rows, int64_t cols,
                            const WeightCut& declared) const {
  const WeightCut cut = OwnCut(declared);
  OUTRIDER_CHECK(count == 1 || cut.rows != Cut::kRows);
  const int64_t own = cut.rows == Cut::kRows ? rows : OwnShare(cut.rows, rows).count;
  return {count * own, cols, packed, cut};
}

ExpertWeights WeightLoader::Handle(const void* packed, const Experts& experts) const {
  const int64_t count = experts.stacked > 0 ? experts.stacked : std::ssize(experts.routed);
  return {count, OwnShare(Cut::kInner, experts.width).count,
          OwnShare(Cut::kInner, experts.shared_width).count, packed};
}

void WeightLoader::Vector(const float** out, const std::string& name, int64_t size, float added) {
  DeclareValues(out, {name, {size}}, {0, size}, added);
}

void WeightLoader::HeadVector(const float** out, const std::string& name, int64_t size) {
  DeclareValues(out, {name, {size}}, OwnShare(Cut::kHeads, size), 0);
}

void WeightLoader::Values(const float** out, const std::string& name, int64_t rows, int64_t cols) {
  DeclareValues(out, {name, {rows, cols}}, {0, rows * cols}, 0);
}

void WeightLoader::HeadValues(const float** out, const std::string& name, int64_t rows,
                              int64_t cols) {
  const Share own = OwnShare(Cut::kHeads, rows);
  DeclareValues(out, {.name = name, .shape = {rows, cols}, .any_ones = true},
                {own.first * cols, own.count * cols}, 0);
}

void WeightLoader::DeclareValues(const float** out, ExpectedTensor tensor, const Share& own,
                                 float added) {
  Declare(
      {std::move(tensor)},
      [own](const Piece&) {
        return WeightSizes{{DType::kF32, own.count * static_cast<int64_t>(sizeof(float))}};
      },
      [this, out, own, added](const Piece& p, ThreadPool&) {
        const WeightTensor& all = *p.open[0];
        // A file may have them in one row.
        std::vector<float> values(static_cast<size_t>(all.rows() * all.cols()));
        all.ReadRows(0, all.rows(), values.data());
        const auto kept = std::span(values).subspan(static_cast<size_t>(own.first),
                                                    static_cast<size_t>(own.count));
        if (added != 0) {
          for (float& value : kept) value += added;
        }
        *out = static_cast<const float*>(Keep(std::as_bytes(kept)));
      });
}

void WeightLoader::Integers(const int32_t** out, const std::string& name, int64_t rows,
                            int64_t cols, int64_t limit) {
  OUTRIDER_CHECK(limit > 0 && limit <= 1 << 24, "floats hold the integers");
  Declare(
      {{.name = name, .shape = {rows, cols}, .holds_integers = true}},
      [rows, cols](const Piece&) {
        return WeightSizes{{DType::kI32, rows * cols * static_cast<int64_t>(sizeof(int32_t))}};
      },
      [this, out, rows, cols, limit](const Piece& p, ThreadPool&) {
        std::vector<float> values(static_cast<size_t>(rows * cols));
        p.open[0]->ReadRows(0, rows, values.data());
        std::vector<int32_t> integers;
        integers.reserve(values.size());
        for (const float value : values) {
          if (value < 0 || value >= static_cast<float>(limit)) {
            const int64_t at = std::ssize(integers);
            throw InvalidArgument("{}: {} holds {} in row {}, column {}; 0 to {} is needed",
                                  source_.where(), p.tensors[0].name, value, at / cols, at % cols,
                                  limit - 1);
          }
          integers.push_back(static_cast<int32_t>(value));
        }
        *out = static_cast<const int32_t*>(Keep(std::as_bytes(std::span(integers))));
      });
}

void WeightLoader::Copy(const std::string& name, const std::string& original, int64_t rows,
                        int64_t cols, std::string_view why) {
  const Share own = OwnShare(Cut::kRows, rows);
  Declare(
      {{name, {rows, cols}}, {original, {rows, cols}}}, [](const Piece&) { return WeightSizes(); },
      [this, own, why = std::string(why)](const Piece& p, ThreadPool& pool) {
        CheckCopy(p, own, why, pool);
      },
      static_cast<double>(own.count) / static_cast<double>(rows));
}

void WeightLoader::CheckCopy(const Piece& piece, const Share& rows, std::string_view why,
                             ThreadPool& pool) const {
  constexpr int64_t kRowsPerTask = 64;
  const int64_t cols = piece.open[0]->cols();
  pool.ParallelForThrowing((rows.count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = rows.first + task * kRowsPerTask;
    const int64_t count = std::min(kRowsPerTask, rows.end() - first);
    std::vector<float> values(static_cast<size_t>(count * cols));
    std::vector<float> others(values.size());
    piece.open[0]->ReadRows(first, count, values.data());
    piece.open[1]->ReadRows(first, count, others.data());
    const auto [value, other] = std::mismatch(values.begin(), values.end(), others.begin());
    if (value == values.end()) return;
    throw InvalidArgument("{}: {} differs from {} in row {}, but {}", source_.where(),
                          piece.tensors[0].name, piece.tensors[1].name,
                          first + (value - values.begin()) / cols, why);
  });
}

void WeightLoader::Declare(std::vector<ExpectedTensor> tensors,
                           std::function<WeightSizes(const Piece&)> measure,
                           std::function<void(const Piece&, ThreadPool&)> fill, double part) {
  pieces_.push_back({std::move(tensors), std::move(measure), std::move(fill), part});
}

std::vector<ExpectedTensor> WeightLoader::Declared() const {
  std::vector<ExpectedTensor> expected;
  for (const Piece& piece : pieces_) {
    expected.insert(expected.end(), piece.tensors.begin(), piece.tensors.end());
  }
  return expected;
}

const OpenTensors& WeightLoader::Opened(Piece& piece) const {
  if (piece.open.empty()) {
    for (const ExpectedTensor& tensor : piece.tensors) piece.open.push_back(source_.Open(tensor));
  }
  return piece.open;
}

const WeightSizes& WeightLoader::Measured(Piece& piece) const {
  Opened(piece);
  if (!piece.sizes) {
    piece.sizes = piece.measure(piece);
    for (auto& [dtype, bytes] : *piece.sizes) {
      bytes = (bytes + alignment_ - 1) / alignment_ * alignment_;
    }
  }
  return *piece.sizes;
}

WeightSizes WeightLoader::PackedSizes() {
  WeightSizes sizes;
  for (Piece& piece : pieces_) {
    for (const auto& [dtype, bytes] : Measured(piece)) sizes[dtype] += bytes;
  }
  return sizes;
}

std::vector<WeightGroup> WeightLoader::Groups() {
  WeightGroups groups;
  for (Piece& piece : pieces_) {
    const WeightSizes& sizes = Measured(piece);
    if (SumOf(sizes) == 0) continue;
    std::vector<const WeightTensor*> tensors;
    for (const auto& tensor : piece.open) tensors.push_back(tensor.get());
    groups.Add(piece.tensors.front().name, tensors, sizes);
  }
  return groups.Take();
}

int64_t WeightLoader::StoredBytesOf(Piece& piece) const {
  int64_t stored = 0;
  for (const auto& tensor : Opened(piece)) stored += tensor->stored_bytes();
  return static_cast<int64_t>(piece.part * static_cast<double>(stored));
}

int64_t WeightLoader::StoredBytes() {
  int64_t total = 0;
  for (Piece& piece : pieces_) total += StoredBytesOf(piece);
  return total;
}

std::unique_ptr<WeightMemory> WeightLoader::Load(const Device& device, const Progress& progress) {
  Begin(*device.pool);
  const int64_t total = StoredBytes();
  int64_t done = 0;
  for (Piece& piece : pieces_) {
    piece.fill(piece, *device.pool);
    done += StoredBytesOf(piece);
    piece.open.clear();
    if (progress) progress(done, total);
  }
  pieces_.clear();
  return Finish();
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

}  // namespace outrider
