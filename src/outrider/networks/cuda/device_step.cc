#include "outrider/networks/cuda/device_step.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

/// Places arrays one after another in a block of host memory and its copy on the device.
class Pieces {
 public:
  Pieces(std::byte* host, std::byte* device) : host_(host), device_(device) {}

  /// Room for `count` elements: where the host writes them, and where they will be.
  template <typename T>
  T* Take(size_t count, T** on_device) {
    const size_t at = used_;
    used_ += (count * sizeof(T) + 15) / 16 * 16;
    *on_device = reinterpret_cast<T*>(device_ + at);
    return reinterpret_cast<T*>(host_ + at);
  }
  template <typename T>
  void Copy(std::span<const T> values, T** on_device) {
    std::copy(values.begin(), values.end(), Take(values.size(), on_device));
  }
  size_t used() const { return used_; }

 private:
  std::byte* host_;
  std::byte* device_;
  size_t used_ = 0;
};

/// Bytes that a step of such sizes takes at most.
size_t MostBytes(int64_t rows, int64_t requests, int64_t blocks) {
  constexpr int64_t kArrays = 16;
  return static_cast<size_t>(rows * (2 * 4 + 8 + 3 * 4) + (requests + 1) * (3 * 4) +
                             requests * (blocks * 4 + int64_t{sizeof(StepRequest)}) + 4 +
                             kArrays * 16);
}

}  // namespace

StepUpload::StepUpload(int max_rows, int max_requests, int max_blocks)
    : max_rows_(max_rows),
      max_requests_(max_requests),
      max_blocks_(max_blocks),
      device_(MostBytes(max_rows, max_requests, max_blocks), "rows of a step"),
      host_(MostBytes(max_rows, max_requests, max_blocks)) {}

const DeviceStep& StepUpload::Upload(const BatchLayout& layout, cudaStream_t stream) {
  const int rows = layout.num_rows();
  const int requests = layout.num_requests();
  OUTRIDER_CHECK(rows <= max_rows_ && requests <= max_requests_, "{} rows of {} requests", rows,
                 requests);
  OUTRIDER_CHECK(layout.groups().size() == 1);
  copied_.Wait();
  Pieces pieces(host_.data(), device_.As<std::byte>());
  step_.num_rows = rows;
  step_.num_decode_rows = layout.num_decode_rows();
  step_.num_decode_requests = layout.num_decode_requests();
  step_.num_logits_rows = layout.num_logits_rows();
  step_.block_table_stride = max_blocks_;
  StepArrays& inputs = step_.inputs;
  pieces.Copy(layout.token_ids(), &inputs.token_ids);
  pieces.Copy(layout.positions(), &inputs.positions);
  pieces.Copy(layout.slot_mapping(0), &inputs.slot_mapping);
  pieces.Copy(layout.query_start_loc(), &inputs.query_start_loc);
  pieces.Copy(layout.seq_lens(), &inputs.seq_lens);
  pieces.Copy(layout.logits_rows(), &inputs.logit_rows);
  *pieces.Take(1, &inputs.num_rows) = rows;

  const auto logits_rows = static_cast<size_t>(layout.num_logits_rows());
  const auto count = static_cast<size_t>(requests);
  int32_t* const positions = pieces.Take(logits_rows, &inputs.logit_positions);
  int32_t* const owners = pieces.Take(logits_rows, &inputs.logit_requests);
  int32_t* const starts = pieces.Take(count + 1, &inputs.logit_start_loc);
  StepRequest* step_requests = nullptr;
  StepRequest* const slots = pieces.Take(count, &step_requests);
  step_.requests = step_requests;
  int32_t* const tables =
      pieces.Take(count * static_cast<size_t>(max_blocks_), &inputs.block_tables);
  step_.prompts.clear();
  starts[0] = 0;
  for (int i = 0; i < requests; ++i) {
    const RequestRows& request = layout.requests()[static_cast<size_t>(i)];
    slots[i] = {.slot = request.slot};
    starts[i + 1] = starts[i] + request.num_logits_rows;
    for (int j = starts[i]; j < starts[i + 1]; ++j) {
      owners[j] = i;
      positions[j] =
          layout.positions()[static_cast<size_t>(layout.logits_rows()[static_cast<size_t>(j)])] + 1;
    }
    const int keys = request.context_length + request.query_length;
    const int blocks = layout.groups().front().BlocksBefore(keys);
    OUTRIDER_CHECK(blocks <= max_blocks_, "a request of {} blocks", blocks);
    const int64_t table = int64_t{i} * max_blocks_;
    std::copy_n(request.block_table(0), blocks, tables + table);
    if (request.phase != Phase::kDecode) {
      step_.prompts.push_back({.first_row = request.first_row,
                               .num_rows = request.query_length,
                               .num_keys = keys,
                               .block_table = inputs.block_tables + table});
    }
  }
  CheckCuda(
      cudaMemcpyAsync(device_.data(), host_.data(), pieces.used(), cudaMemcpyHostToDevice, stream),
      "copying the rows of a step");
  copied_.Record(stream);
  return step_;
}

}  // namespace outrider::cuda
