// OpenCheckpoint: the tensors of a Hugging Face directory's safetensors files. Longer than most
// files: every stored format's checks stand beside the reads that rely on them.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/quantized_tensors.h"
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/stored_four_bit_tensor.h"
#include "outrider/checkpoint/stored_tensor.h"
#include "outrider/checkpoint/tensor_names.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;  // Kimi-K2's has about 16 MB
constexpr size_t kMaxListed = 20;
// Rows and columns of an FP8 block where config.json says nothing.
constexpr int64_t kDefaultBlock = 128;

enum class ProblemKind { kMissing, kShape, kDType, kScales, kUnexpected };

/// What is wrong with one tensor: its name, and how it is where that needs saying.
struct Problem {
  ProblemKind kind;
  std::string text;
};

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// A name from a file, as untrusted text, fit for a message: without quotes where it needs none.
std::string Printable(const std::string& name) {
  constexpr size_t kLongest = 200;
  const bool plain = name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
                       return c > ' ' && c <= '~';
                     });
  return plain ? name : Shown(name);
}

class CheckpointSource : public WeightSource {
 public:
  /// entries: by the names that loaders ask for.
  CheckpointSource(std::string where, TensorEntries entries, TensorNames names,
                   const Quantization& quantization)
      : where_(std::move(where)),
        entries_(std::move(entries)),
        names_(std::move(names)),
        block_rows_(quantization.block_rows),
        block_cols_(quantization.block_cols) {
    quantized_ = TakeQuantizedTensors(entries_);
  }

  bool Has(std::string_view name) const override { return entries_.contains(name); }

  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override;

  void Check(std::span<const ExpectedTensor> expected,
             FunctionRef<bool(std::string_view)> ignorable) const override;

  std::string where() const override { return where_; }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, entry] : entries_) result.push_back(name);
    return result;
  }

 private:
  std::optional<Problem> Examine(const ExpectedTensor& tensor) const;
  std::optional<Problem> ExamineScales(const ExpectedTensor& tensor) const;
  /// Rows and columns of the blocks that have a scale each; none: the scales do not fit.
  std::optional<std::pair<int64_t, int64_t>> BlockOf(const TensorInfo& weight,
                                                     const TensorInfo& scales) const;
  BlockScales ReadScales(const TensorEntry& entry, const QuantizedParts& parts,
                         std::optional<int64_t> index) const;

  std::string where_;
  TensorEntries entries_;
  TensorNames names_;
  QuantizedTensors quantized_;
  int64_t block_rows_;
  int64_t block_cols_;
};

/// Whether a tensor of that shape is the one that is needed.
bool IsShape(std::vector<int64_t> shape, const ExpectedTensor& tensor) {
  if (!tensor.any_ones) return shape == tensor.shape;
  std::vector<int64_t> needed = tensor.shape;
  std::erase(shape, 1);
  std::erase(needed, 1);
  return shape == needed;
}

std::optional<Problem> CheckpointSource::Examine(const ExpectedTensor& tensor) const {
  const auto it = entries_.find(tensor.name);
  if (it == entries_.end()) return Problem{ProblemKind::kMissing, names_.Stored(tensor.name)};
  const TensorInfo& info = it->second.info;
  if (!IsShape(info.shape, tensor)) {
    return Problem{
        ProblemKind::kShape,
        fmt::format("{} is {}, not {}", info.name, ShapeText(info.shape), ShapeText(tensor.shape))};
  }
  if (tensor.holds_integers) {
    if (info.dtype == DType::kI32 || info.dtype == DType::kI64) return std::nullopt;
    return Problem{ProblemKind::kDType,
                   fmt::format("{} is {}, not I32 or I64", info.name, Shown(info.dtype_name))};
  }
  if (info.dtype == DType::kF4E2M1 || info.dtype == DType::kI4) {
    const QuantizedParts& parts = quantized_.find(tensor.name)->second;
    if (parts.problem.empty()) return std::nullopt;
    return Problem{ProblemKind::kScales, fmt::format("{} {}", info.name, parts.problem)};
  }
  if (!info.dtype || !IsReadable(*info.dtype)) {
    return Problem{ProblemKind::kDType, fmt::format("{} is {}", info.name, Shown(info.dtype_name))};
  }
  return info.dtype == DType::kF8E4M3 ? ExamineScales(tensor) : std::nullopt;
}

std::optional<std::pair<int64_t, int64_t>> CheckpointSource::BlockOf(
    const TensorInfo& weight, const TensorInfo& scales) const {
  const int64_t rows = weight.shape[weight.shape.size() - 2];
  const int64_t cols = weight.shape.back();
  const bool named_inverse = scales.name.ends_with("_scale_inv") || scales.name.ends_with(".scale");
  std::vector<int64_t> shape = scales.shape;
  if (!named_inverse) {
    std::erase(shape, 1);
    if (weight.shape.size() != 2) return std::nullopt;
    if (shape.empty()) return std::pair(rows, cols);
    if (shape == std::vector{rows}) return std::pair<int64_t, int64_t>(1, cols);
  }
  const int64_t block_rows = named_inverse || block_rows_ > 0 ? block_rows_ : kDefaultBlock;
  const int64_t block_cols = named_inverse || block_cols_ > 0 ? block_cols_ : kDefaultBlock;
  std::vector<int64_t> needed = weight.shape;
  needed.back() = (cols + block_cols - 1) / block_cols;
  needed[needed.size() - 2] = (rows + block_rows - 1) / block_rows;
  if (!named_inverse) std::erase(needed, 1);
  if (shape != needed) return std::nullopt;
  return std::pair(block_rows, block_cols);
}

std::optional<Problem> CheckpointSource::ExamineScales(const ExpectedTensor& tensor) const {
  const TensorInfo& info = entries_.find(tensor.name)->second.info;
  const std::string& name = info.name;
  const auto problem = [&name](std::string_view text) {
    return Problem{ProblemKind::kScales, fmt::format("{} {}", name, text)};
  };
  const auto it = quantized_.find(tensor.name);
  const bool named_inverse =
      it == quantized_.end() || !it->second.scales.info.name.ends_with(".weight_scale");
  if (named_inverse && block_rows_ == 0) {
    return problem("(config.json gives no weight_block_size)");
  }
  if (it == quantized_.end()) {
    constexpr std::string_view kWeight = ".weight";
    const std::string base =
        name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : std::string();
    return problem(fmt::format("(no {}_scale_inv{})", name,
                               base.empty() ? "" : fmt::format(" or {}.scale", base)));
  }
  const TensorInfo& scales = it->second.scales.info;
  if (scales.dtype != DType::kF32 && scales.dtype != DType::kBF16 &&
      scales.dtype != DType::kF8E8M0) {
    return problem(
        fmt::format("(scales are {}, not F32, BF16 or F8_E8M0)", Shown(scales.dtype_name)));
  }
  if (info.shape.size() != (tensor.index ? 3 : 2)) return problem("(only matrices have blocks)");
  if (BlockOf(info, scales)) return std::nullopt;
  if (!named_inverse) {
    return problem(
        fmt::format("(scales are {}: one for the tensor, for each row, or for each "
                    "block is needed)",
                    ShapeText(scales.shape)));
  }
  std::vector<int64_t> needed = info.shape;
  int64_t& rows = *(needed.end() - 2);
  rows = (rows + block_rows_ - 1) / block_rows_;
  needed.back() = (needed.back() + block_cols_ - 1) / block_cols_;
  return problem(
      fmt::format("(scales are {}, not {})", ShapeText(scales.shape), ShapeText(needed)));
}

namespace {

/// Whether the e4m3 codes of a block of matrix `index` of a tensor are zeros. rows, cols: the first
/// one and how many, which may go past the end.
bool IsBlockOfZeros(const TensorEntry& entry, int64_t index, std::pair<int64_t, int64_t> rows,
                    std::pair<int64_t, int64_t> cols) {
  const int64_t num_rows = *(entry.info.shape.end() - 2);
  const int64_t num_cols = entry.info.shape.back();
  const int64_t end_row = std::min(rows.first + rows.second, num_rows);
  std::vector<uint8_t> codes(static_cast<size_t>(std::min(cols.second, num_cols - cols.first)));
  for (int64_t row = rows.first; row < end_row; ++row) {
    const int64_t at = (index * num_rows + row) * num_cols + cols.first;
    entry.file->ReadAt(entry.info.begin + static_cast<uint64_t>(at), codes.size(), codes.data());
    // A zero may have a sign.
    if (std::ranges::any_of(codes, [](uint8_t code) { return (code & 0x7f) != 0; })) return false;
  }
  return true;
}

}  // namespace

BlockScales CheckpointSource::ReadScales(const TensorEntry& entry, const QuantizedParts& parts,
                                         std::optional<int64_t> index) const {
  const TensorEntry& scales = parts.scales;
  const StoredTensor tensor(scales.file, scales.info, {});
  const auto [block_rows, block_cols] = *BlockOf(entry.info, scales.info);
  const int64_t rows = index ? scales.info.shape[1] : tensor.rows();
  const int64_t count = rows * tensor.cols();
  BlockScales result{.block_rows = block_rows,
                     .block_cols = block_cols,
                     .stored_bytes = tensor.stored_bytes() / tensor.rows() * rows,
                     .values = std::vector<float>(static_cast<size_t>(count))};
  tensor.ReadRows(index.value_or(0) * rows, rows, result.values.data());
  if (!std::all_of(result.values.begin(), result.values.end(),
                   [](float scale) { return std::isfinite(scale); })) {
    throw InvalidArgument("{}: {} holds a value that is not finite", scales.file->path().string(),
                          scales.info.name);
  }
  const int64_t per_row = (entry.info.shape.back() + block_cols - 1) / block_cols;
  for (int64_t i = 0; i < count; ++i) {
    if (result.values[static_cast<size_t>(i)] != 0 ||
        IsBlockOfZeros(entry, index.value_or(0), {i / per_row * block_rows, block_rows},
                       {i % per_row * block_cols, block_cols})) {
      continue;
    }
    throw InvalidArgument("{}: {} holds a scale of zero in row {}, column {}",
                          scales.file->path().string(), scales.info.name,
                          index.value_or(0) * rows + i / per_row, i % per_row);
  }
  return result;
}

std::unique_ptr<WeightTensor> CheckpointSource::Open(const ExpectedTensor& expected) const {
  const std::optional<Problem> problem = Examine(expected);
  if (problem) {
    switch (problem->kind) {
      case ProblemKind::kMissing:
        throw InvalidArgument("{}: no tensor {}", where_, problem->text);
      case ProblemKind::kDType:
        throw InvalidArgument("{}: tensor {}; F32, BF16, F16 and F8_E4M3 can be read", where_,
                              problem->text);
      case ProblemKind::kScales:
        throw InvalidArgument("{}: tensor is of 8 or 4 bits without usable scales: {}", where_,
                              problem->text);
      default:
        throw InvalidArgument("{}: tensor {}", where_, problem->text);
    }
  }
  const TensorEntry& entry = entries_.find(expected.name)->second;
  const auto quantized = quantized_.find(expected.name);
  TensorInfo info = entry.info;
  if (info.dtype == DType::kF4E2M1 || info.dtype == DType::kI4) {
    const QuantizedParts& parts = quantized->second;
    CheckStoredShape(parts, info);
    const bool int4 = info.dtype == DType::kI4;
    return std::make_unique<StoredFourBitTensor>(
        entry, parts.scales,
        GroupScales{.cols = int4 ? kInt4Group : parts.group_cols,
                    .stored_cols = parts.group_cols,
                    .dtype = *parts.scales.info.dtype,
                    .global = ReadGlobalScale(parts)});
  }
  if (expected.index) {
    OUTRIDER_CHECK(info.shape.size() == 3 && *expected.index < info.shape[0]);
    const uint64_t bytes = (info.end - info.begin) / static_cast<uint64_t>(info.shape[0]);
    info.begin += static_cast<uint64_t>(*expected.index) * bytes;
    info.end = info.begin + bytes;
    info.shape.erase(info.shape.begin());
  }
  const bool fp8 = info.dtype == DType::kF8E4M3;
  return std::make_unique<StoredTensor>(
      entry.file, info, fp8 ? ReadScales(entry, quantized->second, expected.index) : BlockScales{});
}

void CheckpointSource::Check(std::span<const ExpectedTensor> expected,
                             FunctionRef<bool(std::string_view)> ignorable) const {
  std::map<ProblemKind, std::vector<std::string>> problems;
  std::set<std::string_view> expected_names;
  for (const ExpectedTensor& tensor : expected) {
    if (!expected_names.insert(tensor.name).second) continue;  // a stack's other matrices
    if (auto problem = Examine(tensor)) {
      problems[problem->kind].push_back(std::move(problem->text));
    }
  }
  for (const auto& [name, entry] : entries_) {
    if (!expected_names.contains(name) && !ignorable(name)) {
      problems[ProblemKind::kUnexpected].push_back(Printable(entry.info.name));
    }
  }
  if (problems.empty()) return;

  std::vector<std::string> parts;
  for (auto& [kind, texts] : problems) {
    const char* title = kind == ProblemKind::kMissing ? "missing"
                        : kind == ProblemKind::kShape ? "of another shape"
                        : kind == ProblemKind::kDType
                            ? "of a type other than F32, BF16, F16 and F8_E4M3"
                        : kind == ProblemKind::kScales ? "of 8 or 4 bits without usable scales"
                                                       : "unexpected";
    const size_t count = texts.size();
    if (count > kMaxListed) texts.resize(kMaxListed);
    parts.push_back(fmt::format(
        "{} {}: {}{}", count, title, fmt::join(texts, ", "),
        count > kMaxListed ? fmt::format(" and {} more", count - kMaxListed) : std::string()));
  }
  throw InvalidArgument("{}: the tensors do not fit config.json: {}", where_,
                        fmt::join(parts, "; "));
}

/// Adds the tensors of one file. With `wanted`, only those, and each must be there.
void AddFile(const fs::path& path, const std::vector<std::string>* wanted, TensorEntries& entries) {
  auto file = std::make_shared<const File>(path);
  TensorEntries found;
  for (TensorInfo& info : ReadSafetensorsHeader(path)) {
    std::string name = info.name;
    found.emplace(std::move(name), TensorEntry{file, std::move(info)});
  }
  if (wanted == nullptr) {
    entries.merge(found);
    return;
  }
  for (const std::string& name : *wanted) {
    auto node = found.extract(name);
    if (node.empty()) {
      throw InvalidArgument("{}: has no tensor {}, which {} says it has", path.string(),
                            Shown(name), kIndexFile);
    }
    entries.insert(std::move(node));
  }
}

/// The file name that the index gives for one tensor; it must stay inside of the directory.
std::string CheckedFileName(const json& value, const std::string& tensor, std::string_view where) {
  if (!value.is_string()) {
    throw InvalidArgument("{}: weight_map gives {} for tensor {}, not a file name", where,
                          Shown(value), Shown(tensor));
  }
  std::string name = value.get<std::string>();
  const fs::path path(name);
  const bool leaves =
      path.is_absolute() || std::find(path.begin(), path.end(), fs::path("..")) != path.end();
  if (leaves || name.empty() || name.find('\0') != std::string::npos) {
    throw InvalidArgument(
        "{}: weight_map gives {} for tensor {}; a file in the same directory is "
        "needed",
        where, Shown(value), Shown(tensor));
  }
  return name;
}

void AddIndexedFiles(const fs::path& directory, const fs::path& index_path,
                     TensorEntries& entries) {
  const std::string where = index_path.string();
  const json index = ParseJson(ReadTextFile(index_path, kMaxIndexBytes), where);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    throw InvalidArgument("{}: needs an object \"weight_map\" of tensor names and files", where);
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    files[CheckedFileName(file, tensor, where)].push_back(tensor);
  }
  std::string missing;
  for (const auto& [file, tensors] : files) {
    std::error_code ignored;
    if (!fs::exists(directory / file, ignored)) missing += (missing.empty() ? "" : ", ") + file;
  }
  if (!missing.empty()) {
    std::error_code ignored;
    throw NotFound(
        "{}: files that {} names are missing: {}{}", directory.string(), kIndexFile, missing,
        fs::exists(directory / kSingleFile, ignored)
            ? fmt::format("; {} is there, and counts where there is no index", kSingleFile)
            : "");
  }
  for (const auto& [file, tensors] : files) AddFile(directory / file, &tensors, entries);
}

/// The entries under the names that loaders ask for.
TensorEntries Renamed(TensorEntries entries, const TensorNames& names, const std::string& where) {
  TensorEntries result;
  while (!entries.empty()) {
    auto node = entries.extract(entries.begin());
    std::string stored = std::exchange(node.key(), names.Expected(node.key()));
    const auto inserted = result.insert(std::move(node));
    if (!inserted.inserted) {
      throw InvalidArgument("{}: holds both {} and {}, two names of one tensor", where,
                            Printable(inserted.position->second.info.name), Printable(stored));
    }
  }
  return result;
}

}  // namespace

std::unique_ptr<WeightSource> OpenCheckpoint(const fs::path& directory, const ModelConfig& config) {
  const Quantization& quantization = config.quantization;
  CheckMethod(directory.string(), quantization.method);
  TensorEntries entries;
  std::error_code ignored;
  // The index counts: a single file beside it may be a part of another checkpoint.
  if (fs::exists(directory / kIndexFile, ignored)) {
    AddIndexedFiles(directory, directory / kIndexFile, entries);
  } else if (fs::exists(directory / kSingleFile, ignored)) {
    AddFile(directory / kSingleFile, nullptr, entries);
  } else {
    throw NotFound("{}: has neither {} nor {}", directory.string(), kSingleFile, kIndexFile);
  }
  const auto foreign = std::ranges::find_if(
      entries, [](const auto& entry) { return entry.first.ends_with(".qweight"); });
  if (foreign != entries.end()) {
    throw InvalidArgument("{}: holds {}: {}", directory.string(), Printable(foreign->first),
                          kForeignInt4);
  }
  const TensorNames names = TensorNames::Find(
      config.tensor_prefix, [&](std::string_view name) { return entries.contains(name); });
  entries = Renamed(std::move(entries), names, directory.string());
  return std::make_unique<CheckpointSource>(directory.string(), std::move(entries), names,
                                            quantization);
}

}  // namespace outrider
