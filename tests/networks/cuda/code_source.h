// Random weights whose projections are stored as e4m3 codes with scales of blocks of 128x128.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider::cuda {

class CodeTensor : public WeightTensor {
 public:
  /// Values have a standard deviation of about cols^-1/2.
  CodeTensor(std::span<const int64_t> shape, uint64_t seed, bool powers_of_two)
      : WeightTensor({shape.begin(), shape.end()}), powers_of_two_(powers_of_two), seed_(seed) {
    std::mt19937_64 random(seed);
    const auto blocks = static_cast<size_t>((rows() + 127) / 128 * ((cols() + 127) / 128));
    // Codes are up to 448 and spread over exponents: their mean square is about 100 squared.
    const double size = 1 / std::sqrt(static_cast<double>(cols())) / 100;
    scales_.block_rows = scales_.block_cols = 128;
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
    const int64_t blocks = (cols() + 127) / 128;
    for (int64_t i = 0; i < count * cols(); ++i) {
      const int64_t block = (first_row + i / cols()) / 128 * blocks + i % cols() / 128;
      out[i] = Float8E4M3ToFloat(codes[static_cast<size_t>(i)]) *
               scales_.values[static_cast<size_t>(block)];
    }
  }

 private:
  bool powers_of_two_;
  uint64_t seed_;
  BlockScales scales_;
};

/// MakeDummyWeights, but for the projections.
class CodeSource : public WeightSource {
 public:
  CodeSource(const ModelConfig& config, uint64_t seed, bool powers_of_two)
      : rest_(MakeDummyWeights(config, seed)), seed_(seed), powers_of_two_(powers_of_two) {}

  bool Has(std::string_view name) const override { return rest_->Has(name); }
  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    const std::string& name = tensor.name;
    if (!name.ends_with("_proj.weight") && !name.ends_with("_with_mqa.weight")) {
      return rest_->Open(tensor);
    }
    if (name.ends_with("eh_proj.weight")) return rest_->Open(tensor);
    return std::make_unique<CodeTensor>(tensor.shape, seed_ ^ std::hash<std::string>()(name),
                                        powers_of_two_);
  }
  void Check(std::span<const ExpectedTensor>, FunctionRef<bool(std::string_view)>) const override {}
  std::string where() const override { return "random codes"; }
  std::vector<std::string> names() const override { return {}; }

 private:
  std::unique_ptr<WeightSource> rest_;
  uint64_t seed_;
  bool powers_of_two_;
};

}  // namespace outrider::cuda
