// A cache of keys and values per head with requests in it, from which batches of grouped-query
// attention are drawn, and the same in double precision. What the kernel gives for a (request,
// position, head) row must not depend on the batch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {

struct GqaWorldOptions {
  GqaShape shape;
  int block_size = 64;
  DType dtype = DType::kBF16;
  bool gates = true;
  bool growing = false;  // keys that grow with their position, so that references move
  std::vector<int> lengths;
  uint32_t seed = 1;
};

struct GqaBatchRequest {
  int request;
  int seq_len;    // <= the request's length
  int query_len;  // the last tokens before seq_len
};

using GqaRow = std::vector<uint16_t>;                     // [heads, 128]
using GqaBatchResult = std::vector<std::vector<GqaRow>>;  // by (index in batch, token)

class GqaWorld {
 public:
  static constexpr int kQueries = 64;  // different queries of a request, by position
  static constexpr float kScale = 0.0884F;
  static constexpr int64_t kPoisonBytes = 4096;  // between blocks

  explicit GqaWorld(GqaWorldOptions options)
      : options_(std::move(options)), random_(options_.seed) {
    const int block = options_.block_size;
    const int64_t width = EntryWidth();
    int blocks = 2;  // never used: poison
    for (const int length : options_.lengths) blocks += (length + block - 1) / block;
    std::vector<int> order(blocks);
    for (int i = 0; i < blocks; ++i) order[i] = i;
    std::mt19937 order_random(options_.seed + 1);
    std::shuffle(order.begin(), order.end(), order_random);
    num_blocks_ = blocks;
    poison_block_ = order.back();
    block_bytes_ = block * width * ElementBytes() + kPoisonBytes;
    std::vector<uint8_t> cache(block_bytes_ * blocks, codes() ? 0x7F : 0xFF);
    int longest = 1;
    for (const int length : options_.lengths) longest = std::max(longest, length);
    table_stride_ = (longest + block - 1) / block + 1;
    int next = 0;
    for (const int length : options_.lengths) {
      std::vector<int> table(table_stride_, poison_block_);
      std::vector<float> entries(length * width);
      for (int j = 0; j < length; ++j) {
        if (j % block == 0) table[j / block] = order[next++];
        uint8_t* const to =
            cache.data() + table[j / block] * block_bytes_ + j % block * width * ElementBytes();
        const float size = options_.growing ? 0.2F + 4.0F * static_cast<float>(j % 777) / 777 : 1;
        for (int64_t d = 0; d < width; ++d) {
          const float value = Normal() * size;
          if (codes()) {
            to[d] = Quantize(value);
            entries[j * width + d] = E4m3ToFloat(to[d]);
          } else {
            const uint16_t bits = FloatToBf16(value);
            __builtin_memcpy(to + 2 * d, &bits, 2);
            entries[j * width + d] = Bf16ToFloat(bits);
          }
        }
      }
      tables_.push_back(std::move(table));
      entries_.push_back(std::move(entries));
      std::vector<uint16_t> queries(kQueries * QueryWidth());
      for (uint16_t& value : queries) value = FloatToBf16(Normal());
      queries_.push_back(std::move(queries));
      std::vector<uint16_t> gates(kQueries * options_.shape.heads);
      for (uint16_t& value : gates) value = FloatToBf16(2 * Normal());
      gates_.push_back(std::move(gates));
    }
    cache_ = DeviceArray<uint8_t>(cache);
  }

  const GqaWorldOptions& options() const { return options_; }

  GqaBatchResult Run(const std::vector<GqaBatchRequest>& batch, GqaBody body = GqaBody::kFewRows,
                     bool graph = false) {
    const int heads = options_.shape.heads;
    std::vector<int> starts = {0};
    std::vector<int> lengths;
    std::vector<int> table;
    std::vector<uint16_t> q;
    std::vector<uint16_t> gates;
    for (const GqaBatchRequest& request : batch) {
      starts.push_back(starts.back() + request.query_len);
      lengths.push_back(request.seq_len);
      std::vector<int> row = tables_[request.request];
      // Blocks behind the first token's window were freed and belong to others.
      if (options_.shape.window > 0) {
        const int first = request.seq_len - request.query_len - options_.shape.window + 1;
        for (int i = 0; i < first / options_.block_size; ++i) row[i] = poison_block_;
      }
      table.insert(table.end(), row.begin(), row.end());
      for (int t = 0; t < request.query_len; ++t) {
        const int at = Place(request, t);
        const uint16_t* from = &queries_[request.request][at * QueryWidth()];
        q.insert(q.end(), from, from + QueryWidth());
        q.insert(q.end(), kQueryGap, 0x7FFF);
        const uint16_t* gate = &gates_[request.request][at * heads];
        gates.insert(gates.end(), gate, gate + heads);
      }
    }
    const int tokens = starts.back();
    const GqaLimits limits = {.max_tokens = std::max(tokens, 1),
                              .max_requests = static_cast<int>(batch.size()),
                              .shape = options_.shape};
    const DeviceArray<int> d_starts(starts), d_lengths(lengths), d_table(table);
    const DeviceArray<uint16_t> d_q(q), d_other(std::vector<uint16_t>(q.rbegin(), q.rend()));
    const DeviceArray<uint16_t> d_gates(gates);
    const DeviceArray<uint16_t> d_output(tokens * QueryWidth());
    if (workspace_.size() < GqaWorkspaceBytes(limits)) {
      workspace_ = DeviceArray<uint8_t>(GqaWorkspaceBytes(limits), 0);
    } else {
      CudaOk(cudaMemset(workspace_.data(), 0, workspace_.size()), "clear");
    }
    GqaParams params;
    params.shape = options_.shape;
    params.body = body;
    params.requests = {.count = static_cast<int>(batch.size()),
                       .num_tokens = tokens,
                       .query_start_loc = d_starts.data(),
                       .seq_lens = d_lengths.data(),
                       .block_tables = d_table.data(),
                       .block_table_stride = table_stride_};
    params.q_stride = QueryWidth() + kQueryGap;
    params.cache = cache_.data();
    params.cache_dtype = options_.dtype;
    params.block_stride = block_bytes_;
    params.num_blocks = num_blocks_;
    params.block_size = options_.block_size;
    params.softmax_scale = kScale;
    params.gates = options_.gates ? d_gates.data() : nullptr;
    params.gate_stride = heads;
    params.output = d_output.data();
    params.output_stride = QueryWidth();
    const auto launch = [&](cudaStream_t stream) {
      CudaOk(PlanGqaAttention(params, limits, workspace_.data(), stream), "plan");
      // A plan serves several layers. What one of other queries, NaN among them, has left in the
      // workspace is not for the next.
      for (const uint16_t* queries : {d_other.data(), d_q.data()}) {
        params.q = queries;
        CudaOk(GqaAttention(params, limits, workspace_.data(), stream), "attention");
      }
    };
    RunOnDevice(launch, graph ? 3 : 0);
    const std::vector<uint16_t> output = d_output.Download();
    GqaBatchResult result(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].query_len; ++t) {
        const auto begin = output.begin() + (starts[i] + t) * QueryWidth();
        result[i].emplace_back(begin, begin + QueryWidth());
      }
    }
    return result;
  }

  /// Relative error of a head's output.
  double Error(const GqaBatchRequest& request, int token, int head, const GqaRow& row) const {
    const int at = Place(request, token);
    const uint16_t* q = &queries_[request.request][at * QueryWidth() + head * kGqaHeadDim];
    const float* entries = entries_[request.request].data();
    const int kv_head = head / (options_.shape.heads / options_.shape.kv_heads);
    const int position = request.seq_len - request.query_len + token;
    const int window = options_.shape.window;
    const int first = window > 0 ? std::max(0, position - window + 1) : 0;
    std::vector<double> scores;
    double top = -INFINITY;
    for (int j = first; j <= position; ++j) {
      const float* key = entries + j * EntryWidth() + kv_head * kGqaHeadDim;
      double dot = 0;
      for (int d = 0; d < kGqaHeadDim; ++d) dot += static_cast<double>(Bf16ToFloat(q[d])) * key[d];
      scores.push_back(dot * kScale);
      top = std::max(top, scores.back());
    }
    std::vector<double> expected(kGqaHeadDim);
    double sum = 0;
    for (int j = first; j <= position; ++j) {
      const float* value =
          entries + j * EntryWidth() + (options_.shape.kv_heads + kv_head) * kGqaHeadDim;
      const double p = std::exp(scores[j - first] - top);
      sum += p;
      for (int d = 0; d < kGqaHeadDim; ++d) expected[d] += p * value[d];
    }
    double factor = 1 / sum;
    if (options_.gates) {
      const uint16_t gate = gates_[request.request][at * options_.shape.heads + head];
      factor /= 1 + std::exp(-static_cast<double>(Bf16ToFloat(gate)));
    }
    double difference = 0;
    double norm = 0;
    for (int d = 0; d < kGqaHeadDim; ++d) {
      const double want = expected[d] * factor;
      const double got = Bf16ToFloat(row[head * kGqaHeadDim + d]);
      difference += (got - want) * (got - want);
      norm += want * want;
    }
    return std::sqrt(difference / norm);
  }

 private:
  static constexpr int kQueryGap = 16;  // poison between rows of queries

  bool codes() const { return options_.dtype == DType::kF8E4M3; }
  int64_t ElementBytes() const { return codes() ? 1 : 2; }
  int64_t EntryWidth() const { return 2 * options_.shape.kv_heads * kGqaHeadDim; }
  int64_t QueryWidth() const { return options_.shape.heads * kGqaHeadDim; }
  static int Place(const GqaBatchRequest& request, int token) {
    return (request.seq_len - request.query_len + token) % kQueries;
  }

  /// The sum of a number's four bytes, with mean 0 and variance 1.
  float Normal() {
    const uint32_t bits = random_();
    const uint32_t pairs = (bits & 0x00FF00FF) + (bits >> 8 & 0x00FF00FF);
    return (static_cast<float>((pairs & 0xFFFF) + (pairs >> 16)) - 510.0F) / 147.8F;
  }

  /// The code next to the value, towards zero; its low bits do not count.
  static uint8_t Quantize(float value) {
    static const std::vector<uint8_t> codes = [] {  // by the bits of a bf16
      std::vector<uint8_t> of_bits(1 << 15, 0x7E);
      int code = 0;
      for (int bits = 0; bits <= 0x43E0; ++bits) {  // up to 448
        const float size = Bf16ToFloat(static_cast<uint16_t>(bits));
        while (code < 0x7E && E4m3ToFloat(static_cast<uint8_t>(code + 1)) <= size) ++code;
        of_bits[bits] = static_cast<uint8_t>(code);
      }
      return of_bits;
    }();
    const uint16_t bits = FloatToBf16(value);
    return static_cast<uint8_t>(codes[bits & 0x7FFF] | (bits >> 8 & 0x80));
  }

  GqaWorldOptions options_;
  std::mt19937 random_;
  int table_stride_ = 0;
  int num_blocks_ = 0;
  int poison_block_ = 0;
  int64_t block_bytes_ = 0;
  std::vector<std::vector<int>> tables_;
  std::vector<std::vector<float>> entries_;
  std::vector<std::vector<uint16_t>> queries_;
  std::vector<std::vector<uint16_t>> gates_;
  DeviceArray<uint8_t> cache_;
  DeviceArray<uint8_t> workspace_;
};

}  // namespace outrider::cuda
