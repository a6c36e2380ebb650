// Random weights whose projections are stored as codes: all of them e4m3, or those of experts of 4
// bits beside bfloat16.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider::cuda {

enum class Codes {
  kBlocks,  // all projections e4m3, scales of blocks of 128x128
  kBlocksWithPowersOfTwo,
  kRows,  // scales of rows
  // routed experts alone:
  kInt4,
  kFp4,
  kNvfp4,
};

/// e4m3 codes.
class CodeTensor : public WeightTensor {
 public:
  /// Values have a standard deviation of about cols^-1/2.
  CodeTensor(std::span<const int64_t> shape, uint64_t seed, Codes kind)
      : WeightTensor({shape.begin(), shape.end()}),
        powers_of_two_(kind == Codes::kBlocksWithPowersOfTwo),
        seed_(seed) {
    const bool powers_of_two = powers_of_two_;
    std::mt19937_64 random(seed);
    scales_.block_rows = kind == Codes::kRows ? 1 : 128;
    scales_.block_cols = kind == Codes::kRows ? cols() : 128;
    const auto blocks =
        static_cast<size_t>((rows() + scales_.block_rows - 1) / scales_.block_rows * Blocks());
    // Codes are up to 448 and spread over exponents: their mean square is about 100 squared.
    const double size = 1 / std::sqrt(static_cast<double>(cols())) / 100;
    for (size_t i = 0; i < blocks; ++i) {
      const double factor = 0.5 + static_cast<double>(random() % 1024) / 1024;
      const double scale = size * factor;
      scales_.values.push_back(
          static_cast<float>(powers_of_two ? std::exp2(std::round(std::log2(scale))) : scale));
    }
  }

  DType stored_dtype() const override { return DType::kF8E4M3; }
  int64_t stored_bytes() const override { return 0; }
  bool exact_in_bfloat16() const override { return powers_of_two_; }
  const BlockScales* block_scales() const override { return &scales_; }

  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override {
    for (int64_t at = first_row * cols(); at < (first_row + count) * cols(); ++at) {
      const uint64_t hash = SplitMix(seed_ + static_cast<uint64_t>(at) * kSplitMixStep);
      auto code = static_cast<uint8_t>(hash);
      if ((code & 0x7F) == 0x7F) code ^= 1;  // that was NaN
      *out++ = code;
    }
  }
  void ReadRows(int64_t first_row, int64_t count, float* out) const override {
    std::vector<uint8_t> codes(static_cast<size_t>(count * cols()));
    ReadCodes(first_row, count, codes.data());
    for (int64_t i = 0; i < count * cols(); ++i) {
      const int64_t block = (first_row + i / cols()) / scales_.block_rows * Blocks() +
                            i % cols() / scales_.block_cols;
      out[i] = Float8E4M3ToFloat(codes[static_cast<size_t>(i)]) *
               scales_.values[static_cast<size_t>(block)];
    }
  }

 private:
  bool powers_of_two_;
  uint64_t seed_;
  int64_t Blocks() const { return (cols() + scales_.block_cols - 1) / scales_.block_cols; }

  BlockScales scales_;
};

/// Codes of 4 bits, with scales of groups that differ.
class FourBitTensor : public WeightTensor {
 public:
  /// Values have a standard deviation of about cols^-1/2.
  FourBitTensor(std::span<const int64_t> shape, uint64_t seed, Codes kind)
      : WeightTensor({shape.begin(), shape.end()}), seed_(seed) {
    groups_.cols = groups_.stored_cols = kind == Codes::kNvfp4 ? kNvfp4Group : kInt4Group;
    groups_.dtype = kind == Codes::kInt4    ? DType::kBF16
                    : kind == Codes::kNvfp4 ? DType::kF8E4M3
                                            : DType::kF8E8M0;
    // Codes of either kind have a mean square of about 4 squared.
    const double size = 1 / std::sqrt(static_cast<double>(cols())) / 4;
    if (kind == Codes::kNvfp4) groups_.global = static_cast<float>(size);
    size_ = kind == Codes::kNvfp4 ? 1 : size;
  }

  DType stored_dtype() const override {
    return groups_.dtype == DType::kBF16 ? DType::kI4 : DType::kF4E2M1;
  }
  int64_t stored_bytes() const override { return 0; }
  bool exact_in_bfloat16() const override { return groups_.dtype == DType::kF8E8M0; }
  const GroupScales* group_scales() const override { return &groups_; }

  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override {
    const int64_t row_bytes = cols() / 2;
    for (int64_t at = first_row * row_bytes; at < (first_row + count) * row_bytes; ++at) {
      *out++ = static_cast<uint8_t>(Bits(static_cast<uint64_t>(at)));
    }
  }
  void ReadGroupScales(int64_t first_row, int64_t count, uint8_t* out) const override {
    const int64_t row_groups = cols() / groups_.cols;
    for (int64_t at = first_row * row_groups; at < (first_row + count) * row_groups; ++at) {
      const uint64_t bits = ~Bits(static_cast<uint64_t>(at));
      const double scale = size_ * (0.5 + static_cast<double>(bits % 1024) / 1024);
      if (groups_.dtype == DType::kBF16) {
        const BFloat16 narrow = ToBFloat16(static_cast<float>(scale));
        std::memcpy(out, &narrow, sizeof narrow);
        out += sizeof narrow;
      } else if (groups_.dtype == DType::kF8E4M3) {
        *out++ = ToFloat8E4M3(static_cast<float>(scale));
      } else {
        *out++ = static_cast<uint8_t>(std::ilogb(scale) + 127);
      }
    }
  }
  void ReadRows(int64_t first_row, int64_t count, float* out) const override {
    std::vector<uint8_t> codes(static_cast<size_t>(count * cols() / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(count * cols() / groups_.cols) *
                                DTypeSize(groups_.dtype));
    ReadCodes(first_row, count, codes.data());
    ReadGroupScales(first_row, count, scales.data());
    WidenFourBitCodes(stored_dtype(), groups_, codes.data(), scales.data(), count * cols(), out);
  }

 private:
  uint64_t Bits(uint64_t at) const { return SplitMix(seed_ + at * kSplitMixStep); }

  uint64_t seed_;
  double size_ = 1;
  GroupScales groups_;
};

/// MakeDummyWeights, but for the projections, or for those of routed experts.
class CodeSource : public WeightSource {
 public:
  CodeSource(const ModelConfig& config, uint64_t seed, Codes kind)
      : rest_(MakeDummyWeights(config, seed)), seed_(seed), kind_(kind) {}

  bool Has(std::string_view name) const override { return rest_->Has(name); }
  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    const std::string& name = tensor.name;
    const auto index = static_cast<uint64_t>(tensor.index.value_or(0));
    const uint64_t seed = seed_ ^ std::hash<std::string>()(name) ^ index << 40;
    const std::span<const int64_t> shape =
        std::span(tensor.shape).last(tensor.index ? 2 : tensor.shape.size());
    if (kind_ == Codes::kInt4 || kind_ == Codes::kFp4 || kind_ == Codes::kNvfp4) {
      if (name.find(".mlp.experts.") == std::string::npos) return rest_->Open(tensor);
      return std::make_unique<FourBitTensor>(shape, seed, kind_);
    }
    const bool of_indexer = name.ends_with(".wq_b.weight") || name.ends_with(".wk.weight");
    if (!of_indexer && !name.ends_with("_proj.weight") && !name.ends_with("_with_mqa.weight")) {
      return rest_->Open(tensor);
    }
    // Published checkpoints keep these in bfloat16.
    if (name.ends_with("eh_proj.weight") || name.ends_with(".weights_proj.weight")) {
      return rest_->Open(tensor);
    }
    return std::make_unique<CodeTensor>(shape, seed, kind_);
  }
  void Check(std::span<const ExpectedTensor>, FunctionRef<bool(std::string_view)>) const override {}
  std::string where() const override { return "random codes"; }
  std::vector<std::string> names() const override { return {}; }

 private:
  std::unique_ptr<WeightSource> rest_;
  uint64_t seed_;
  Codes kind_;
};

}  // namespace outrider::cuda
