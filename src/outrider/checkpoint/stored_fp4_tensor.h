// An FP4 tensor of a safetensors file as DeepSeek-V4 publishes experts: e2m1 codes, two to a byte
// with the even column in the lower half, and an e8m0 scale for every kFp4Group columns of a row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outrider/base/file.h"
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

class StoredFp4Tensor : public WeightTensor {
 public:
  /// `info`: dtype kF4E2M1, the shape that of the weights, [rows, cols], with cols a multiple of
  /// kFp4Group. scales: of kF8E8M0, [rows, cols / kFp4Group], in `scale_file`.
  StoredFp4Tensor(std::shared_ptr<const File> file, const TensorInfo& info,
                  std::shared_ptr<const File> scale_file, const TensorInfo& scales);

  DType stored_dtype() const override { return DType::kF4E2M1; }
  int64_t stored_bytes() const override { return stored_bytes_; }
  /// ReadExponents refuses scales with which it would not be.
  bool exact_in_bfloat16() const override { return true; }
  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override;
  void ReadExponents(int64_t first_row, int64_t count, uint8_t* out) const override;
  void ReadRows(int64_t first_row, int64_t count, float* out) const override;

 private:
  std::shared_ptr<const File> file_;
  uint64_t begin_;
  std::shared_ptr<const File> scale_file_;
  std::string scale_name_;
  uint64_t scale_begin_;
  int64_t stored_bytes_;
};

}  // namespace outrider
