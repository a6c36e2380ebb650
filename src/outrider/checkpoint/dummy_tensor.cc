#include "outrider/checkpoint/dummy_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr float kLargestE4M3 = 448;
constexpr float kLargestE2M1 = 6;
constexpr float kLargestInt4 = 7;
constexpr uint8_t kE4M3One = 0x38;

/// Elements 4 * group .. 4 * group + 3 of the tensor.
inline void Generate(const DummyStream& stream, uint64_t group, float* out) {
  const uint64_t bits = DummyBits(stream, group);
  for (int i = 0; i < 4; ++i) out[i] = RoundToBFloat16(DummyValue(stream, bits, i));
}

class DummyTensor : public WeightTensor {
 public:
  DummyTensor(std::span<const int64_t> shape, const DummyStream& stream)
      : WeightTensor({shape.begin(), shape.end()}), stream_(stream) {}

  DType stored_dtype() const override { return DType::kBF16; }
  int64_t stored_bytes() const override { return 0; }
  bool exact_in_bfloat16() const override { return true; }
  const DummyStream* dummy_stream() const override { return &stream_; }

  void ReadRows(int64_t first_row, int64_t count, float* out) const override {
    OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
    auto index = static_cast<uint64_t>(first_row * cols());
    const uint64_t end = index + static_cast<uint64_t>(count * cols());
    while (index < end) {
      if (index % 4 == 0 && end - index >= 4) {
        Generate(stream_, index / 4, out);
        index += 4;
        out += 4;
      } else {  // a group that the range cuts
        float group[4];
        Generate(stream_, index / 4, group);
        *out++ = group[index++ % 4];
      }
    }
  }

 private:
  DummyStream stream_;
};

/// Row r: the numbers from a random one on, in a circle.
class DummyChoices : public WeightTensor {
 public:
  DummyChoices(std::span<const int64_t> shape, uint64_t key, int64_t limit)
      : WeightTensor({shape.begin(), shape.end()}), stream_{.key = key}, limit_(limit) {
    OUTRIDER_CHECK(cols() <= limit && limit <= 1 << 24, "floats hold the integers");
  }

  DType stored_dtype() const override { return DType::kI32; }
  int64_t stored_bytes() const override { return 0; }
  bool exact_in_bfloat16() const override { return limit_ <= 256; }

  void ReadRows(int64_t first_row, int64_t count, float* out) const override {
    OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
    const auto limit = static_cast<uint64_t>(limit_);
    for (int64_t row = first_row; row < first_row + count; ++row) {
      const uint64_t first = DummyBits(stream_, static_cast<uint64_t>(row)) % limit;
      for (int64_t i = 0; i < cols(); ++i) {
        *out++ = static_cast<float>((first + static_cast<uint64_t>(i)) % limit);
      }
    }
  }

 private:
  DummyStream stream_;
  int64_t limit_;
};

/// Values that are codes times one power of two: those of the stream, divided by it, rounded.
class DummyCodes : public DummyTensor {
 public:
  DummyCodes(std::span<const int64_t> shape, const DummyStream& stream, float largest_code)
      : DummyTensor(shape, stream) {
    const float largest = std::fabs(stream.center) + stream.half_width;
    if (std::frexp(largest / largest_code, &exponent_) == 0.5F) --exponent_;
  }

  void ReadRows(int64_t first_row, int64_t count, float* out) const override {
    DummyTensor::ReadRows(first_row, count, out);
    const float scale = this->scale();
    for (int64_t i = 0; i < count * cols(); ++i) out[i] = ValueOf(CodeOf(out[i] / scale)) * scale;
  }

 protected:
  virtual uint8_t CodeOf(float x) const = 0;
  virtual float ValueOf(uint8_t code) const = 0;

  float scale() const { return std::ldexp(1.0F, exponent_); }
  int exponent() const { return exponent_; }

  /// A code is a function of 16 random bits: large tensors look it up.
  std::vector<uint8_t> Codes(int64_t first_row, int64_t count) const {
    OUTRIDER_CHECK(first_row >= 0 && count >= 0 && count <= rows() - first_row);
    std::vector<uint8_t> codes(static_cast<size_t>(count * cols()));
    auto index = static_cast<uint64_t>(first_row * cols());
    if (rows() * cols() < kLeastLookedUp) {
      for (uint8_t& code : codes) code = CodeOfBits(BitsOf(index++));
      return codes;
    }
    std::call_once(once_, [this] {
      codes_.resize(size_t{1} << 16);
      for (size_t bits = 0; bits < codes_.size(); ++bits) {
        codes_[bits] = CodeOfBits(static_cast<uint16_t>(bits));
      }
    });
    const uint8_t* const table = codes_.data();
    size_t i = 0;
    for (; i < codes.size() && index % 4 != 0; ++i) codes[i] = table[BitsOf(index++)];
    for (; i + 4 <= codes.size(); i += 4, index += 4) {
      const uint64_t bits = DummyBits(*dummy_stream(), index / 4);
      for (size_t j = 0; j < 4; ++j) codes[i + j] = table[bits >> (16 * j) & 0xFFFF];
    }
    for (; i < codes.size(); ++i) codes[i] = table[BitsOf(index++)];
    return codes;
  }

 private:
  static constexpr int64_t kLeastLookedUp = int64_t{1} << 18;

  /// The bits that element `index` is made of.
  uint16_t BitsOf(uint64_t index) const {
    return static_cast<uint16_t>(DummyBits(*dummy_stream(), index / 4) >> (16 * (index % 4)));
  }
  uint8_t CodeOfBits(uint16_t bits) const {
    return CodeOf(RoundToBFloat16(DummyValue(*dummy_stream(), bits, 0)) / scale());
  }

  int exponent_ = 0;
  mutable std::once_flag once_;
  mutable std::vector<uint8_t> codes_;  // by bits
};

bool IsFp8(StoredFormat format) {
  return format == StoredFormat::kFp8Tensor || format == StoredFormat::kFp8Row ||
         format == StoredFormat::kFp8Block;
}

class DummyFp8Tensor : public DummyCodes {
 public:
  DummyFp8Tensor(std::span<const int64_t> shape, const DummyStream& stream, StoredFormat format,
                 const Quantization& blocks)
      : DummyCodes(shape, stream, kLargestE4M3) {
    const bool by_block = format == StoredFormat::kFp8Block;
    scales_.block_rows = by_block                          ? blocks.block_rows
                         : format == StoredFormat::kFp8Row ? 1
                                                           : rows();
    scales_.block_cols = by_block ? blocks.block_cols : cols();
    const auto count = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
    scales_.values.assign(
        static_cast<size_t>(count(rows(), scales_.block_rows) * count(cols(), scales_.block_cols)),
        scale());
  }

  DType stored_dtype() const override { return DType::kF8E4M3; }
  const BlockScales* block_scales() const override { return &scales_; }
  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override {
    std::ranges::copy(Codes(first_row, count), out);
  }

 private:
  uint8_t CodeOf(float x) const override { return ToFloat8E4M3(x); }
  float ValueOf(uint8_t code) const override { return Float8E4M3ToFloat(code); }

  BlockScales scales_;
};

/// What the scales of groups are of.
GroupScales GroupsOf(StoredFormat format) {
  if (format == StoredFormat::kInt4) {
    return {.cols = kInt4Group, .stored_cols = kInt4Group, .dtype = DType::kBF16};
  }
  if (format == StoredFormat::kNvfp4) {
    return {.cols = kNvfp4Group, .stored_cols = kNvfp4Group, .dtype = DType::kF8E4M3};
  }
  return {.cols = kFp4Group, .stored_cols = kFp4Group, .dtype = DType::kF8E8M0};
}

class DummyFourBitTensor : public DummyCodes {
 public:
  DummyFourBitTensor(std::span<const int64_t> shape, const DummyStream& stream, StoredFormat format)
      : DummyCodes(shape, stream, format == StoredFormat::kInt4 ? kLargestInt4 : kLargestE2M1),
        groups_(GroupsOf(format)) {
    OUTRIDER_CHECK(cols() % groups_.cols == 0);
    if (groups_.dtype == DType::kBF16) {
      const BFloat16 narrow = ToBFloat16(scale());
      group_scale_.resize(sizeof narrow);
      std::memcpy(group_scale_.data(), &narrow, sizeof narrow);
    } else if (groups_.dtype == DType::kF8E4M3) {
      group_scale_ = {kE4M3One};
      groups_.global = scale();
    } else {
      group_scale_ = {static_cast<uint8_t>(exponent() + 127)};
    }
  }

  DType stored_dtype() const override { return IsInt4() ? DType::kI4 : DType::kF4E2M1; }
  const GroupScales* group_scales() const override { return &groups_; }
  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override {
    const std::vector<uint8_t> codes = Codes(first_row, count);
    for (size_t i = 0; i < codes.size(); i += 2) {
      *out++ = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
    }
  }
  void ReadGroupScales(int64_t /*first_row*/, int64_t count, uint8_t* out) const override {
    for (int64_t i = 0; i < count * (cols() / groups_.cols); ++i) {
      out = std::ranges::copy(group_scale_, out).out;
    }
  }

 private:
  bool IsInt4() const { return groups_.dtype == DType::kBF16; }
  uint8_t CodeOf(float x) const override {
    return IsInt4() ? static_cast<uint8_t>(std::nearbyint(x) + 8) : ToFloat4E2M1(x);
  }
  float ValueOf(uint8_t code) const override {
    return IsInt4() ? Int4ToFloat(code) : Float4E2M1ToFloat(code);
  }

  GroupScales groups_;
  std::vector<uint8_t> group_scale_;  // as it is stored
};

}  // namespace

std::unique_ptr<WeightTensor> MakeDummyTensor(std::span<const int64_t> shape,
                                              const DummyStream& stream) {
  return std::make_unique<DummyTensor>(shape, stream);
}

std::unique_ptr<WeightTensor> MakeDummyChoices(std::span<const int64_t> shape, uint64_t key,
                                               int64_t limit) {
  return std::make_unique<DummyChoices>(shape, key, limit);
}

bool TakesColumns(StoredFormat format, int64_t cols) {
  return IsFp8(format) || cols % GroupsOf(format).cols == 0;
}

std::unique_ptr<WeightTensor> MakeDummyCodes(std::span<const int64_t> shape,
                                             const DummyStream& stream, StoredFormat format,
                                             const Quantization& blocks) {
  if (IsFp8(format)) return std::make_unique<DummyFp8Tensor>(shape, stream, format, blocks);
  return std::make_unique<DummyFourBitTensor>(shape, stream, format);
}

}  // namespace outrider
