#include "outrider/ops/cuda/cuda_step_inputs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

/// Blocks of a layer's cache lie so many blocks apart.
int64_t BlockStep(const LayerCache& cache) {
  const int64_t block = int64_t{cache.block_size} * cache.width;
  OUTRIDER_CHECK(cache.block_stride % block == 0);
  return cache.block_stride / block;
}

int32_t KeysOf(const RequestRows& request) { return request.context_length + request.query_length; }

int32_t BlocksOf(const RequestRows& request, const LayerCache& cache) {
  return (KeysOf(request) + cache.block_size - 1) / cache.block_size;
}

/// Writes the request's block table as the kernels count blocks.
void FillTable(const RequestRows& request, const LayerCache& cache, int64_t step, int32_t* table) {
  const int32_t* const blocks = request.block_table(cache.group);
  for (int32_t i = 0; i < BlocksOf(request, cache); ++i) {
    table[i] = static_cast<int32_t>(blocks[i] * step);
  }
}

}  // namespace

template <typename T>
size_t CudaStepInputs::Arrays::Add(const T* values, size_t count) {
  constexpr size_t kAlignment = 16;
  const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes_.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(bytes_.data() + at, values, count * sizeof(T));
  return at;
}

void CudaStepInputs::Arrays::Copy(cudaStream_t stream) {
  if (bytes_.empty()) return;
  if (bytes_.size() > device_.bytes()) {
    device_ = DeviceMemory();
    device_ = DeviceMemory(std::max<size_t>(2 * bytes_.size(), 1 << 16), "inputs of a step");
  }
  // Pageable memory has been read when this returns.
  CheckCuda(
      cudaMemcpyAsync(device_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, stream),
      "copying the inputs of a step");
}

void CudaStepInputs::Assign(const Context& /*context*/, const BatchLayout& layout,
                            const AttentionPlan& plan) {
  static std::atomic<uint64_t> next_serial = 0;
  AssignBounds(layout, plan);
  serial_ = ++next_serial;
  layout_ = &layout;
  plan_ = &plan;
  tokens_.Assign(layout.token_ids());
  CopyRows();
}

void CudaStepInputs::ShiftTokens(const Context& /*context*/, std::span<const int32_t> sources,
                                 std::span<const int32_t> tokens) {
  tokens_.Shift(sources, tokens);
  CopyRows();
}

void CudaStepInputs::CopyRows() {
  rows_.Clear();
  const size_t tokens = rows_.Add(tokens_.tokens().data(), tokens_.tokens().size());
  const size_t positions = rows_.Add(layout_->positions().data(), layout_->positions().size());
  rows_.Copy(stream_);
  token_ids_ = rows_.At<int32_t>(tokens);
  positions_ = rows_.At<int32_t>(positions);
}

const CacheInputs& CudaStepInputs::Of(const LayerCache& cache) const {
  const auto index = static_cast<size_t>(cache.group);
  if (groups_.size() <= index) groups_.resize(index + 1);
  Group& group = groups_[index];
  if (group.serial != serial_ || group.block_step != BlockStep(cache)) {
    group.serial = serial_;
    group.block_step = BlockStep(cache);
    Fill(cache, group);
  }
  return group.inputs;
}

void CudaStepInputs::Fill(const LayerCache& cache, Group& group) const {
  const int64_t step = group.block_step;
  const int64_t block = cache.block_size;
  Arrays& arrays = group.arrays;
  CacheInputs& inputs = group.inputs;
  arrays.Clear();
  const std::span<const int64_t> mapping = layout_->slot_mapping(cache.group);
  std::vector<int64_t> slots(mapping.begin(), mapping.end());
  for (int64_t& slot : slots) {
    if (slot >= 0) slot = slot / block * step * block + slot % block;
  }
  const size_t slots_at = arrays.Add(slots.data(), slots.size());

  DecodeRequests& decode = inputs.decode;
  decode = {};
  std::vector<int32_t> starts;
  std::vector<int32_t> lengths;
  for (const RequestRows& request : plan_->decode_runs()) {
    starts.push_back(request.first_row - plan_->first_decode_row());
    lengths.push_back(KeysOf(request));
    decode.block_table_stride = std::max(decode.block_table_stride, BlocksOf(request, cache));
    decode.max_seq_len = std::max(decode.max_seq_len, KeysOf(request));
  }
  starts.push_back(plan_->num_decode_rows());
  decode.count = static_cast<int>(lengths.size());
  std::vector<int32_t> tables(lengths.size() * static_cast<size_t>(decode.block_table_stride));
  for (size_t i = 0; i < lengths.size(); ++i) {
    FillTable(plan_->decode_runs()[i], cache, step,
              tables.data() + i * static_cast<size_t>(decode.block_table_stride));
  }
  for (const int32_t number : tables) decode.num_blocks = std::max(decode.num_blocks, number + 1);
  const size_t starts_at = arrays.Add(starts.data(), starts.size());
  const size_t lengths_at = arrays.Add(lengths.data(), lengths.size());
  const size_t tables_at = arrays.Add(tables.data(), tables.size());

  inputs.prompts.clear();
  std::vector<size_t> prompt_tables;
  for (const RequestRows& request : plan_->prompts()) {
    std::vector<int32_t> table(static_cast<size_t>(BlocksOf(request, cache)));
    FillTable(request, cache, step, table.data());
    prompt_tables.push_back(arrays.Add(table.data(), table.size()));
    inputs.prompts.push_back({.first_row = request.first_row,
                              .num_rows = request.query_length,
                              .num_keys = KeysOf(request)});
  }
  OUTRIDER_CHECK(plan_->left_over().empty());

  arrays.Copy(stream_);
  inputs.slots = arrays.At<int64_t>(slots_at);
  decode.query_start_loc = arrays.At<int32_t>(starts_at);
  decode.seq_lens = arrays.At<int32_t>(lengths_at);
  decode.block_tables = arrays.At<int32_t>(tables_at);
  for (size_t i = 0; i < prompt_tables.size(); ++i) {
    inputs.prompts[i].block_table = arrays.At<int32_t>(prompt_tables[i]);
  }
}

}  // namespace outrider::cuda
