// Times of sparse latent attention: index scores, choice, attention over lists; graph replay,
// median, beside limits. Data that repeat rotate over more than L2 holds.
//   --only NAME   cases whose name contains NAME
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "outrider/kernels/cuda/sparse/choose_entries.h"
#include "outrider/kernels/cuda/sparse/index_scores.h"
#include "outrider/kernels/cuda/sparse/listed_attention.h"

namespace outrider::cuda {
namespace {

constexpr int kPage = 64;
constexpr int kTopK = 2048;
constexpr double kTensorRate = 620e6;  // multiply-adds, two each, per microsecond: sustained

/// Rows of `requests` requests of the same length, the last `rows_each` positions of each.
struct Step {
  Step(int requests, int rows_each, int length, int heads, int score_rows)
      : rows(requests * rows_each), context(length) {
    std::vector<int> starts(requests + 1), lens(requests, length);
    for (int i = 0; i <= requests; ++i) starts[i] = i * rows_each;
    pages_each = (length + kPage - 1) / kPage;
    std::vector<int> table(size_t{1} * requests * pages_each);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    d_starts = DeviceArray<int>(starts);
    d_lens = DeviceArray<int>(lens);
    d_table = DeviceArray<int>(table);
    memory = DeviceArray<uint8_t>(SparseRowsBytes(rows));
    arrays = CarveSparseRows(memory.data(), rows);
    const SparseRowsParams params = {.num_rows = rows,
                                     .num_requests = requests,
                                     .query_start_loc = d_starts.data(),
                                     .seq_lens = d_lens.data(),
                                     .top_k = kTopK,
                                     .index_heads = heads,
                                     .score_rows = score_rows};
    CudaOk(PlanSparseRows(params, arrays, nullptr), "plan");
    CudaOk(cudaDeviceSynchronize(), "plan");
  }
  /// entry_bytes: of an entry.
  PagedEntries Pages(const void* data, int entry_bytes) const {
    return {.data = data,
            .num_pages = static_cast<int>(d_table.size()),
            .page_size = kPage,
            .page_stride = int64_t{kPage} * entry_bytes,
            .block_table = d_table.data(),
            .block_table_stride = pages_each};
  }
  size_t entries() const { return d_table.size() * kPage; }

  int rows;
  int context;
  int pages_each;
  DeviceArray<int> d_starts, d_lens, d_table;
  DeviceArray<uint8_t> memory;
  SparseRows arrays;
};

std::string only;
bool Wanted(const std::string& name) { return name.find(only) != std::string::npos; }

void Scores(cudaStream_t stream, bool codes, int heads, int requests, int rows_each, int length) {
  const int key_bytes = codes ? kIndexDim + 4 : kIndexDim * 2;  // with its scale
  const std::string name = std::string(codes ? "e4m3 " : "") + "scores " + std::to_string(heads) +
                           " heads, " + std::to_string(requests) + " x " +
                           std::to_string(rows_each) + " rows at " + std::to_string(length);
  if (!Wanted(name)) return;
  const int rows = requests * rows_each;
  const Step step(requests, rows_each, length, heads, (rows + 31) / 32 * 32);
  const size_t cache_bytes = step.entries() * key_bytes;
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{128} << 20) / cache_bytes, 1, 32));
  const DeviceArray<uint16_t> keys(copies * cache_bytes / 2),
      q(size_t{1} * rows * heads * kIndexDim);
  FillBf16<<<1024, 256>>>(keys.data(), keys.size(), 1);
  FillBf16<<<1024, 256>>>(q.data(), q.size(), 2);
  std::vector<float> w(size_t{1} * rows * heads);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (float& value : w) value = normal(random);
  const DeviceArray<float> weights(w), scores(size_t{1} * rows * length);
  IndexScoresParams params;
  params.num_rows = params.step_rows = rows;
  params.rows = step.arrays;
  params.heads = heads;
  params.codes = codes;
  params.q = q.data();
  params.weights = weights.data();
  params.weights_stride = heads;
  params.scores = scores.data();
  params.scores_stride = length;
  const double us = MicrosecondsPerLaunch(copies, 9, stream, [&](int i, cudaStream_t on) {
    params.keys = step.Pages(keys.data() + i * cache_bytes / 2, key_bytes);
    CudaOk(ScoreIndexKeys(params, on), "scores");
  });
  const double bytes = (cache_bytes + 4.0 * rows * length) / BytesPerUs();
  // Codes are multiplied twice as fast.
  const double flops = 2.0 * rows * heads * kIndexDim * length / kTensorRate / (codes ? 2 : 1);
  std::printf("%-48s %9.2f us  bytes %8.2f us, products %8.2f us: %.2f of the limit\n",
              name.c_str(), us, bytes, flops, std::max(bytes, flops) / us);
  std::fflush(stdout);
}

void Choice(cudaStream_t stream, int rows, int length) {
  const std::string name = "choice " + std::to_string(rows) + " rows at " + std::to_string(length);
  if (!Wanted(name)) return;
  const Step step(rows, 1, length, 64, (rows + 31) / 32 * 32);
  for (const char* kind : {"normal", "mostly 0"}) {
    std::vector<float> values(size_t{1} * rows * length);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const float shift = kind[0] == 'n' ? 0.0F : -2.0F;
    for (float& value : values) {
      value = normal(random) + shift;
      if (shift != 0.0F) value = std::max(value, 0.0F);
    }
    const DeviceArray<float> scores(values);
    const DeviceArray<int32_t> lists(size_t{1} * rows * kTopK);
    ChooseEntriesParams params;
    params.num_rows = rows;
    params.rows = step.arrays;
    params.top_k = kTopK;
    params.max_visible = length;
    params.scores = scores.data();
    params.scores_stride = length;
    params.lists = lists.data();
    params.lists_stride = kTopK;
    const double us = MicrosecondsPerLaunch(
        8, 15, stream, [&](int, cudaStream_t on) { CudaOk(ChooseEntries(params, on), "choice"); });
    std::printf("%-48s %9.2f us\n", (name + ", " + kind).c_str(), us);
  }
  std::fflush(stdout);
}

void Attention(cudaStream_t stream, MlaCacheType type, int heads, int requests, int rows_each,
               int length) {
  const int entry_bytes = kMlaKeyDim * (type == MlaCacheType::kE4m3 ? 1 : 2);
  const std::string name = std::string(type == MlaCacheType::kE4m3 ? "e4m3 " : "") + "attention " +
                           std::to_string(heads) + " heads, " + std::to_string(requests) + " x " +
                           std::to_string(rows_each) + " rows at " + std::to_string(length);
  if (!Wanted(name)) return;
  const int rows = requests * rows_each;
  const Step step(requests, rows_each, length, 64, (rows + 31) / 32 * 32);
  const int count = std::min(kTopK, length);
  const size_t cache_bytes = step.entries() * entry_bytes;
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{192} << 20) / cache_bytes, 1, 8));
  // As codes, bf16 numbers are any codes: times depend on none.
  const DeviceArray<uint16_t> cache(copies * cache_bytes / 2),
      q(size_t{1} * rows * heads * kMlaKeyDim), out(size_t{1} * rows * heads * kMlaValueDim);
  FillBf16<<<1024, 256>>>(cache.data(), cache.size(), 1);
  FillBf16<<<1024, 256>>>(q.data(), q.size(), 2);
  std::vector<int32_t> list(size_t{1} * rows * kTopK, -1), all(length);
  std::mt19937 random(11);
  for (int row = 0; row < rows; ++row) {
    if (row % rows_each == 0) {  // the rows of a request read the same entries but for a few
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
    } else if (length > count) {
      for (int i = 0; i < count / 8; ++i) {
        std::swap(all[random() % count], all[count + random() % (length - count)]);
      }
    }
    std::copy_n(all.begin(), count, list.begin() + size_t{1} * row * kTopK);
    std::sort(list.begin() + size_t{1} * row * kTopK,
              list.begin() + size_t{1} * row * kTopK + count);
  }
  const DeviceArray<int32_t> lists(list);
  const DeviceArray<float> lse(size_t{1} * rows * heads);
  const ListedAttentionLimits limits = {.max_rows = rows, .max_count = kTopK, .heads = heads};
  const DeviceArray<uint8_t> workspace(ListedAttentionWorkspaceBytes(limits), 0);
  ListedAttentionParams params;
  params.num_rows = rows;
  params.heads = heads;
  params.rows = step.arrays;
  params.q = q.data();
  params.lists = lists.data();
  params.lists_stride = kTopK;
  params.entry_type = type;
  params.entries = step.Pages(cache.data(), entry_bytes);
  params.softmax_scale = 0.04F;
  params.output = out.data();
  params.lse = lse.data();
  CudaOk(ListedAttentionPlan(params, limits, workspace.data(), nullptr), "plan");
  CudaOk(cudaDeviceSynchronize(), "plan");
  const double us = MicrosecondsPerLaunch(copies, 9, stream, [&](int i, cudaStream_t on) {
    params.entries = step.Pages(cache.data() + i * cache_bytes / 2, entry_bytes);
    CudaOk(ListedAttention(params, limits, workspace.data(), on), "attention");
  });
  const double bytes = (double{1} * rows * heads * (kMlaKeyDim + kMlaValueDim) * 2 +
                        double{1} * requests * count * entry_bytes) /
                       BytesPerUs();
  const double flops = 2.0 * rows * heads * count * (kMlaKeyDim + kMlaValueDim);
  // Tiles of 64 heads and 64 places that a multiprocessor works off where all have as many.
  int multiprocessors = 0;
  CudaOk(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device");
  const int all_tiles = rows * ((heads + 63) / 64) * ((count + 63) / 64);
  const int tiles = (all_tiles + multiprocessors - 1) / multiprocessors;
  std::printf(
      "%-48s %9.2f us, %5.2f a tile, %6.1f TFLOP/s; bytes %7.2f us, products %7.2f us: %.2f of the "
      "limit\n",
      name.c_str(), us, us / tiles, flops / us * 1e-6, bytes, flops / kTensorRate,
      std::max(bytes, flops / kTensorRate) / us);
  std::fflush(stdout);
}

void Run() {
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  BytesPerUs();
  for (const int heads : {128, 64}) {
    for (const MlaCacheType type : {MlaCacheType::kBf16, MlaCacheType::kE4m3}) {
      Attention(stream, type, heads, 1, 1, 8192);
      Attention(stream, type, heads, 8, 1, 8192);
      Attention(stream, type, heads, 128, 1, 1024);
      Attention(stream, type, heads, 128, 1, 8192);
      Attention(stream, type, heads, 32, 4, 8192);
      Attention(stream, type, heads, 1, 2048, 8192);
    }
  }
  for (const int heads : {64, 32}) {
    for (const bool codes : {false, true}) {
      Scores(stream, codes, heads, 1, 1, 8192);
      Scores(stream, codes, heads, 1, 1, 32768);
      Scores(stream, codes, heads, 128, 1, 32768);
      Scores(stream, codes, heads, 32, 4, 32768);
      Scores(stream, codes, heads, 1, 2048, 8192);
    }
  }
  Choice(stream, 1, 8192);
  Choice(stream, 1, 32768);
  Choice(stream, 1, 131072);
  Choice(stream, 128, 8192);
  Choice(stream, 128, 32768);
  Choice(stream, 2048, 8192);
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--only") == 0) outrider::cuda::only = argv[i + 1];
  }
  outrider::cuda::Run();
  return 0;
}
