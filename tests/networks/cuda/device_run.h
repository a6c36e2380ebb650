// Networks on the device and on the CPU, run over the same layouts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/draw.h"
#include "outrider/networks/cuda/device_network.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {

inline int TestThreads() { return static_cast<int>(std::thread::hardware_concurrency()); }

/// A network on the CPU, and what it gives. Two of them judge the device's: in float32, and with
/// operands and cache rounded to bfloat16 as the device rounds them.
class CpuNetwork {
 public:
  CpuNetwork(const ModelConfig& config, const WeightSource& source, int mtp_modules, DType dtype,
             int32_t num_blocks, int32_t block_size)
      : pool_(TestThreads()),
        network_(LoadNetwork(config, mtp_modules, source, {.compute_dtype = dtype},
                             {{cpu::GetCpuOps(SelectIsa()), &pool_}, dtype})),
        cache_(network_->device(),
               MakeCacheConfig(network_->cache_needs(), dtype, block_size, num_blocks),
               network_->cache_needs().layers, dtype) {}

  /// The residual stream after each layer, then the hidden rows: float32 [rows, hidden] each.
  std::vector<std::vector<float>> Forward(const BatchLayout& layout) {
    const auto layers = static_cast<size_t>(network_->config().num_hidden_layers());
    const auto size = static_cast<size_t>(layout.num_rows() * network_->hidden_size());
    std::vector<std::vector<float>> result(layers + 1, std::vector<float>(size));
    std::vector<LayerTap> taps;
    for (size_t i = 0; i < layers; ++i) {
      taps.push_back({.layer = static_cast<int32_t>(i), .out = View(result[i])});
    }
    network_->Forward(layout, cache_, View(result.back()), taps);
    return result;
  }

  std::vector<float> ForwardMtp(int m, const BatchLayout& layout, std::vector<float> previous) {
    network_->ForwardMtp(m, layout, cache_, View(previous), View(previous));
    return previous;
  }

 private:
  MatrixView<float> View(std::vector<float>& rows) const {
    const int64_t width = network_->hidden_size();
    return {rows.data(), static_cast<int64_t>(rows.size()) / width, width};
  }

  ThreadPool pool_;
  std::unique_ptr<Network> network_;
  KvCache cache_;
};

inline DeviceWeights LoadForTest(const ModelConfig& config, const WeightSource& source,
                                 int mtp_modules) {
  ThreadPool pool(TestThreads());
  return LoadDeviceWeights(config, mtp_modules, source, pool, nullptr);
}

/// A network on the device whose calls return when they are done.
class TestNetwork {
 public:
  TestNetwork(const ModelConfig& config, const WeightSource& source, int mtp_modules,
              const DeviceNetworkLimits& limits)
      : limits_(limits),
        model_(config, LoadForTest(config, source, mtp_modules), limits),
        hidden_(static_cast<size_t>(limits.max_rows * config.hidden_size)),
        previous_(hidden_.size()),
        logits_(static_cast<size_t>(limits.max_logits_rows * model_.logits_stride())) {
    std::vector<int32_t> numbers(static_cast<size_t>(limits.max_rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    row_numbers_ = DeviceArray<int32_t>(numbers);
  }

  DeviceNetwork& model() { return model_; }
  int64_t hidden_size() const { return model_.config().hidden_size; }

  /// bf16 [rows, hidden].
  std::vector<uint16_t> Forward(const BatchLayout& layout, const DeviceCache& cache,
                                const DeviceLayerObserver& observer = nullptr) {
    const DeviceStep& step = Upload(layout);
    model_.Forward(step, cache, hidden_.data(), nullptr, observer);
    return Hidden(layout.num_rows());
  }

  std::vector<uint16_t> ForwardMtp(int m, const BatchLayout& layout, const DeviceCache& cache,
                                   const std::vector<uint16_t>& previous) {
    CudaOk(
        cudaMemcpy(previous_.data(), previous.data(), previous.size() * 2, cudaMemcpyHostToDevice),
        "previous");
    model_.ForwardMtp(m, Upload(layout), cache, previous_.data(), row_numbers_.data(),
                      layout.num_rows(), hidden_.data(), nullptr);
    return Hidden(layout.num_rows());
  }

  /// Of rows of bf16 hidden states: float32 [rows, vocabulary].
  std::vector<float> Logits(const std::vector<uint16_t>& hidden) {
    const int64_t rows = static_cast<int64_t>(hidden.size()) / hidden_size();
    const int64_t vocab = model_.config().vocab_size;
    CudaOk(cudaMemcpy(previous_.data(), hidden.data(), hidden.size() * 2, cudaMemcpyHostToDevice),
           "hidden");
    std::vector<float> result;
    for (int64_t first = 0; first < rows; first += limits_.max_logits_rows) {
      const int64_t count = std::min<int64_t>(limits_.max_logits_rows, rows - first);
      model_.Logits(previous_.data(), row_numbers_.data() + first, static_cast<int>(count),
                    logits_.data(), nullptr);
      CudaOk(cudaDeviceSynchronize(), "logits");
      const std::vector<float> padded = logits_.Download();
      for (int64_t r = 0; r < count; ++r) {
        const auto begin = padded.begin() + r * model_.logits_stride();
        result.insert(result.end(), begin, begin + vocab);
      }
    }
    return result;
  }

  /// Runs a step and draws a token from each row of logits, greedily.
  std::vector<int32_t> GreedyStep(const BatchLayout& layout, const DeviceCache& cache) {
    const DeviceStep& step = Upload(layout);
    model_.Forward(step, cache, hidden_.data(), nullptr);
    model_.Logits(hidden_.data(), step.inputs.logit_rows, step.num_logits_rows, logits_.data(),
                  nullptr);
    const DeviceArray<SlotSampling> slots(std::vector<SlotSampling>(
        static_cast<size_t>(limits_.max_requests), SlotSampling{.temperature = 0}));
    const DeviceArray<int32_t> tokens(static_cast<size_t>(limits_.max_logits_rows));
    CudaOk(DrawTokens({.max_rows = step.num_logits_rows,
                       .vocab_size = static_cast<int>(model_.config().vocab_size),
                       .logits = logits_.data(),
                       .logits_stride = model_.logits_stride(),
                       .requests = step.requests,
                       .token_ids = step.inputs.token_ids,
                       .logit_rows = step.inputs.logit_rows,
                       .logit_positions = step.inputs.logit_positions,
                       .logit_requests = step.inputs.logit_requests,
                       .logit_start_loc = step.inputs.logit_start_loc,
                       .slots = slots.data()},
                      {.tokens = tokens.data()}, nullptr),
           "draw");
    CudaOk(cudaDeviceSynchronize(), "step");
    std::vector<int32_t> drawn = tokens.Download();
    drawn.resize(static_cast<size_t>(step.num_logits_rows));
    return drawn;
  }

 private:
  const DeviceStep& Upload(const BatchLayout& layout) {
    const int block_size = layout.groups().front().tokens_per_block;
    if (!upload_ || upload_block_size_ != block_size) {
      upload_block_size_ = block_size;
      upload_.emplace(limits_.max_rows, limits_.max_requests,
                      (limits_.max_seq_len + upload_block_size_ - 1) / upload_block_size_);
    }
    return upload_->Upload(layout, nullptr);
  }

  std::vector<uint16_t> Hidden(int64_t rows) {
    CudaOk(cudaDeviceSynchronize(), "step");
    std::vector<uint16_t> all = hidden_.Download();
    all.resize(static_cast<size_t>(rows * hidden_size()));
    return all;
  }

  DeviceNetworkLimits limits_;
  DeviceNetwork model_;
  DeviceArray<uint16_t> hidden_, previous_;
  DeviceArray<float> logits_;
  DeviceArray<int32_t> row_numbers_;
  std::optional<StepUpload> upload_;
  int upload_block_size_ = 0;
};

/// A request whose tokens are known: the first `prompt` of them in the prompt's role. `tokens` has
/// a few more than the `length` that are run, for MTP modules.
struct KnownRequest {
  std::vector<int32_t> tokens;
  int32_t prompt = 0;
  int32_t length = 0;
  std::vector<int32_t> blocks;

  /// Positions [first, first + count), all of one role; tokens `shift` further on.
  RequestWork Work(int32_t slot, int32_t first, int32_t count, int32_t shift) const {
    return {.slot = slot,
            .phase = first < prompt ? Phase::kPromptChunk : Phase::kDecode,
            .context_length = first,
            .tokens = std::span(tokens).subspan(static_cast<size_t>(first + shift),
                                                static_cast<size_t>(count)),
            .draft_tokens = {},
            .samples = false,
            .block_tables = {&blocks, 1}};
  }
};

/// ||a - b|| / ||b|| of each row of `cols`, in order of size.
inline std::vector<double> RowErrors(std::span<const float> a, std::span<const float> b,
                                     int64_t cols) {
  OUTRIDER_CHECK(a.size() == b.size() && !a.empty());
  std::vector<double> errors;
  for (size_t first = 0; first < a.size(); first += static_cast<size_t>(cols)) {
    double difference = 0;
    double norm = 0;
    for (size_t i = first; i < first + static_cast<size_t>(cols); ++i) {
      difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      norm += double{b[i]} * b[i];
    }
    const double error = std::sqrt(difference / std::max(norm, 1e-30));
    errors.push_back(std::isnan(error) ? INFINITY : error);
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

/// The device's rows must be as near to float32's as the CPU's are, whose operands are rounded
/// alike: most rows by half as much again, and rows whose experts the rounding has changed, which
/// are those that are far off, no more than a few beyond the CPU's.
inline void ExpectAsNear(std::span<const float> device, std::span<const float> cpu_bf16,
                         std::span<const float> cpu_f32, int64_t cols, const std::string& what) {
  const std::vector<double> ours = RowErrors(device, cpu_f32, cols);
  const std::vector<double> cpus = RowErrors(cpu_bf16, cpu_f32, cols);
  const size_t rows = ours.size();
  const auto far = [&](const std::vector<double>& errors) {
    return static_cast<size_t>(errors.end() -
                               std::upper_bound(errors.begin(), errors.end(), 5 * cpus[rows / 2]));
  };
  std::printf(
      "%s: error of a row, median: %.5f, the CPU's %.5f; rows far off: %zu, the CPU's %zu, "
      "of %zu\n",
      what.c_str(), ours[rows / 2], cpus[rows / 2], far(ours), far(cpus), rows);
  EXPECT_LT(ours[rows / 2], 1.5 * cpus[rows / 2]) << what;
  EXPECT_LE(far(ours), far(cpus) + 2 + rows / 50) << what;
}

/// log softmax of a row, in double precision.
inline std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - max - std::log(sum));
  return result;
}

}  // namespace outrider::cuda
