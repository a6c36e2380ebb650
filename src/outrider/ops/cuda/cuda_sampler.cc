#include "outrider/ops/cuda/cuda_sampler.h"

#include <algorithm>
#include <limits>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/sampling/token_mask.h"

namespace outrider::cuda {

namespace {

// Logits are made for about this many rows at a time, which bounds their memory.
constexpr int32_t kLogitsTile = 256;

SlotSampling SamplingOf(const SamplingParams& params, uint64_t seed) {
  SlotSampling sampling;
  sampling.seed = seed;
  sampling.temperature = params.temperature;
  sampling.top_k = params.top_k;
  sampling.top_p = params.top_p;
  sampling.min_p = params.min_p;
  return sampling;
}

}  // namespace

void CudaSampler::HostSampler::MakeLogits(const Context& context, const HeadRows& rows,
                                          MatrixView<float> logits) {
  const auto& ops = static_cast<const CudaOps&>(context.ops);
  const Scratch::Frame frame(context.arena);
  const Tensor on_device = TakeRows(context, DType::kF32, logits.rows, logits.cols);
  ops.Head(context, rows.x, rows.rows, rows.head, on_device);
  CheckCuda(
      cudaMemcpy2DAsync(logits.data, static_cast<size_t>(logits.stride) * sizeof(float),
                        on_device.data, static_cast<size_t>(on_device.stride) * sizeof(float),
                        static_cast<size_t>(logits.cols) * sizeof(float),
                        static_cast<size_t>(logits.rows), cudaMemcpyDeviceToHost, ops.stream()),
      "copying logits to the host");
  ops.WaitForResults();
}

bool CudaSampler::Describe(const VerifyRequest& request, DrawnRows* drawn) const {
  const VerifyInput& input = request.input;
  if (verifier_.NeedsLogits(*input.params) || input.processors != nullptr) return false;
  *drawn = {.sampling = SamplingOf(*input.params, input.seed),
            .first_row = request.first_row,
            .num_rows = static_cast<int32_t>(request.num_rows()),
            .position = static_cast<int64_t>(input.tokens.size()),
            .masks = input.masks};
  return true;
}

void CudaSampler::Verify(const Context& context, const HeadRows& rows,
                         std::span<const VerifyRequest> requests) {
  drawn_rows_.clear();
  drawn_requests_.clear();
  host_requests_.clear();
  host_rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    DrawnRows drawn;
    if (Describe(requests[i], &drawn)) {
      drawn_rows_.push_back(drawn);
      drawn_requests_.push_back(i);
      continue;
    }
    VerifyRequest& request = host_requests_.emplace_back(requests[i]);
    const std::span<const int32_t> own = rows.rows.subspan(static_cast<size_t>(request.first_row),
                                                           static_cast<size_t>(request.num_rows()));
    request.first_row = static_cast<int32_t>(host_rows_.size());
    host_rows_.insert(host_rows_.end(), own.begin(), own.end());
  }
  {
    const Stopwatch watch(head_seconds_);
    DrawRows(context, rows, static_cast<int32_t>(rows.head.rows));
  }
  std::span<const int32_t> drawn = drawn_;
  for (const size_t i : drawn_requests_) {
    VerifyInput input = requests[i].input;
    const auto count = static_cast<size_t>(requests[i].num_rows());
    input.drawn = drawn.first(count);
    drawn = drawn.subspan(count);
    verifier_.Verify(input, requests[i].result);
  }
  host_.Verify(context, {rows.head, rows.x, host_rows_}, host_requests_);
}

void CudaSampler::Draw(const Context& context, const HeadRows& rows,
                       std::span<const DrawRequest> requests, int32_t num_tokens,
                       std::span<int32_t> tokens) {
  drawn_rows_.clear();
  drawn_requests_.clear();
  host_draws_.clear();
  host_draw_requests_.clear();
  host_rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const DrawRequest& request = requests[i];
    if (request.sampling != nullptr && !request.draw.probs.empty()) {
      host_draws_.push_back(i);
      host_draw_requests_.push_back(request);
      host_rows_.push_back(rows.rows[i]);
      continue;
    }
    DrawnRows drawn = {.first_row = static_cast<int32_t>(i), .position = request.draw.position};
    drawn.sampling.temperature = 0;
    if (request.sampling != nullptr) {
      drawn.sampling = SamplingOf(*request.sampling, request.draw.seed);
    }
    drawn_rows_.push_back(drawn);
    drawn_requests_.push_back(i);
  }
  {
    const Stopwatch watch(head_seconds_);
    DrawRows(context, rows, num_tokens);
  }
  for (size_t i = 0; i < drawn_requests_.size(); ++i) {
    tokens[drawn_requests_[i]] = std::max(drawn_[i], 0);
  }
  if (host_draws_.empty()) return;
  host_drafts_.resize(host_draws_.size());
  host_.Draw(context, {rows.head, rows.x, host_rows_}, host_draw_requests_, num_tokens,
             host_drafts_);
  for (size_t i = 0; i < host_draws_.size(); ++i) tokens[host_draws_[i]] = host_drafts_[i];
}

void CudaSampler::DrawFrom(const Context& /*context*/, Tensor /*logits*/,
                           std::span<const DrawRequest> /*requests*/,
                           std::span<int32_t> /*tokens*/) {
  OUTRIDER_CHECK(false, "a drafter of blocks on the GPU");
}

void CudaSampler::DrawRows(const Context& context, const HeadRows& rows, int32_t num_tokens) {
  size_t num_rows = 0;
  for (const DrawnRows& drawn : drawn_rows_) num_rows += static_cast<size_t>(drawn.num_rows);
  drawn_ = {};
  if (num_rows == 0) return;
  ops_.CountIdleTime();
  if (num_rows > room_) {
    ops_.Synchronize();
    room_ = 2 * num_rows;
    tokens_ = DeviceMemory();
    tokens_ = DeviceMemory(room_ * sizeof(int32_t), "drawn tokens");
    host_tokens_ = PinnedMemory(room_ * sizeof(int32_t));
  }
  size_t first = 0;
  int32_t first_row = 0;
  while (first < drawn_rows_.size()) {
    size_t end = first;
    int32_t count = 0;
    while (end < drawn_rows_.size() &&
           (count == 0 || count + drawn_rows_[end].num_rows <= kLogitsTile)) {
      count += drawn_rows_[end++].num_rows;
    }
    DrawTile(context, rows, num_tokens, first, end, first_row, tokens_.As<int32_t>());
    first_row += count;
    first = end;
  }
  CheckCuda(cudaMemcpyAsync(host_tokens_.data(), tokens_.data(), num_rows * sizeof(int32_t),
                            cudaMemcpyDeviceToHost, ops_.stream()),
            "copying tokens to the host");
  ops_.WaitForResults();
  drawn_ = {reinterpret_cast<const int32_t*>(host_tokens_.data()), num_rows};
}

// Of requests [first, end), whose rows begin with `first_row` of the drawn ones.
void CudaSampler::DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens,
                           size_t first, size_t end, int32_t first_row, int32_t* tokens) {
  step_requests_.clear();
  sampling_.clear();
  logit_requests_.clear();
  logit_positions_.clear();
  logit_starts_.clear();
  head_rows_.clear();
  first_mask_.clear();
  masks_.clear();
  const size_t mask_words = MaskWords(num_tokens);
  for (size_t i = first; i < end; ++i) {
    const DrawnRows& drawn = drawn_rows_[i];
    const auto request = static_cast<int32_t>(step_requests_.size());
    step_requests_.push_back({.slot = request});
    sampling_.push_back(drawn.sampling);
    logit_starts_.push_back(static_cast<int32_t>(head_rows_.size()));
    OUTRIDER_CHECK(drawn.position + drawn.num_rows <= std::numeric_limits<int32_t>::max());
    for (int32_t j = 0; j < drawn.num_rows; ++j) {
      logit_requests_.push_back(request);
      logit_positions_.push_back(static_cast<int32_t>(drawn.position) + j);
      head_rows_.push_back(rows.rows[static_cast<size_t>(drawn.first_row + j)]);
    }
    first_mask_.push_back(
        drawn.masks.data == nullptr ? -1 : static_cast<int32_t>(masks_.size() / mask_words));
    for (int64_t j = 0; drawn.masks.data != nullptr && j < drawn.num_rows; ++j) {
      OUTRIDER_CHECK(static_cast<size_t>(drawn.masks.cols) == mask_words);
      masks_.insert(masks_.end(), drawn.masks.row(j), drawn.masks.row(j) + mask_words);
    }
  }
  logit_starts_.push_back(static_cast<int32_t>(head_rows_.size()));
  arrays_.Clear();
  const size_t requests_at = arrays_.Add(step_requests_);
  const size_t sampling_at = arrays_.Add(sampling_);
  const size_t logit_requests_at = arrays_.Add(logit_requests_);
  const size_t positions_at = arrays_.Add(logit_positions_);
  const size_t starts_at = arrays_.Add(logit_starts_);
  const size_t head_rows_at = arrays_.Add(head_rows_);
  const size_t first_mask_at = arrays_.Add(first_mask_);
  const size_t masks_at = arrays_.Add(masks_);
  arrays_.Copy();

  const Scratch::Frame frame(context.arena);
  const auto count = static_cast<int64_t>(head_rows_.size());
  const Tensor logits = TakeRows(context, DType::kF32, count, rows.head.rows);
  ops_.HeadAt(context, rows.x, arrays_.At<int32_t>(head_rows_at), rows.head, logits);
  DrawParams params;
  params.max_rows = static_cast<int>(count);
  params.vocab_size = num_tokens;
  params.logits = static_cast<const float*>(logits.data);
  params.logits_stride = logits.stride;
  params.requests = arrays_.At<StepRequest>(requests_at);
  params.logit_positions = arrays_.At<int32_t>(positions_at);
  params.logit_requests = arrays_.At<int32_t>(logit_requests_at);
  params.logit_start_loc = arrays_.At<int32_t>(starts_at);
  params.slots = arrays_.At<SlotSampling>(sampling_at);
  if (!masks_.empty()) {
    params.masks = arrays_.At<uint32_t>(masks_at);
    params.first_mask = arrays_.At<int32_t>(first_mask_at);
  }
  CheckCuda(DrawTokens(params, {.tokens = tokens + first_row}, ops_.stream()), "drawing tokens");
}

}  // namespace outrider::cuda
