// A cache with requests in it, from which MLA decode batches are drawn: each batch names requests,
// lengths and windows, and what the kernel gives for a (request, position, head) row must not
// depend on the batch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {

enum class WorldData { kNormal, kGrowing, kRepeated };

struct WorldOptions {
  int heads = 16;
  int page_size = 64;
  int gap = 0;  // numbers between pages, a multiple of 16
  MlaCacheType cache_type = MlaCacheType::kBf16;
  bool sink = false;
  WorldData data = WorldData::kNormal;
  std::vector<int> lengths;  // per request
  uint32_t seed = 1;
};

struct BatchRequest {
  int request;
  int seq_len;    // <= the request's length
  int query_len;  // the last tokens before seq_len; at most 32 from the request's end
};

struct RowBits {
  std::vector<uint16_t> output;  // [heads, 512]
  std::vector<uint32_t> lse;     // [heads]
  bool operator==(const RowBits&) const = default;
};

/// By (index in batch, token in window).
using BatchResult = std::vector<std::vector<RowBits>>;

class MlaWorld {
 public:
  static constexpr int kQueries = 64;  // positions from the end that have a query
  static constexpr float kScale = 0.1352f;

  explicit MlaWorld(WorldOptions options) : options_(std::move(options)), random_(options_.seed) {
    const auto normal = [](std::mt19937& random) { return AboutNormal(random()); };
    const int page = options_.page_size;
    const size_t stride = size_t{576} * page + options_.gap;
    int pages = 3;  // never used: poison
    for (int length : options_.lengths) pages += (length + page - 1) / page;
    std::vector<int> order(pages);
    for (int i = 0; i < pages; ++i) order[i] = i;
    // A generator of its own, so that the page size does not change keys and queries.
    std::mt19937 order_random(options_.seed + 1);
    std::shuffle(order.begin(), order.end(), order_random);
    int max_pages = 1;
    for (int length : options_.lengths) max_pages = std::max(max_pages, (length + page - 1) / page);
    table_stride_ = max_pages + 1;
    num_blocks_ = pages;
    const bool e4m3 = options_.cache_type == MlaCacheType::kE4m3;
    std::vector<uint16_t> bf16(e4m3 ? 0 : pages * stride, 0x7FFF);
    std::vector<uint8_t> fp8(e4m3 ? pages * stride : 0, 0x7F);
    int next = 0;
    for (int length : options_.lengths) {
      std::vector<int> table(table_stride_, -1);
      std::vector<float> keys(static_cast<size_t>(length) * 576);
      for (int j = 0; j < length; ++j) {
        if (j % page == 0) table[j / page] = order[next++];
        const size_t entry = table[j / page] * stride + size_t{576} * (j % page);
        float size = 1.0f;
        if (options_.data == WorldData::kGrowing)
          size = 0.2f + 3.0f * static_cast<float>(j % 777) / 777;
        for (int d = 0; d < 576; ++d) {
          float value = normal(random_) * size;
          if (options_.data == WorldData::kRepeated && j >= 8) {
            value = keys[static_cast<size_t>(j % 8) * 576 + d];
          }
          if (e4m3) {
            const uint8_t bits = Quantize(value / cache_scale());
            fp8[entry + d] = bits;
            keys[static_cast<size_t>(j) * 576 + d] = E4m3ToFloat(bits) * cache_scale();
          } else {
            const uint16_t bits = FloatToBf16(value);
            bf16[entry + d] = bits;
            keys[static_cast<size_t>(j) * 576 + d] = Bf16ToFloat(bits);
          }
        }
      }
      tables_.push_back(table);
      keys_.push_back(std::move(keys));
      std::vector<uint16_t> queries(static_cast<size_t>(kQueries) * options_.heads * 576);
      for (uint16_t& value : queries) value = FloatToBf16(normal(random_));
      queries_.push_back(std::move(queries));
    }
    if (e4m3) {
      fp8_ = DeviceArray<uint8_t>(fp8);
    } else {
      bf16_ = DeviceArray<uint16_t>(bf16);
    }
    std::vector<float> sink(options_.heads);
    for (float& value : sink) value = normal(random_) * 3;
    sink_host_ = sink;
    sink_ = DeviceArray<float>(sink);
  }

  float cache_scale() const { return options_.cache_type == MlaCacheType::kE4m3 ? 0.037f : 1.0f; }
  const WorldOptions& options() const { return options_; }

  /// Runs a batch; with masks, `masks[i][t]` is the visibility of token t of batch request i.
  BatchResult Run(const std::vector<BatchRequest>& batch, bool relaxed = false,
                  const std::vector<std::vector<uint32_t>>& masks = {}, bool graph = false) {
    const int heads = options_.heads;
    std::vector<int> starts = {0};
    std::vector<int> seq_lens;
    std::vector<int> table;
    std::vector<uint16_t> q;
    std::vector<uint32_t> visible;
    for (size_t i = 0; i < batch.size(); ++i) {
      const BatchRequest& request = batch[i];
      starts.push_back(starts.back() + request.query_len);
      seq_lens.push_back(request.seq_len);
      table.insert(table.end(), tables_[request.request].begin(), tables_[request.request].end());
      for (int t = 0; t < request.query_len; ++t) {
        const uint16_t* row = Query(request, t);
        q.insert(q.end(), row, row + heads * 576);
        if (!masks.empty()) visible.push_back(masks[i][t]);
      }
    }
    const int tokens = starts.back();
    MlaDecodeLimits limits = {std::max(tokens, 1), std::max<int>(batch.size(), 1), 1 << 18, heads};
    DeviceArray<int> d_starts(starts), d_lens(seq_lens), d_table(table);
    DeviceArray<uint16_t> d_q(q);
    DeviceArray<uint32_t> d_visible(visible);
    DeviceArray<uint16_t> d_output(static_cast<size_t>(tokens) * heads * 512);
    DeviceArray<float> d_lse(static_cast<size_t>(tokens) * heads);
    if (workspace_.size() < MlaDecodeWorkspaceBytes(limits)) {
      workspace_ = DeviceArray<uint8_t>(MlaDecodeWorkspaceBytes(limits), 0);
    }
    MlaDecodeParams params;
    params.num_requests = static_cast<int>(batch.size());
    params.num_tokens = tokens;
    params.heads = heads;
    params.q = d_q.data();
    params.query_start_loc = d_starts.data();
    params.seq_lens = d_lens.data();
    params.block_table = d_table.data();
    params.block_table_stride = table_stride_;
    params.cache = options_.cache_type == MlaCacheType::kE4m3
                       ? static_cast<const void*>(fp8_.data())
                       : static_cast<const void*>(bf16_.data());
    params.cache_type = options_.cache_type;
    params.cache_scale = cache_scale();
    params.num_blocks = num_blocks_;
    params.page_size = options_.page_size;
    if (options_.gap > 0) {
      params.page_stride = (int64_t{576} * options_.page_size + options_.gap) *
                           (options_.cache_type == MlaCacheType::kE4m3 ? 1 : 2);
    }
    params.softmax_scale = kScale;
    params.sink = options_.sink ? sink_.data() : nullptr;
    params.visible = masks.empty() ? nullptr : d_visible.data();
    params.output = d_output.data();
    params.lse = d_lse.data();
    params.relaxed = relaxed;
    const auto launch = [&](cudaStream_t stream) {
      CudaOk(MlaDecodePlan(params, limits, workspace_.data(), stream), "plan");
      CudaOk(MlaDecode(params, limits, workspace_.data(), stream), "decode");
    };
    RunOnDevice(launch, graph ? 3 : 0);
    const std::vector<uint16_t> output = d_output.Download();
    const std::vector<float> lse = d_lse.Download();
    BatchResult result(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].query_len; ++t) {
        RowBits bits;
        const size_t at = static_cast<size_t>(starts[i] + t) * heads;
        bits.output.assign(output.begin() + at * 512, output.begin() + (at + heads) * 512);
        bits.lse.resize(heads);
        __builtin_memcpy(bits.lse.data(), &lse[at], heads * sizeof(float));
        result[i].push_back(std::move(bits));
      }
    }
    return result;
  }

  /// Relative error of a row's output (norm over 512) and absolute error of its log-sum-exp.
  std::pair<double, double> Error(const BatchRequest& request, int token, int head,
                                  const RowBits& bits, const uint32_t* mask = nullptr) const {
    const uint16_t* q = Query(request, token) + head * 576;
    std::vector<float> query(576);
    for (int d = 0; d < 576; ++d) query[d] = Bf16ToFloat(q[d]);
    const float* keys = keys_[request.request].data();
    const int context = request.seq_len - request.query_len;
    const MlaReferenceRow expected = ReferenceMlaRow(
        query.data(), request.seq_len, kScale,
        options_.sink ? sink_host_[head] : std::numeric_limits<double>::quiet_NaN(),
        [&](int j) { return keys + static_cast<size_t>(j) * 576; },
        [&](int j) {
          if (mask != nullptr) return j < context || (*mask >> (j - context) & 1) != 0;
          return j <= context + token;
        });
    double difference = 0;
    double norm = 0;
    for (int d = 0; d < 512; ++d) {
      const double got = Bf16ToFloat(bits.output[static_cast<size_t>(head) * 512 + d]);
      difference += (got - expected.output[d]) * (got - expected.output[d]);
      norm += expected.output[d] * expected.output[d];
    }
    float lse;
    __builtin_memcpy(&lse, &bits.lse[head], sizeof(lse));
    const double lse_error =
        std::isinf(expected.lse) && lse == -std::numeric_limits<float>::infinity()
            ? 0.0
            : std::abs(lse - expected.lse);
    return {norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm), lse_error};
  }

 private:
  /// The sum of a number's four bytes, with mean 0 and variance 1: close to normal, and quick
  /// enough for hundreds of millions of values.
  static float AboutNormal(uint32_t bits) {
    const uint32_t pairs = (bits & 0x00FF00FF) + (bits >> 8 & 0x00FF00FF);
    const auto sum = static_cast<float>((pairs & 0xFFFF) + (pairs >> 16));
    return (sum - 510.0F) / 147.8F;
  }

  static uint8_t Quantize(float value) {
    static const std::vector<float> magnitudes = [] {  // they grow with the code
      std::vector<float> of_codes;
      for (int code = 0; code < 0x7F; ++code) {
        of_codes.push_back(E4m3ToFloat(static_cast<uint8_t>(code)));
      }
      return of_codes;
    }();
    const float magnitude = std::abs(value);
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end() - 1, magnitude);
    auto nearest = above;
    if (above != magnitudes.begin() && magnitude - above[-1] <= *above - magnitude) --nearest;
    const auto code = static_cast<uint8_t>(nearest - magnitudes.begin());
    return value < 0 ? code | 0x80 : code;
  }

  /// The query of a window's token: a function of its request and position.
  const uint16_t* Query(const BatchRequest& request, int token) const {
    const int position = request.seq_len - request.query_len + token;
    return queries_[request.request].data() +
           static_cast<size_t>(position & (kQueries - 1)) * options_.heads * 576;
  }

  WorldOptions options_;
  std::mt19937 random_;
  int table_stride_ = 0;
  int num_blocks_ = 0;
  std::vector<std::vector<int>> tables_;
  std::vector<std::vector<float>> keys_;
  std::vector<std::vector<uint16_t>> queries_;
  std::vector<float> sink_host_;
  DeviceArray<uint8_t> fp8_;
  DeviceArray<uint16_t> bf16_;
  DeviceArray<float> sink_;
  DeviceArray<uint8_t> workspace_;
};

}  // namespace outrider::cuda
