// OpenCheckpoint: the tensors of a Hugging Face directory's safetensors files.
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
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/stored_fp4_tensor.h"
#include "outrider/checkpoint/stored_tensor.h"
#include "outrider/checkpoint/tensor_names.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kWeightSuffix = ".weight";
// Of the tensor's name; or kE8m0Suffix in place of kWeightSuffix (DeepSeek-V4).
constexpr std::string_view kScaleSuffix = "_scale_inv";
constexpr std::string_view kE8m0Suffix = ".scale";
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;  // Kimi-K2's has about 16 MB
constexpr size_t kMaxListed = 20;

struct Entry {
  std::shared_ptr<const File> file;
  TensorInfo info;
};
using Entries = std::map<std::string, Entry, std::less<>>;  // infos have the names of the files

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
  CheckpointSource(std::string where, Entries entries, TensorNames names,
                   const Quantization& quantization)
      : where_(std::move(where)),
        entries_(std::move(entries)),
        names_(std::move(names)),
        block_rows_(quantization.block_rows),
        block_cols_(quantization.block_cols) {
    for (const auto& [name, entry] : entries_) {
      total_bytes_ += static_cast<int64_t>(entry.info.end - entry.info.begin);
    }
    MoveScalesAside();
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

  int64_t total_stored_bytes() const override { return total_bytes_; }

 private:
  void MoveScalesAside();
  std::optional<Problem> Examine(const ExpectedTensor& tensor) const;
  std::optional<Problem> ExamineScales(const ExpectedTensor& tensor) const;
  std::optional<Problem> ExamineFp4Scales(const ExpectedTensor& tensor) const;
  BlockScales ReadScales(const Entry& scales, std::optional<int64_t> index) const;

  std::string where_;
  Entries entries_;
  TensorNames names_;
  Entries scales_;  // of FP8 and FP4 tensors, by the name of the tensor they scale
  int64_t block_rows_;
  int64_t block_cols_;
  int64_t total_bytes_ = 0;
};

/// The name of the tensor whose scales would have this name, or "".
std::string ScaledBy(std::string_view name) {
  if (name.ends_with(kScaleSuffix)) {
    return std::string(name.substr(0, name.size() - kScaleSuffix.size()));
  }
  if (!name.ends_with(kE8m0Suffix)) return "";
  return fmt::format("{}{}", name.substr(0, name.size() - kE8m0Suffix.size()), kWeightSuffix);
}

/// Bytes with e8m0 scales are pairs of FP4 codes: then `weight` becomes a tensor of those.
void RecogniseFp4(TensorInfo& weight, const TensorInfo& scales) {
  const bool is_pair = weight.dtype == DType::kI8 && scales.dtype == DType::kF8E8M0 &&
                       weight.shape.size() == 2 && weight.shape[1] <= INT64_MAX / 2;
  if (!is_pair) return;
  weight.dtype = DType::kF4E2M1;
  weight.shape[1] *= 2;
}

void CheckpointSource::MoveScalesAside() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    auto next = std::next(it);
    const std::string name = ScaledBy(it->first);
    const auto base = name.empty() ? entries_.end() : entries_.find(name);
    if (base != entries_.end() && !scales_.contains(name)) {
      TensorInfo& weight = base->second.info;
      RecogniseFp4(weight, it->second.info);
      if (weight.dtype == DType::kF8E4M3 || weight.dtype == DType::kF4E2M1) {
        scales_.emplace(name, std::move(it->second));
        entries_.erase(it);
      }
    }
    it = next;
  }
}

std::optional<Problem> CheckpointSource::Examine(const ExpectedTensor& tensor) const {
  const auto it = entries_.find(tensor.name);
  if (it == entries_.end()) return Problem{ProblemKind::kMissing, names_.Stored(tensor.name)};
  const TensorInfo& info = it->second.info;
  if (tensor.shape != info.shape) {
    return Problem{
        ProblemKind::kShape,
        fmt::format("{} is {}, not {}", info.name, ShapeText(info.shape), ShapeText(tensor.shape))};
  }
  if (tensor.holds_integers) {
    if (info.dtype == DType::kI32 || info.dtype == DType::kI64) return std::nullopt;
    return Problem{ProblemKind::kDType,
                   fmt::format("{} is {}, not I32 or I64", info.name, Shown(info.dtype_name))};
  }
  if (info.dtype == DType::kF4E2M1) return ExamineFp4Scales(tensor);
  if (!info.dtype || !IsReadable(*info.dtype)) {
    return Problem{ProblemKind::kDType, fmt::format("{} is {}", info.name, Shown(info.dtype_name))};
  }
  return info.dtype == DType::kF8E4M3 ? ExamineScales(tensor) : std::nullopt;
}

std::optional<Problem> CheckpointSource::ExamineScales(const ExpectedTensor& tensor) const {
  const TensorInfo& info = entries_.find(tensor.name)->second.info;
  const std::string& name = info.name;
  const auto problem = [&name](std::string_view text) {
    return Problem{ProblemKind::kScales, fmt::format("{} {}", name, text)};
  };
  if (block_rows_ == 0) return problem("(config.json gives no weight_block_size)");
  const auto it = scales_.find(tensor.name);
  if (it == scales_.end()) {
    const bool may_be_e8m0 = name.ends_with(kWeightSuffix);
    return problem(fmt::format(
        "(no {}{}{})", name, kScaleSuffix,
        may_be_e8m0 ? fmt::format(" or {}{}", name.substr(0, name.size() - kWeightSuffix.size()),
                                  kE8m0Suffix)
                    : std::string()));
  }
  const TensorInfo& scales = it->second.info;
  if (scales.dtype != DType::kF32 && scales.dtype != DType::kBF16 &&
      scales.dtype != DType::kF8E8M0) {
    return problem(
        fmt::format("(scales are {}, not F32, BF16 or F8_E8M0)", Shown(scales.dtype_name)));
  }
  std::vector<int64_t> needed = info.shape;
  if (needed.size() != (tensor.index ? 3 : 2)) return problem("(only matrices have blocks)");
  int64_t& cols = needed.back();
  int64_t& rows = *(needed.end() - 2);
  rows = (rows + block_rows_ - 1) / block_rows_;
  cols = (cols + block_cols_ - 1) / block_cols_;
  if (scales.shape == needed) return std::nullopt;
  return problem(
      fmt::format("(scales are {}, not {})", ShapeText(scales.shape), ShapeText(needed)));
}

std::optional<Problem> CheckpointSource::ExamineFp4Scales(const ExpectedTensor& tensor) const {
  const TensorInfo& weight = entries_.find(tensor.name)->second.info;
  const TensorInfo& scales = scales_.find(tensor.name)->second.info;
  const std::vector<int64_t> needed = {weight.shape[0], weight.shape[1] / kFp4Group};
  if (weight.shape[1] % kFp4Group == 0 && scales.shape == needed) return std::nullopt;
  return Problem{ProblemKind::kScales,
                 fmt::format("{} (scales are {}, not one for every {} columns of {})", weight.name,
                             ShapeText(scales.shape), kFp4Group, ShapeText(weight.shape))};
}

BlockScales CheckpointSource::ReadScales(const Entry& scales, std::optional<int64_t> index) const {
  const StoredTensor tensor(scales.file, scales.info, {});
  const int64_t rows = index ? scales.info.shape[1] : tensor.rows();
  const int64_t count = rows * tensor.cols();
  BlockScales result{.block_rows = block_rows_,
                     .block_cols = block_cols_,
                     .stored_bytes = tensor.stored_bytes() / tensor.rows() * rows,
                     .values = std::vector<float>(static_cast<size_t>(count))};
  tensor.ReadRows(index.value_or(0) * rows, rows, result.values.data());
  if (!std::all_of(result.values.begin(), result.values.end(),
                   [](float scale) { return std::isfinite(scale); })) {
    throw InvalidArgument("{}: {} holds a value that is not finite", scales.file->path().string(),
                          scales.info.name);
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
        throw InvalidArgument("{}: tensor is FP8 or FP4 without usable scales: {}", where_,
                              problem->text);
      default:
        throw InvalidArgument("{}: tensor {}", where_, problem->text);
    }
  }
  const Entry& entry = entries_.find(expected.name)->second;
  TensorInfo info = entry.info;
  if (info.dtype == DType::kF4E2M1) {
    const Entry& scales = scales_.find(expected.name)->second;
    return std::make_unique<StoredFp4Tensor>(entry.file, info, scales.file, scales.info);
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
      entry.file, info,
      fp8 ? ReadScales(scales_.find(expected.name)->second, expected.index) : BlockScales{});
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
                        : kind == ProblemKind::kScales ? "FP8 or FP4 without usable scales"
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
void AddFile(const fs::path& path, const std::vector<std::string>* wanted, Entries& entries) {
  auto file = std::make_shared<const File>(path);
  Entries found;
  for (TensorInfo& info : ReadSafetensorsHeader(path)) {
    std::string name = info.name;
    found.emplace(std::move(name), Entry{file, std::move(info)});
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

void AddIndexedFiles(const fs::path& directory, const fs::path& index_path, Entries& entries) {
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
    throw NotFound("{}: files that {} names are missing: {}", directory.string(), kIndexFile,
                   missing);
  }
  for (const auto& [file, tensors] : files) AddFile(directory / file, &tensors, entries);
}

/// The entries under the names that loaders ask for.
Entries Renamed(Entries entries, const TensorNames& names, const std::string& where) {
  Entries result;
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
  if (!quantization.method.empty() && quantization.method != "fp8") {
    throw InvalidArgument(
        "{}: quantization {} cannot be loaded; \"fp8\" with weight_block_size, or "
        "none, can",
        directory.string(), Shown(quantization.method));
  }
  Entries entries;
  std::error_code ignored;
  if (fs::exists(directory / kSingleFile, ignored)) {
    AddFile(directory / kSingleFile, nullptr, entries);
  } else if (fs::exists(directory / kIndexFile, ignored)) {
    AddIndexedFiles(directory, directory / kIndexFile, entries);
  } else {
    throw NotFound("{}: has neither {} nor {}", directory.string(), kSingleFile, kIndexFile);
  }
  const TensorNames names = TensorNames::Find(
      config.tensor_prefix, [&](std::string_view name) { return entries.contains(name); });
  entries = Renamed(std::move(entries), names, directory.string());
  return std::make_unique<CheckpointSource>(directory.string(), std::move(entries), names,
                                            quantization);
}

}  // namespace outrider
