// A step's rows on the device, with what they read in DeepSeek-V4's attention.
#pragma once

#include <vector>

#include "outrider/kernels/cuda/compressed/compressed_rows.h"
#include "tests/kernels/cuda/sparse/sparse_world.h"

namespace outrider::cuda {

/// `padding` rows behind the true ones belong to nobody.
class DeviceCompressedRows {
 public:
  DeviceCompressedRows(const std::vector<Window>& windows, CompressedRowsParams params,
                       int padding = 0) {
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lens;
    for (const Window& window : windows) {
      starts.push_back(starts.back() + window.end - window.begin);
      lens.push_back(window.end);
    }
    starts_ = DeviceArray<int32_t>(starts);
    lens_ = DeviceArray<int32_t>(lens);
    params.num_rows = starts.back() + padding;
    params.num_requests = static_cast<int>(windows.size());
    params.query_start_loc = starts_.data();
    params.seq_lens = lens_.data();
    params_ = params;
    memory_ = DeviceArray<uint8_t>(CompressedRowsBytes(params.num_rows));
    rows_ = CarveCompressedRows(memory_.data(), params.num_rows);
  }
  void Plan(cudaStream_t stream) const {
    CudaOk(PlanCompressedRows(params_, rows_, stream), "plan of rows");
  }
  const CompressedRows& rows() const { return rows_; }
  int num_rows() const { return params_.num_rows; }

 private:
  DeviceArray<int32_t> starts_;
  DeviceArray<int32_t> lens_;
  CompressedRowsParams params_;
  DeviceArray<uint8_t> memory_;
  CompressedRows rows_;
};

}  // namespace outrider::cuda
