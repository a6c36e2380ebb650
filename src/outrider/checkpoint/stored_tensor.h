// A tensor of a safetensors file, converted to float as its rows are read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "outrider/base/file.h"
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

/// Whether StoredTensor can convert this element type: F32, BF16, F16 or F8_E4M3.
bool IsReadable(DType dtype);

/// Scales of an FP8 tensor's blocks: value(r, c) is multiplied by
/// values[r / block_rows][c / block_cols], of [ceil(rows/block_rows), ceil(cols/block_cols)]
/// values.
struct BlockScales {
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  int64_t stored_bytes = 0;
  std::vector<float> values;
};

class StoredTensor : public WeightTensor {
 public:
  /// `info` must have a readable dtype; `scales` have values exactly when it is F8_E4M3.
  StoredTensor(std::shared_ptr<const File> file, const TensorInfo& info, BlockScales scales);

  DType stored_dtype() const override { return dtype_; }
  int64_t stored_bytes() const override { return stored_bytes_; }
  bool exact_in_bfloat16() const override { return exact_in_bfloat16_; }
  void ReadRows(int64_t first_row, int64_t count, float* out) const override;

 private:
  void Convert(const std::byte* from, int64_t first_row, int64_t count, float* out) const;
  void ConvertFp8(const std::byte* from, int64_t first_row, int64_t count, float* out) const;

  std::shared_ptr<const File> file_;
  uint64_t begin_;
  DType dtype_;
  BlockScales scales_;
  int64_t stored_bytes_;
  bool exact_in_bfloat16_;
};

}  // namespace outrider
