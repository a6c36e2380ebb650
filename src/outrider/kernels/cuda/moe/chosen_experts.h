// The experts that rows have chosen, for whoever asks: from a router's list to rows of many layers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct ChosenExpertsParams {
  int64_t num_rows = 0;
  int top_k = 0;    // at most `choices`
  int choices = 0;  // of a row in `ids`; the first top_k are those that it chose, best first
  const int32_t* ids = nullptr;  // [num_rows, choices] (ExpertRouting::expert_ids)
  int16_t* to = nullptr;         // [num_rows, top_k], a row every to_stride numbers
  int64_t to_stride = 0;
};

/// Copies them. Rows that the router did not route leave what happens to lie there.
cudaError_t CopyChosenExperts(const ChosenExpertsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
