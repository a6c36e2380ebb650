#include "outrider/checkpoint/stored_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

constexpr int64_t kScratchBytes = int64_t{256} << 10;

const std::array<float, 256>& Fp8Values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 256; ++i) values[i] = Float8E4M3ToFloat(static_cast<uint8_t>(i));
    return values;
  }();
  return kValues;
}

/// True when multiplying any e4m3 value by `scale` gives a normal bfloat16 value or 0. An e4m3
/// value is an integer of at most four bits times 2^e, e in [-9, 5], so a power of two keeps it
/// exact as long as the result stays in bfloat16's normal range, 2^-126 to just under 2^128.
bool KeepsFp8Exact(float scale) {
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(scale), &exponent);  // scale = fraction · 2^exponent
  return fraction == 0.5F && exponent - 1 >= -126 + 9 && exponent - 1 <= 127 - 9;
}

template <typename T>
void ConvertIntegers(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value = 0;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

}  // namespace

bool IsReadable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF8E4M3;
}

StoredTensor::StoredTensor(std::shared_ptr<const File> file, const TensorInfo& info,
                           BlockScales scales)
    : WeightTensor(info.shape),
      file_(std::move(file)),
      name_(info.name),
      begin_(info.begin),
      dtype_(*info.dtype),
      scales_(std::move(scales)),
      stored_bytes_(static_cast<int64_t>(info.end - info.begin) + scales_.stored_bytes),
      exact_in_bfloat16_(
          dtype_ == DType::kBF16 ||
          (dtype_ == DType::kF8E4M3 &&
           std::all_of(scales_.values.begin(), scales_.values.end(), KeepsFp8Exact))) {
  OUTRIDER_CHECK(IsReadable(dtype_) || dtype_ == DType::kF8E8M0 || dtype_ == DType::kI32 ||
                 dtype_ == DType::kI64);
}

void StoredTensor::ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const {
  OUTRIDER_CHECK(dtype_ == DType::kF8E4M3);
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  file_->ReadAt(begin_ + static_cast<uint64_t>(first_row * cols()),
                static_cast<uint64_t>(count * cols()), out);
  uint8_t* const end = out + count * cols();
  const uint8_t* nan = std::find_if(out, end, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
  if (nan != end) {
    throw InvalidArgument("{}: {} holds a NaN in row {}, column {}", file_->path().string(), name_,
                          first_row + (nan - out) / cols(), (nan - out) % cols());
  }
}

void StoredTensor::ReadRows(int64_t first_row, int64_t count, float* out) const {
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const auto row_bytes = static_cast<uint64_t>(cols()) * DTypeSize(dtype_);
  const uint64_t offset = begin_ + static_cast<uint64_t>(first_row) * row_bytes;
  if (dtype_ == DType::kF32) {
    file_->ReadAt(offset, static_cast<uint64_t>(count) * row_bytes, out);
    return;
  }
  const int64_t step =
      std::clamp<int64_t>(kScratchBytes / std::max<int64_t>(static_cast<int64_t>(row_bytes), 1), 1,
                          std::max<int64_t>(count, 1));
  std::vector<std::byte> scratch(static_cast<uint64_t>(step) * row_bytes);
  for (int64_t done = 0; done < count; done += step) {
    const int64_t rows = std::min(step, count - done);
    file_->ReadAt(offset + static_cast<uint64_t>(done) * row_bytes,
                  static_cast<uint64_t>(rows) * row_bytes, scratch.data());
    Convert(scratch.data(), first_row + done, rows, out + done * cols());
  }
}

void StoredTensor::ReadBFloat16(int64_t first_row, int64_t count, BFloat16* out) const {
  if (dtype_ != DType::kBF16) return WeightTensor::ReadBFloat16(first_row, count, out);
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const auto row_bytes = static_cast<uint64_t>(cols()) * sizeof(BFloat16);
  file_->ReadAt(begin_ + static_cast<uint64_t>(first_row) * row_bytes,
                static_cast<uint64_t>(count) * row_bytes, out);
}

void StoredTensor::Convert(const std::byte* from, int64_t first_row, int64_t count,
                           float* out) const {
  if (dtype_ == DType::kF8E4M3) {
    ConvertFp8(from, first_row, count, out);
    return;
  }
  if (dtype_ == DType::kF8E8M0) {
    std::transform(from, from + count * cols(), out,
                   [](std::byte e) { return Float8E8M0ToFloat(static_cast<uint8_t>(e)); });
    return;
  }
  if (dtype_ == DType::kI32) return ConvertIntegers<int32_t>(from, count * cols(), out);
  if (dtype_ == DType::kI64) return ConvertIntegers<int64_t>(from, count * cols(), out);
  for (int64_t i = 0; i < count * cols(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    out[i] = dtype_ == DType::kBF16 ? ToFloat(BFloat16{bits}) : HalfToFloat(bits);
  }
}

void StoredTensor::ConvertFp8(const std::byte* from, int64_t first_row, int64_t count,
                              float* out) const {
  const std::array<float, 256>& values = Fp8Values();
  const int64_t scales_per_row = (cols() + scales_.block_cols - 1) / scales_.block_cols;
  for (int64_t row = first_row; row < first_row + count; ++row) {
    const float* scale = scales_.values.data() + row / scales_.block_rows * scales_per_row;
    for (int64_t begin = 0; begin < cols(); begin += scales_.block_cols, ++scale) {
      const int64_t width = std::min(scales_.block_cols, cols() - begin);
      for (int64_t i = 0; i < width; ++i) *out++ = values[static_cast<uint8_t>(*from++)] * *scale;
    }
  }
}

}  // namespace outrider
