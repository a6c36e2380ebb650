// Networks on the device, run over the same layouts as a CPU's (cpu_network.h), for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/checkpoint/weight_source.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/networks/cpu_network.h"

namespace outrider::cuda {

/// Rows in the device's memory.
class DeviceRows {
 public:
  DeviceRows(const CudaOps& ops, DType type, int64_t rows, int64_t cols)
      : ops_(ops),
        memory_(
            ops.Allocate(static_cast<size_t>(std::max<int64_t>(rows, 1) * cols) * DTypeSize(type))),
        view_(memory_.data(), type, rows, cols, cols) {}

  Tensor view() const { return view_; }
  template <typename T>
  void Upload(const std::vector<T>& values) {
    Copy(view_.data, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> Download() const {
    std::vector<T> values(static_cast<size_t>(view_.rows * view_.cols));
    Copy(values.data(), view_.data, values.size() * sizeof(T));
    return values;
  }

 private:
  void Copy(void* to, const void* from, size_t bytes) const {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ops_.stream()), "rows of a test");
    ops_.Synchronize();
  }

  const CudaOps& ops_;
  Buffer memory_;
  Tensor view_;
};

/// A network on the device whose calls return when they are done.
class TestNetwork {
 public:
  /// ops: what it runs on, if a test has its own.
  TestNetwork(const ModelConfig& config, const WeightSource& source, int mtp_modules,
              std::unique_ptr<CudaOps> ops = std::make_unique<CudaOps>())
      : ops_(std::move(ops)),
        pool_(TestThreads()),
        model_(LoadNetwork(
            config, mtp_modules, source, {.compute_dtype = DType::kBF16},
            {{*ops_, &pool_},
             DType::kBF16,
             AttentionPlan(AttentionBackend::kRagged, 4, RowPathsOfNetwork(config))})) {}

  Network& model() { return *model_; }
  const CudaOps& ops() const { return *ops_; }
  /// Columns of hidden rows.
  int64_t output_width() const { return model_->output_width(); }

  CacheConfig ConfigOfCache(int32_t block_size, const CacheNumbers& numbers) const {
    return MakeCacheConfig(model_->cache_needs(), OfGpu(numbers), block_size, 0);
  }
  /// Groups of caches with full history in blocks of so many tokens.
  std::vector<CacheGroupSpec> Groups(int32_t block_size, const CacheNumbers& numbers) const {
    return ConfigOfCache(block_size, numbers).groups;
  }
  KvCache MakeCache(int32_t blocks, int32_t block_size, const CacheNumbers& asked) const {
    const NetworkCache needs = model_->cache_needs();
    const CacheNumbers numbers = OfGpu(asked);
    return {model_->device(), MakeCacheConfig(needs, numbers, block_size, blocks), needs.layers,
            numbers};
  }

  /// Called with the residual stream after each layer, float32 [rows, hidden].
  using Observer = std::function<void(int64_t layer, const std::vector<float>& x)>;

  /// bf16 [rows, output width].
  std::vector<uint16_t> Forward(const BatchLayout& layout, KvCache& cache,
                                const Observer& observer = nullptr) {
    const int64_t rows = layout.num_rows();
    std::vector<DeviceRows> layers;
    std::vector<LayerTap> taps;
    const int64_t num_layers = observer ? model_->config().num_hidden_layers() : 0;
    for (int64_t i = 0; i < num_layers; ++i) {
      layers.emplace_back(*ops_, DType::kF32, rows, model_->hidden_size());
      taps.push_back({.layer = static_cast<int32_t>(i), .out = layers.back().view()});
    }
    const DeviceRows hidden(*ops_, DType::kBF16, rows, output_width());
    model_->Forward(layout, cache, hidden.view(), taps);
    for (int64_t i = 0; i < num_layers; ++i) {
      observer(i, layers[static_cast<size_t>(i)].Download<float>());
    }
    return hidden.Download<uint16_t>();
  }

  std::vector<uint16_t> ForwardMtp(int m, const BatchLayout& layout, KvCache& cache,
                                   const std::vector<uint16_t>& previous) {
    DeviceRows rows(*ops_, DType::kBF16, layout.num_rows(), output_width());
    rows.Upload(previous);
    model_->ForwardMtp(m, layout, cache, rows.view(), rows.view());
    return rows.Download<uint16_t>();
  }

  /// Logits of rows of bf16 hidden states: float32 [rows, vocabulary].
  std::vector<float> Logits(const std::vector<uint16_t>& hidden) {
    const int64_t rows = static_cast<int64_t>(hidden.size()) / output_width();
    DeviceRows from(*ops_, DType::kBF16, rows, output_width());
    from.Upload(hidden);
    const DeviceRows logits(*ops_, DType::kF32, rows, model_->vocab_size());
    std::vector<int32_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    model_->Logits(Network::kTarget, from.view(), numbers, logits.view());
    return logits.Download<float>();
  }

 private:
  std::unique_ptr<CudaOps> ops_;
  ThreadPool pool_;
  std::unique_ptr<Network> model_;
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

/// How near ExpectAsNear wants rows.
struct Nearness {
  double median = 1.5;  // times the CPU's median error
  /// Rows that are far off are those whose experts the rounding has changed: no more than so many
  /// times the CPU's, and so many more, and a few.
  double far_share = 1;
  int32_t far_more = 0;
};

/// Errors of rows beside float32's, of a device and of a CPU whose operands are rounded alike.
struct ErrorsOfRows {
  std::vector<double> device;
  std::vector<double> cpu;

  void Add(std::span<const float> on_device, std::span<const float> cpu_bf16,
           std::span<const float> cpu_f32, int64_t cols) {
    const std::vector<double> ours = RowErrors(on_device, cpu_f32, cols);
    const std::vector<double> cpus = RowErrors(cpu_bf16, cpu_f32, cols);
    device.insert(device.end(), ours.begin(), ours.end());
    cpu.insert(cpu.end(), cpus.begin(), cpus.end());
  }
};

/// The device's rows must be as near as the CPU's are.
inline void ExpectAsNear(ErrorsOfRows errors_of_rows, const std::string& what,
                         const Nearness& nearness = {}) {
  auto& [ours, cpus] = errors_of_rows;
  std::sort(ours.begin(), ours.end());
  std::sort(cpus.begin(), cpus.end());
  const size_t rows = ours.size();
  const auto far = [&](const std::vector<double>& errors) {
    return static_cast<size_t>(errors.end() -
                               std::upper_bound(errors.begin(), errors.end(), 5 * cpus[rows / 2]));
  };
  std::printf(
      "%s: error of a row, median: %.5f, the CPU's %.5f; rows far off: %zu, the CPU's %zu, "
      "of %zu\n",
      what.c_str(), ours[rows / 2], cpus[rows / 2], far(ours), far(cpus), rows);
  EXPECT_LT(ours[rows / 2], nearness.median * cpus[rows / 2]) << what;
  EXPECT_LE(static_cast<double>(far(ours)), nearness.far_share * static_cast<double>(far(cpus)) +
                                                nearness.far_more + 2 +
                                                static_cast<double>(rows / 50))
      << what;
}
inline void ExpectAsNear(std::span<const float> device, std::span<const float> cpu_bf16,
                         std::span<const float> cpu_f32, int64_t cols, const std::string& what,
                         const Nearness& nearness = {}) {
  ErrorsOfRows errors;
  errors.Add(device, cpu_bf16, cpu_f32, cols);
  ExpectAsNear(std::move(errors), what, nearness);
}

}  // namespace outrider::cuda
