// Requests with sampling fields, drafts and logits, drawn from on the device and, for comparison,
// on the CPU, by its processors and its Sampler.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "outrider/base/arg_max.h"
#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/sampling/logits_processors.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/sampler.h"
#include "outrider/sampling/token_mask.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"

namespace outrider::cuda {

struct DrawRequest {
  SamplingParams params;
  uint64_t seed = 0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;  // its last token is the input of the first row
  std::vector<int32_t> drafts;
  std::vector<uint32_t> masks;             // [1 + drafts, MaskWords], or empty
  std::vector<std::vector<float>> logits;  // [1 + drafts]

  size_t length() const { return prompt.size() + output.size(); }
  bool penalised() const {
    return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
           params.frequency_penalty != 0;
  }
};

/// What is drawn from one row.
struct DrawnToken {
  int32_t token = 0;
  std::optional<PositionLogprobs> logprobs;
};

inline bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// By the CPU, row by row.
inline std::vector<DrawnToken> DrawOnTheCpu(const DrawRequest& request, int32_t vocab,
                                            bool processed_logprobs) {
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), request.output.begin(), request.output.end());
  LogitsProcessors processors(request.params, request.prompt, {}, vocab);
  Sampler sampler;
  std::vector<DrawnToken> result;
  for (size_t j = 0; j < request.logits.size(); ++j) {
    const std::vector<float>& raw = request.logits[j];
    std::vector<float> row = raw;
    if (!request.masks.empty()) {
      const size_t words = MaskWords(vocab);
      ApplyTokenMask({request.masks.data() + j * words, words}, row);
    }
    processors.Apply({tokens, request.prompt.size(), {request.drafts.data(), j}}, row);
    const auto position = static_cast<int64_t>(tokens.size() + j);
    DrawnToken drawn;
    drawn.token = sampler.Sample(request.params, {.seed = request.seed, .position = position}, row);
    const bool overflown = HasNan(raw) || !std::isfinite(raw[ArgMax(raw)]);
    if (overflown || drawn.token == Sampler::kNoToken) {
      drawn.token = overflown ? kDrawOverflown : kDrawDeadEnd;
    } else if (request.params.logprobs) {
      std::vector<float> view = raw;
      if (processed_logprobs) sampler.Process(request.params, row, view);
      drawn.logprobs = ComputeLogprobs(view, drawn.token, *request.params.logprobs);
    }
    result.push_back(std::move(drawn));
  }
  return result;
}

/// The inputs of DrawTokens for some requests, on the device.
class DrawBatch {
 public:
  static constexpr int kMaxTop = 20;

  /// `spare_rows` more rows are launched than there are; `processed_logprobs` as in DrawParams.
  DrawBatch(const std::vector<const DrawRequest*>& requests, int32_t vocab, int spare_rows = 0)
      : vocab_(vocab), requests_(requests) {
    std::vector<int32_t> token_ids, logit_rows, positions, row_requests, starts = {0}, first_mask;
    std::vector<RequestSampling> slots(requests.size());
    std::vector<uint32_t> masks, counts;
    std::vector<int32_t> bias_tokens, count_tokens;
    std::vector<float> bias_values, logits;
    stride_ = (static_cast<int64_t>(vocab) + 3) / 4 * 4;
    for (size_t i = 0; i < requests.size(); ++i) {
      const DrawRequest& request = *requests[i];
      RequestSampling& slot = slots[i];
      const SamplingParams& params = request.params;
      slot.seed = request.seed;
      slot.temperature = params.temperature;
      slot.top_k = params.top_k;
      slot.top_p = params.top_p;
      slot.min_p = params.min_p;
      slot.repetition_penalty = params.repetition_penalty;
      slot.presence_penalty = params.presence_penalty;
      slot.frequency_penalty = params.frequency_penalty;
      slot.first_bias = static_cast<int32_t>(bias_tokens.size());
      slot.num_biases = static_cast<int32_t>(params.logit_bias.size());
      for (const TokenBias& bias : params.logit_bias) {
        bias_tokens.push_back(bias.token);
        bias_values.push_back(bias.value);
      }
      slot.top_logprobs = params.logprobs ? *params.logprobs : -1;
      if (request.penalised()) {
        std::map<int32_t, uint32_t> occurred;
        for (const int32_t token : request.prompt) occurred[token] |= kInPrompt;
        for (const int32_t token : request.output) ++occurred[token];
        slot.penalised = true;
        slot.first_count = static_cast<int32_t>(counts.size());
        slot.num_counts = static_cast<int32_t>(occurred.size());
        for (const auto& [token, count] : occurred) {
          count_tokens.push_back(token);
          counts.push_back(count);
        }
      }
      first_mask.push_back(
          request.masks.empty() ? -1 : static_cast<int32_t>(masks.size() / MaskWords(vocab)));
      masks.insert(masks.end(), request.masks.begin(), request.masks.end());
      token_ids.push_back(-7);  // a row of something else before each request
      for (size_t j = 0; j < request.logits.size(); ++j) {
        positions.push_back(static_cast<int32_t>(request.length() + j));
        logit_rows.push_back(static_cast<int32_t>(token_ids.size()));
        row_requests.push_back(static_cast<int32_t>(i));
        token_ids.push_back(j == 0 ? 0 : request.drafts[j - 1]);
        logits.insert(logits.end(), request.logits[j].begin(), request.logits[j].end());
        logits.resize(logits.size() + static_cast<size_t>(stride_ - vocab), 1e30F);
      }
      starts.push_back(static_cast<int32_t>(logit_rows.size()));
    }
    rows_ = static_cast<int>(logit_rows.size());
    max_rows_ = rows_ + spare_rows;
    slots_ = DeviceArray<RequestSampling>(slots);
    token_ids_ = DeviceArray<int32_t>(token_ids);
    logit_rows_ = DeviceArray<int32_t>(logit_rows);
    positions_ = DeviceArray<int32_t>(positions);
    row_requests_ = DeviceArray<int32_t>(row_requests);
    starts_ = DeviceArray<int32_t>(starts);
    first_mask_ = DeviceArray<int32_t>(first_mask);
    masks_ = DeviceArray<uint32_t>(masks);
    count_tokens_ = DeviceArray<int32_t>(count_tokens);
    counts_ = DeviceArray<uint32_t>(counts);
    bias_tokens_ = DeviceArray<int32_t>(bias_tokens);
    bias_values_ = DeviceArray<float>(bias_values);
    logits_ = DeviceArray<float>(logits);
    num_rows_ = DeviceArray<int32_t>(std::vector<int32_t>{rows_});
    const auto all = static_cast<size_t>(max_rows_);
    tokens_ = DeviceArray<int32_t>(all, 0x5A);
    ranks_ = DeviceArray<int32_t>(all, 0x5A);
    logprobs_ = DeviceArray<float>(all, 0x5A);
    top_tokens_ = DeviceArray<int32_t>(all * kMaxTop, 0x5A);
    top_logprobs_ = DeviceArray<float>(all * kMaxTop, 0x5A);
  }

  DrawParams Params(bool processed_logprobs) const {
    return {.max_rows = max_rows_,
            .num_rows = num_rows_.data(),
            .vocab_size = vocab_,
            .logits = logits_.data(),
            .logits_stride = stride_,
            .token_ids = token_ids_.data(),
            .logit_rows = logit_rows_.data(),
            .logit_positions = positions_.data(),
            .logit_requests = row_requests_.data(),
            .logit_start_loc = starts_.data(),
            .sampling = slots_.data(),
            .masks = masks_.size() > 0 ? masks_.data() : nullptr,
            .first_mask = first_mask_.data(),
            .bias_tokens = bias_tokens_.data(),
            .bias_values = bias_values_.data(),
            .count_tokens = count_tokens_.data(),
            .counts = counts_.data(),
            .processed_logprobs = processed_logprobs,
            .max_top_logprobs = kMaxTop};
  }
  DrawResults Results() const {
    return {.tokens = tokens_.data(),
            .logprobs = logprobs_.data(),
            .ranks = ranks_.data(),
            .top_tokens = top_tokens_.data(),
            .top_logprobs = top_logprobs_.data()};
  }

  /// By request, then row.
  std::vector<std::vector<DrawnToken>> Run(bool processed_logprobs, int replays = 0) const {
    const DrawParams params = Params(processed_logprobs);
    RunOnDevice(
        [&](cudaStream_t stream) { CudaOk(DrawTokens(params, Results(), stream), "DrawTokens"); },
        replays);
    const std::vector<int32_t> tokens = tokens_.Download(), ranks = ranks_.Download(),
                               top_tokens = top_tokens_.Download();
    const std::vector<float> logprobs = logprobs_.Download(), top = top_logprobs_.Download();
    for (size_t i = static_cast<size_t>(rows_); i < tokens.size(); ++i) {
      if (tokens[i] != 0x5A5A5A5A) throw std::runtime_error("a row past the true number was drawn");
    }
    std::vector<std::vector<DrawnToken>> result;
    size_t row = 0;
    for (const DrawRequest* request : requests_) {
      std::vector<DrawnToken>& drawn = result.emplace_back();
      for (size_t j = 0; j < request->logits.size(); ++j, ++row) {
        DrawnToken& token = drawn.emplace_back();
        token.token = tokens[row];
        if (!request->params.logprobs) continue;
        PositionLogprobs& position = token.logprobs.emplace();
        position.chosen = {tokens[row], logprobs[row]};
        position.rank = ranks[row];
        const int count = std::min(*request->params.logprobs, vocab_);
        for (int i = 0; i < count; ++i) {
          position.top.push_back({top_tokens[row * kMaxTop + i], top[row * kMaxTop + i]});
        }
      }
    }
    return result;
  }

 private:
  int32_t vocab_;
  std::vector<const DrawRequest*> requests_;
  int64_t stride_ = 0;
  int rows_ = 0;
  int max_rows_ = 0;
  DeviceArray<RequestSampling> slots_;
  DeviceArray<int32_t> token_ids_, logit_rows_, positions_, row_requests_, starts_, first_mask_,
      bias_tokens_, count_tokens_, num_rows_, tokens_, ranks_, top_tokens_;
  DeviceArray<uint32_t> masks_, counts_;
  DeviceArray<float> bias_values_, logits_, logprobs_, top_logprobs_;
};

}  // namespace outrider::cuda
