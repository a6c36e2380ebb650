#include "outrider/checkpoint/stored_four_bit_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {
namespace {

constexpr uint8_t kE8M0One = 127;
/// Between the exponents of a row, at most. A GPU multiplies codes by scales relative to the row's
/// largest, and a code's least value is 1/2: below 2^-120 bits would be lost.
constexpr int kMostFp4Span = 119;

int64_t BytesOf(const TensorInfo& info) { return static_cast<int64_t>(info.end - info.begin); }

}  // namespace

StoredFourBitTensor::StoredFourBitTensor(TensorEntry codes, TensorEntry scales,
                                         const GroupScales& group)
    : WeightTensor(codes.info.shape),
      codes_(std::move(codes)),
      scales_(std::move(scales)),
      group_(group) {
  OUTRIDER_CHECK(cols() % group.stored_cols == 0 && group.stored_cols % group.cols == 0);
}

int64_t StoredFourBitTensor::stored_bytes() const {
  return BytesOf(codes_.info) + BytesOf(scales_.info);
}

void StoredFourBitTensor::ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const {
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const int64_t row_bytes = cols() / 2;
  codes_.file->ReadAt(codes_.info.begin + static_cast<uint64_t>(first_row * row_bytes),
                      static_cast<uint64_t>(count * row_bytes), out);
}

bool StoredFourBitTensor::IsGroupOfZeros(int64_t row, int64_t group) const {
  std::vector<uint8_t> codes(static_cast<size_t>(group_.stored_cols / 2));
  const int64_t at = row * (cols() / 2) + group * (group_.stored_cols / 2);
  codes_.file->ReadAt(codes_.info.begin + static_cast<uint64_t>(at), codes.size(), codes.data());
  // A zero may have a sign.
  return std::ranges::all_of(codes, [](uint8_t pair) { return (pair & 0x77) == 0; });
}

void StoredFourBitTensor::CheckScales(int64_t first_row, int64_t count, uint8_t* stored) const {
  const int64_t groups = cols() / group_.stored_cols;
  for (int64_t i = 0; i < count * groups; ++i) {
    bool finite = true;
    bool zero = false;
    if (group_.dtype == DType::kF8E8M0) {
      finite = stored[i] != 0xff;
      if (finite && (stored[i] < kLeastFp4Exponent || stored[i] > kLargestFp4Exponent)) {
        if (IsGroupOfZeros(first_row + i / groups, i % groups)) {
          stored[i] = kE8M0One;
          continue;
        }
        throw InvalidArgument("{}: {} holds 2^{} in row {}, column {}; 2^{} to 2^{} can be read",
                              scales_.file->path().string(), scales_.info.name, stored[i] - 127,
                              first_row + i / groups, i % groups, kLeastFp4Exponent - 127,
                              kLargestFp4Exponent - 127);
      }
    } else if (group_.dtype == DType::kF8E4M3) {
      finite = (stored[i] & 0x7f) != 0x7f;
      zero = (stored[i] & 0x7f) == 0;
    } else {
      BFloat16 scale;
      std::memcpy(&scale, stored + 2 * i, 2);
      finite = std::isfinite(ToFloat(scale));
      zero = ToFloat(scale) == 0;
    }
    if (!finite || zero) {
      throw InvalidArgument("{}: {} holds {} in row {}, column {}", scales_.file->path().string(),
                            scales_.info.name,
                            zero                           ? "a scale of zero"
                            : group_.dtype == DType::kBF16 ? "a value that is not finite"
                                                           : "a NaN",
                            first_row + i / groups, i % groups);
    }
  }
}

void StoredFourBitTensor::CheckSpans(int64_t first_row, int64_t count, uint8_t* stored) const {
  const int64_t groups = cols() / group_.stored_cols;
  for (int64_t row = first_row; row < first_row + count; ++row, stored += groups) {
    const auto [all_least, all_largest] = std::minmax_element(stored, stored + groups);
    if (*all_largest - *all_least <= kMostFp4Span) continue;
    int least = kLargestFp4Exponent;
    int largest = kLeastFp4Exponent;
    std::vector<int64_t> zeros;
    for (int64_t i = 0; i < groups; ++i) {
      if (IsGroupOfZeros(row, i)) {
        zeros.push_back(i);
        continue;
      }
      least = std::min<int>(least, stored[i]);
      largest = std::max<int>(largest, stored[i]);
    }
    if (largest - least > kMostFp4Span) {
      throw InvalidArgument(
          "{}: {} holds 2^{} and 2^{} in row {}; scales of a row that differ by up to 2^{} can be "
          "read",
          scales_.file->path().string(), scales_.info.name, least - kE8M0One, largest - kE8M0One,
          row, kMostFp4Span);
    }
    for (const int64_t i : zeros) stored[i] = static_cast<uint8_t>(largest);
  }
}

void StoredFourBitTensor::ReadGroupScales(int64_t first_row, int64_t count, uint8_t* out) const {
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const auto size = static_cast<int64_t>(DTypeSize(group_.dtype));
  const int64_t row_bytes = cols() / group_.stored_cols * size;
  std::vector<uint8_t> stored(static_cast<size_t>(count * row_bytes));
  scales_.file->ReadAt(scales_.info.begin + static_cast<uint64_t>(first_row * row_bytes),
                       stored.size(), stored.data());
  CheckScales(first_row, count, stored.data());
  if (group_.dtype == DType::kF8E8M0) CheckSpans(first_row, count, stored.data());
  const int64_t times = group_.stored_cols / group_.cols;
  for (size_t i = 0; i < stored.size(); i += static_cast<size_t>(size)) {
    for (int64_t t = 0; t < times; ++t) {
      std::memcpy(out, stored.data() + i, static_cast<size_t>(size));
      out += size;
    }
  }
}

void StoredFourBitTensor::ReadRows(int64_t first_row, int64_t count, float* out) const {
  std::vector<uint8_t> codes(static_cast<size_t>(count * cols() / 2));
  std::vector<uint8_t> scales(static_cast<size_t>(count * cols() / group_.cols) *
                              DTypeSize(group_.dtype));
  ReadCodes(first_row, count, codes.data());
  ReadGroupScales(first_row, count, scales.data());
  WidenFourBitCodes(stored_dtype(), group_, codes.data(), scales.data(), count * cols(), out);
}

}  // namespace outrider
