#include "outrider/checkpoint/stored_fp4_tensor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {
StoredFp4Tensor::StoredFp4Tensor(std::shared_ptr<const File> file, const TensorInfo& info,
                                 std::shared_ptr<const File> scale_file, const TensorInfo& scales)
    : WeightTensor(info.shape),
      file_(std::move(file)),
      begin_(info.begin),
      scale_file_(std::move(scale_file)),
      scale_name_(scales.name),
      scale_begin_(scales.begin),
      stored_bytes_(static_cast<int64_t>(info.end - info.begin + scales.end - scales.begin)) {
  OUTRIDER_CHECK(cols() % kFp4Group == 0);
}

void StoredFp4Tensor::ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const {
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const int64_t row_bytes = cols() / 2;
  file_->ReadAt(begin_ + static_cast<uint64_t>(first_row * row_bytes),
                static_cast<uint64_t>(count * row_bytes), out);
}

void StoredFp4Tensor::ReadExponents(int64_t first_row, int64_t count, uint8_t* out) const {
  OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
  const int64_t groups = cols() / kFp4Group;
  file_->ReadAt(scale_begin_ + static_cast<uint64_t>(first_row * groups),
                static_cast<uint64_t>(count * groups), out);
  uint8_t* const end = out + count * groups;
  const uint8_t* bad = std::find_if(
      out, end, [](uint8_t e) { return e < kLeastFp4Exponent || e > kLargestFp4Exponent; });
  if (bad == end) return;
  const int64_t at = bad - out;
  if (*bad == 0xff) {
    throw InvalidArgument("{}: {} holds a NaN in row {}, column {}", scale_file_->path().string(),
                          scale_name_, first_row + at / groups, at % groups);
  }
  throw InvalidArgument("{}: {} holds 2^{} in row {}, column {}; 2^{} to 2^{} can be read",
                        scale_file_->path().string(), scale_name_, *bad - 127,
                        first_row + at / groups, at % groups, kLeastFp4Exponent - 127,
                        kLargestFp4Exponent - 127);
}

void StoredFp4Tensor::ReadRows(int64_t first_row, int64_t count, float* out) const {
  const int64_t groups = cols() / kFp4Group;
  std::vector<uint8_t> codes(static_cast<size_t>(count * cols() / 2));
  std::vector<uint8_t> exponents(static_cast<size_t>(count * groups));
  ReadCodes(first_row, count, codes.data());
  ReadExponents(first_row, count, exponents.data());
  const uint8_t* pair = codes.data();
  for (const uint8_t exponent : exponents) {
    const float scale = Float8E8M0ToFloat(exponent);
    for (int64_t i = 0; i < kFp4Group; i += 2, ++pair) {
      *out++ = Float4E2M1ToFloat(*pair) * scale;
      *out++ = Float4E2M1ToFloat(*pair >> 4) * scale;
    }
  }
}

}  // namespace outrider
