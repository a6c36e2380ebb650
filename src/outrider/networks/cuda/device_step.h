// A step's rows in device memory, as the network's operations read them: copied from a BatchLayout,
// or left there by MakeStepInputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kernels/cuda/step_inputs.h"

namespace outrider::cuda {

/// A piece of a prompt: rows of one request that run in the expanded form.
struct PromptPiece {
  int first_row = 0;
  int num_rows = 0;
  int num_keys = 0;                      // its own rows included
  const int32_t* block_table = nullptr;  // on the device
};

/// Rows stand in order of request: requests that decode, then prompts.
struct DeviceStep {
  int num_rows = 0;                    // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // [1] on the device; then no row is a prompt's
  int num_decode_rows = 0;
  int num_decode_requests = 0;
  int num_logits_rows = 0;
  StepArrays inputs;
  int block_table_stride = 0;
  std::vector<PromptPiece> prompts;
  const StepRequest* requests = nullptr;  // [requests] on the device: their slots (DrawTokens)
};

/// Copies layouts to the device. One stream at a time.
class StepUpload {
 public:
  /// What layouts have at most; tables of so many blocks.
  StepUpload(int max_rows, int max_requests, int max_blocks);

  /// The copies are made in `stream`. What this returns is valid until the next call, which waits
  /// until these copies are done; work in `stream` that reads it must come before that call's.
  const DeviceStep& Upload(const BatchLayout& layout, cudaStream_t stream);

 private:
  int max_rows_;
  int max_requests_;
  int max_blocks_;
  DeviceMemory device_;
  PinnedMemory host_;
  DeviceEvent copied_;
  DeviceStep step_;
};

}  // namespace outrider::cuda
