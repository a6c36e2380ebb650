// A tensor of a safetensors file, converted to float as its rows are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outrider/base/file.h"
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

/// Whether weights may be of this element type: F32, BF16, F16 or F8_E4M3.
bool IsReadable(DType dtype);

class StoredTensor : public WeightTensor {
 public:
  /// `info` must have a readable dtype, or be that of scales, F8_E8M0, or an
  /// integer of 32 or 64 bits; `scales` have values exactly
  /// when it is F8_E4M3.
  StoredTensor(std::shared_ptr<const File> file, const TensorInfo& info, BlockScales scales);

  DType stored_dtype() const override { return dtype_; }
  int64_t stored_bytes() const override { return stored_bytes_; }
  bool exact_in_bfloat16() const override { return exact_in_bfloat16_; }
  const BlockScales* block_scales() const override {
    return dtype_ == DType::kF8E4M3 ? &scales_ : nullptr;
  }
  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override;
  void ReadRows(int64_t first_row, int64_t count, float* out) const override;
  void ReadBFloat16(int64_t first_row, int64_t count, BFloat16* out) const override;

 private:
  void Convert(const std::byte* from, int64_t first_row, int64_t count, float* out) const;
  void ConvertFp8(const std::byte* from, int64_t first_row, int64_t count, float* out) const;

  std::shared_ptr<const File> file_;
  std::string name_;
  uint64_t begin_;
  DType dtype_;
  BlockScales scales_;
  int64_t stored_bytes_;
  bool exact_in_bfloat16_;
};

}  // namespace outrider
