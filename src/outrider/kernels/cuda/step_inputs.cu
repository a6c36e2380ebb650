// A block per request. Each finds where its rows begin by itself, from the query lengths of all
// requests before it: no block waits for another.
#include <algorithm>

#include "outrider/kernels/cuda/dependent_launch.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"
#include "outrider/kernels/cuda/step_inputs.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

/// Rows of a request, and how many of them are for logits.
struct RowCounts {
  int rows;
  int logits;
};

__device__ __forceinline__ RowCounts CountRows(const StepInputParams& params,
                                               const StepRequest& request) {
  if (request.prompt_rows > 0) return {request.prompt_rows, request.wants_logits != 0 ? 1 : 0};
  if (request.slot < 0 || request.slot >= params.slots.num_slots) __trap();
  const int remaining = params.slots.remaining[request.slot];
  const int drafts = params.slots.num_drafts[request.slot];
  const int rows = min(min(1 + drafts, request.max_rows), remaining);
  return {rows, rows};
}

__global__ void __launch_bounds__(kThreads)
    StepInputsKernel(const StepInputParams params, const StepArrays inputs) {
  __shared__ int warp_rows[kThreads / 32];
  __shared__ int warp_logits[kThreads / 32];
  LaunchDependents();
  WaitForPriorGrid();
  const int index = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  int rows_before = 0;
  int logits_before = 0;
#pragma unroll 4
  for (int other = thread; other < index; other += kThreads) {
    const RowCounts counts = CountRows(params, params.requests[other]);
    rows_before += counts.rows;
    logits_before += counts.logits;
  }
  rows_before = __reduce_add_sync(~0u, rows_before);
  logits_before = __reduce_add_sync(~0u, logits_before);
  if (thread % 32 == 0) {
    warp_rows[thread / 32] = rows_before;
    warp_logits[thread / 32] = logits_before;
  }
  __syncthreads();
  int first_row = 0;
  int first_logit = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    first_row += warp_rows[warp];
    first_logit += warp_logits[warp];
  }

  const StepRequest request = params.requests[index];
  const SlotStates& slots = params.slots;
  if (request.slot < 0 || request.slot >= slots.num_slots) __trap();
  const RowCounts counts = CountRows(params, request);
  if (first_row + counts.rows > params.max_rows) __trap();
  const bool prompt = request.prompt_rows > 0;
  const int first_position = prompt ? request.first_position : slots.lengths[request.slot];
  const int seq_len = first_position + counts.rows;
  const int32_t* tokens =
      prompt ? params.prompt_tokens + request.first_prompt_token
             : slots.tokens + static_cast<int64_t>(request.slot) * (1 + slots.max_drafts);
  const int32_t* table =
      slots.block_tables + static_cast<int64_t>(request.slot) * slots.block_table_stride;
  for (int i = thread; i < counts.rows; i += kThreads) {
    const int position = first_position + i;
    const int place = position / params.page_size;
    if (place >= slots.block_table_stride) __trap();
    const int page = table[place];
    if (page < 0 || page >= params.num_pages) __trap();
    inputs.token_ids[first_row + i] = tokens[i];
    inputs.positions[first_row + i] = position;
    inputs.slot_mapping[first_row + i] =
        static_cast<int64_t>(page) * params.page_size + position % params.page_size;
  }
  // Of a prompt, only the last row.
  for (int i = thread; i < counts.logits; i += kThreads) {
    const int row = counts.rows - counts.logits + i;
    inputs.logit_rows[first_logit + i] = first_row + row;
    inputs.logit_positions[first_logit + i] = first_position + row + 1;
    inputs.logit_requests[first_logit + i] = index;
  }
  int32_t* table_copy =
      inputs.block_tables + static_cast<int64_t>(index) * slots.block_table_stride;
  const int pages = counts.rows == 0 ? 0 : (seq_len + params.page_size - 1) / params.page_size;
#pragma unroll 4
  for (int i = thread; i < pages; i += kThreads) table_copy[i] = table[i];
  if (thread != 0) return;
  inputs.query_start_loc[index] = first_row;
  inputs.logit_start_loc[index] = first_logit;
  inputs.seq_lens[index] = seq_len;
  if (index + 1 == params.num_requests) {
    inputs.query_start_loc[index + 1] = first_row + counts.rows;
    inputs.logit_start_loc[index + 1] = first_logit + counts.logits;
    *inputs.num_rows = first_row + counts.rows;
  }
}

}  // namespace

cudaError_t MakeStepInputs(const StepInputParams& params, const StepArrays& inputs,
                           cudaStream_t stream) {
  if (params.num_requests <= 0 || params.max_rows <= 0 || params.page_size <= 0 ||
      params.num_pages <= 0 || params.slots.num_slots <= 0 || params.slots.max_drafts < 0 ||
      params.slots.block_table_stride <= 0) {
    RefuseArgument("MakeStepInputs: ", params.num_requests, " requests, ", params.max_rows,
                   " rows, ", params.num_pages, " pages of ", params.page_size, " tokens, ",
                   params.slots.num_slots, " slots with ", params.slots.max_drafts, " drafts and ",
                   params.slots.block_table_stride,
                   " pages each: all but the drafts must be above 0");
  }
  return LaunchDependent(StepInputsKernel, dim3(params.num_requests), dim3(kThreads), 0, stream,
                         params, inputs);
}

}  // namespace outrider::cuda
