// Microseconds of grouped-query attention beside what its keys and values take to read.
//
//   gqa_attention_bench                               the goals' cases and more
//   gqa_attention_bench heads,window,rows,requests,context,bf16|e4m3 ...    these
//
// One graph of several launches over caches of their own, random data, medians of replays. Key
// heads are 8, blocks of 64 tokens in random order. Cases with more than 32 rows per request are
// prompts.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/gqa/gqa_attention.h"

namespace outrider::cuda {
namespace {

constexpr int kKvHeads = 8;
constexpr int kBlockSize = 64;

struct Case {
  int heads;
  int window;
  int rows;
  int requests;
  int context;
  DType dtype = DType::kBF16;
};

void Run(const Case& c, cudaStream_t stream) {
  const int64_t entry =
      int64_t{2} * kKvHeads * kGqaHeadDim * static_cast<int64_t>(DTypeSize(c.dtype));
  const int64_t block_bytes = entry * kBlockSize;
  const int blocks_each = (c.context + kBlockSize - 1) / kBlockSize;
  const int blocks = blocks_each * c.requests;
  // Enough copies that none is found in L2.
  const int copies = static_cast<int>(
      std::clamp<int64_t>((int64_t{512} << 20) / (blocks * block_bytes) + 1, 1, 64));
  const DeviceArray<uint8_t> cache(static_cast<size_t>(copies * blocks * block_bytes));
  if (c.dtype == DType::kBF16) {
    FillBf16<<<1024, 256, 0, stream>>>(reinterpret_cast<uint16_t*>(cache.data()), cache.size() / 2,
                                       1, 2.0F);
  } else {
    FillCodes<<<1024, 256, 0, stream>>>(cache.data(), cache.size(), 1);
  }
  std::vector<int> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<int> starts = {0};
  for (int i = 0; i < c.requests; ++i) starts.push_back(starts.back() + c.rows);
  const int tokens = starts.back();
  const DeviceArray<int> table(order), query_starts(starts);
  const DeviceArray<int> lengths(std::vector<int>(c.requests, c.context));
  const int64_t width = int64_t{c.heads} * kGqaHeadDim;
  const DeviceArray<uint16_t> q(tokens * width), out(tokens * width), gates(tokens * c.heads);
  FillBf16<<<1024, 256, 0, stream>>>(q.data(), q.size(), 2, 1.0F);
  FillBf16<<<1024, 256, 0, stream>>>(gates.data(), gates.size(), 3, 1.0F);
  GqaParams params;
  params.shape = {c.heads, kKvHeads, c.window};
  params.body = c.rows > 32 ? GqaBody::kManyRows : GqaBody::kFewRows;
  params.requests = {.count = c.requests,
                     .num_tokens = tokens,
                     .query_start_loc = query_starts.data(),
                     .seq_lens = lengths.data(),
                     .block_tables = table.data(),
                     .block_table_stride = blocks_each};
  params.q = q.data();
  params.q_stride = params.output_stride = width;
  params.cache_dtype = c.dtype;
  params.block_stride = block_bytes;
  params.num_blocks = blocks;
  params.block_size = kBlockSize;
  params.softmax_scale = 0.0884F;
  params.gates = gates.data();
  params.gate_stride = c.heads;
  params.output = out.data();
  const GqaLimits limits = {
      .max_tokens = tokens, .max_requests = c.requests, .shape = params.shape};
  const DeviceArray<uint8_t> workspace(GqaWorkspaceBytes(limits), 0);
  CudaOk(PlanGqaAttention(params, limits, workspace.data(), stream), "plan");
  CudaOk(cudaStreamSynchronize(stream), "plan");
  const int launches = std::max(copies, 4);
  const double us = MicrosecondsPerLaunch(launches, 15, stream, [&](int i, cudaStream_t on) {
    params.cache = cache.data() + (i % copies) * blocks * block_bytes;
    CudaOk(GqaAttention(params, limits, workspace.data(), on), "attention");
  });
  const double plan_us = MicrosecondsPerLaunch(4, 9, stream, [&](int, cudaStream_t on) {
    CudaOk(PlanGqaAttention(params, limits, workspace.data(), on), "plan");
  });
  // Keys that some row sees, and pairs of a row and a key that it sees.
  const int first = c.context - c.rows;
  const int seen = c.window > 0 ? std::min(c.context, c.window + c.rows - 1) : c.context;
  double pairs = 0;
  for (int t = first; t < c.context; ++t) pairs += c.window > 0 ? std::min(t + 1, c.window) : t + 1;
  pairs *= static_cast<double>(c.requests) * c.heads;
  const double bytes = static_cast<double>(seen) * c.requests * static_cast<double>(entry) +
                       4.0 * static_cast<double>(tokens * width);
  const double limit = bytes / BytesPerUs();
  std::printf(
      "%3d heads window %4d, %4d rows x %3d requests at %6d, %s: %9.1f us, limit %8.1f, "
      "%.2f of it, %5.0f TFLOP/s; plan %.1f us\n",
      c.heads, c.window, c.rows, c.requests, c.context, c.dtype == DType::kBF16 ? "bf16" : "e4m3",
      us, limit, limit / us, pairs * 4 * kGqaHeadDim / us * 1e-6, plan_us);
  std::fflush(stdout);
}

int Main(int count, char** arguments) {
  std::vector<Case> cases;
  for (int i = 1; i < count; ++i) {
    Case c = {};
    char type[8] = "bf16";
    if (std::sscanf(arguments[i], "%d,%d,%d,%d,%d,%4s", &c.heads, &c.window, &c.rows, &c.requests,
                    &c.context, type) < 5) {
      std::fprintf(stderr, "%s: not heads,window,rows,requests,context,bf16|e4m3\n", arguments[i]);
      return 2;
    }
    c.dtype = std::strcmp(type, "e4m3") == 0 ? DType::kF8E4M3 : DType::kBF16;
    cases.push_back(c);
  }
  if (cases.empty()) {
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (const int rows : {1, 4}) {
        for (const auto& [requests, context] : {std::pair{1, 1024},
                                                {1, 32768},
                                                {8, 1024},
                                                {8, 32768},
                                                {32, 1024},
                                                {32, 32768},
                                                {128, 1024},
                                                {128, 2048}}) {
          cases.push_back({64, 0, rows, requests, context, dtype});
        }
        for (const auto& [requests, context] : {std::pair{1, 1024}, {32, 32768}, {128, 1024}}) {
          cases.push_back({96, 512, rows, requests, context, dtype});
        }
      }
      for (const int rows : {1024, 8192}) {
        cases.push_back({64, 0, rows, 1, rows, dtype});
        cases.push_back({96, 512, rows, 1, rows, dtype});
      }
    }
  }
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  for (const Case& c : cases) Run(c, stream);
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main(int count, char** arguments) { return outrider::cuda::Main(count, arguments); }
