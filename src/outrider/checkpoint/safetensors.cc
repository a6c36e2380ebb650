#include "outrider/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/file.h"
#include "outrider/checkpoint/config_reader.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxDimensions = 16;

/// Collects TensorInfos from the JSON's events, without building a document: a header may be large.
/// It knows one shape only, {name: {dtype, shape, data_offsets}}, so nesting is bounded by it.
class HeaderHandler : public json::json_sax_t {
 public:
  explicit HeaderHandler(std::string_view where) : where_(where) {}

  std::vector<TensorInfo> Take() { return std::move(tensors_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool binary(json::binary_t&) override { return Unexpected("binary data"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      if (value > INT64_MAX) Unexpected("a dimension above 2^63 - 1");
      if (tensors_.back().shape.size() == kMaxDimensions) Unexpected("more than 16 dimensions");
      tensors_.back().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_ == 0 ? tensors_.back().begin : tensors_.back().end) = value;
      ++offsets_;
    } else {
      Unexpected("a number");
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != Key::kDtype) Unexpected("a string");
    tensors_.back().dtype_name = value;
    tensors_.back().dtype = DTypeFromSafetensors(value);
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
    } else {
      Unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    switch (place_) {
      case Place::kTop:
        in_metadata_ = name == "__metadata__";
        if (!in_metadata_) StartTensor(name);
        break;
      case Place::kTensor:
        SelectKey(name);
        break;
      default:
        break;  // a key of __metadata__: any
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor && seen_ != kAllKeys) {
      Fail("lacks dtype, shape or data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == Key::kShape) {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == Key::kOffsets) {
      place_ = Place::kOffsets;
      offsets_ = 0;
    } else {
      Unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) Fail("needs two data_offsets");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const json::exception&) override {
    throw InvalidArgument("{}: header is not valid JSON at byte {}", where_, kLengthBytes + byte);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Key { kDtype = 1, kShape = 2, kOffsets = 4 };
  static constexpr int kAllKeys = 7;

  [[noreturn]] void Fail(std::string_view what) const {
    if (tensors_.empty() || in_metadata_) {
      throw InvalidArgument("{}: header {}", where_, what);
    }
    throw InvalidArgument("{}: tensor {} {}", where_, Shown(tensors_.back().name), what);
  }

  bool Unexpected(std::string_view what) const {
    Fail(fmt::format("has {} where the safetensors format allows none", what));
  }

  void StartTensor(const std::string& name) {
    tensors_.push_back(
        {.name = name, .dtype = std::nullopt, .dtype_name = {}, .shape = {}, .begin = 0, .end = 0});
    seen_ = 0;
    if (!names_.insert(name).second) Fail("appears twice");
  }

  void SelectKey(const std::string& name) {
    if (name == "dtype") {
      key_ = Key::kDtype;
    } else if (name == "shape") {
      key_ = Key::kShape;
    } else if (name == "data_offsets") {
      key_ = Key::kOffsets;
    } else {
      Fail(fmt::format("has an unknown key {}", Shown(name)));
    }
    if ((seen_ & static_cast<int>(key_)) != 0) Fail(fmt::format("has two keys \"{}\"", name));
    seen_ |= static_cast<int>(key_);
  }

  std::string_view where_;
  std::vector<TensorInfo> tensors_;
  std::unordered_set<std::string> names_;
  Place place_ = Place::kStart;
  Key key_ = Key::kDtype;
  bool in_metadata_ = false;
  int seen_ = 0;     // keys of the current tensor, or-ed
  int offsets_ = 0;  // numbers read of data_offsets
};

/// Checks one tensor's range against the data's size, its shape and dtype.
void CheckTensor(const TensorInfo& tensor, uint64_t data_size, std::string_view where) {
  if (tensor.begin > tensor.end || tensor.end > data_size) {
    throw InvalidArgument(
        "{}: tensor {} has data_offsets [{}, {}], outside of the {} bytes of data", where,
        Shown(tensor.name), tensor.begin, tensor.end, data_size);
  }
  uint64_t elements = 1;
  bool overflow = false;
  for (const int64_t dimension : tensor.shape) {
    overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(dimension), &elements);
  }
  if (overflow) {
    throw InvalidArgument("{}: tensor {} has shape [{}], more elements than can be counted", where,
                          Shown(tensor.name), fmt::join(tensor.shape, ", "));
  }
  if (!tensor.dtype) return;  // of unknown size; refused when it is asked for
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, uint64_t{DTypeSize(*tensor.dtype)}, &bytes) ||
      bytes != tensor.end - tensor.begin) {
    throw InvalidArgument("{}: tensor {} has {} bytes, but {} elements of type {}", where,
                          Shown(tensor.name), tensor.end - tensor.begin, elements,
                          tensor.dtype_name);
  }
}

/// Checks that the ranges of `tensors`, ordered by begin, cover the data without overlap or hole.
void CheckCover(const std::vector<TensorInfo>& tensors, uint64_t data_size,
                std::string_view where) {
  uint64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != covered) {
      throw InvalidArgument("{}: tensor {} begins at byte {} of the data, {} it should be {}",
                            where, Shown(tensor.name), tensor.begin,
                            tensor.begin < covered ? "inside the one before;" : "after a hole;",
                            covered);
    }
    covered = tensor.end;
  }
  if (covered != data_size) {
    throw InvalidArgument("{}: {} bytes of data follow the last tensor", where,
                          data_size - covered);
  }
}

/// The JSON's length, checked against the file's size.
uint64_t HeaderLength(std::span<const std::byte> start, uint64_t file_size,
                      std::string_view where) {
  if (file_size < kLengthBytes || start.size() < kLengthBytes) {
    throw InvalidArgument("{}: has {} bytes, too few for a safetensors file", where, file_size);
  }
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&length, start.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeader) {
    throw InvalidArgument(
        "{}: header of {} bytes; at most {} are allowed (is it a safetensors file?)", where, length,
        kMaxSafetensorsHeader);
  }
  if (length > file_size - kLengthBytes) {
    throw InvalidArgument("{}: header of {} bytes in a file of {} bytes; was it cut off?", where,
                          length, file_size);
  }
  return length;
}

}  // namespace

std::vector<TensorInfo> ParseSafetensorsHeader(std::span<const std::byte> start, uint64_t file_size,
                                               std::string_view where) {
  const uint64_t length = HeaderLength(start, file_size, where);
  OUTRIDER_CHECK(start.size() >= kLengthBytes + length);
  const char* json_begin = reinterpret_cast<const char*>(start.data()) + kLengthBytes;

  HeaderHandler handler(where);
  json::sax_parse(json_begin, json_begin + length, &handler);
  std::vector<TensorInfo> tensors = handler.Take();

  const uint64_t data_begin = kLengthBytes + length;
  const uint64_t data_size = file_size - data_begin;
  for (const TensorInfo& tensor : tensors) CheckTensor(tensor, data_size, where);
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  CheckCover(tensors, data_size, where);
  for (TensorInfo& tensor : tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return tensors;
}

std::vector<TensorInfo> ReadSafetensorsHeader(const std::filesystem::path& path) {
  const File file(path);
  const std::string where = path.string();
  std::vector<std::byte> start(std::min(file.size(), kLengthBytes));
  file.ReadAt(0, start.size(), start.data());
  const uint64_t length = HeaderLength(start, file.size(), where);
  start.resize(kLengthBytes + length);
  file.ReadAt(kLengthBytes, length, start.data() + kLengthBytes);
  return ParseSafetensorsHeader(start, file.size(), where);
}

}  // namespace outrider
