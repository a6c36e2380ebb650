// A matrix of 4-bit codes in safetensors files, two to a byte with the even column in the lower
// half, and the scales of its groups.
#pragma once

#include <cstdint>

#include "outrider/checkpoint/tensor_entry.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

class StoredFourBitTensor : public WeightTensor {
 public:
  /// codes: of dtype kF4E2M1 or kI4, the shape that of the weights, [rows, cols]. scales: one of
  /// group.dtype for every group.stored_cols columns, a divisor of cols.
  StoredFourBitTensor(TensorEntry codes, TensorEntry scales, const GroupScales& group);

  DType stored_dtype() const override { return *codes_.info.dtype; }
  int64_t stored_bytes() const override;
  /// ReadGroupScales refuses powers of two with which FP4 would not be.
  bool exact_in_bfloat16() const override {
    return stored_dtype() == DType::kF4E2M1 && group_.global == 1;
  }
  const GroupScales* group_scales() const override { return &group_; }
  void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const override;
  void ReadGroupScales(int64_t first_row, int64_t count, uint8_t* out) const override;
  void ReadRows(int64_t first_row, int64_t count, float* out) const override;

 private:
  /// Refuses scales that no product can use. A group of zeros may have any finite scale, and gets 1
  /// where its own is out of range.
  void CheckScales(int64_t first_row, int64_t count, uint8_t* stored) const;
  /// Refuses rows whose powers of two are too far from each other for a GPU. Groups of zeros get
  /// the row's largest.
  void CheckSpans(int64_t first_row, int64_t count, uint8_t* stored) const;
  bool IsGroupOfZeros(int64_t row, int64_t group) const;

  TensorEntry codes_;
  TensorEntry scales_;
  GroupScales group_;
};

}  // namespace outrider
