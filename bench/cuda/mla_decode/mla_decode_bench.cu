// Speed and a correctness spot check of the Hopper MLA decode kernel.
//
//   mla_decode_bench [--filter TEXT[,TEXT...]] [--repeats N] [--base N --end0 N --end1 N]
//   [--relaxed] [--case HEADS,ROWS,BATCH,CONTEXT]...
//
// With --case, these bf16 cases instead of the list.
// Every case is captured into graphs, one per cache copy, and replayed in rotation so that the
// cache read comes from memory (copies of more than 256 MB together). "us" is the median time
// between two events around one replay of one layer (main kernel and combine); "chain" the time per
// layer when 16 layers follow each other in one graph. The floor is max(bytes / the rate of reads,
// flops / 790 TFLOP/s). FlashMLA's figures for the uniform cases are in
// bench/results/hopper_mla_decode.md. Longer than most files: cases, timing and the spot check
// share one set of buffers.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_world.h"

namespace outrider::cuda {
namespace {

__device__ uint32_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

/// Approximately normal values: the sum of four uniform bytes.
__device__ float Noise(uint64_t index, uint32_t seed) {
  const uint32_t bits = Mix(index * 2654435761ull + seed);
  const int sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
  return (static_cast<float>(sum) - 510.0f) / 147.8f;
}

__global__ void FillBf16(__nv_bfloat16* out, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    out[i] = __float2bfloat16(Noise(i, seed));
  }
}

__global__ void FillE4m3(uint8_t* out, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const uint32_t bits = Mix(i * 2654435761ull + seed);
    out[i] = static_cast<uint8_t>((bits & 0x87) | (4 + (bits >> 8) % 4) << 3);  // up to about 1
  }
}

struct Case {
  std::string name;
  int heads;
  int page_size;
  MlaCacheType type;
  std::vector<int> query_lens;
  std::vector<int> seq_lens;
  double peer_us;  // 0: none
};

struct Options {
  std::vector<std::string> filters;  // a case runs if its name contains one of them
  std::vector<Case> cases;           // instead of the list
  int repeats = 40;
  MlaSplits splits = {0, 0, 0};
  bool relaxed = false;
};

double Median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Timer {
 public:
  Timer() {
    CudaOk(cudaEventCreate(&begin_), "event");
    CudaOk(cudaEventCreate(&end_), "event");
  }
  float Microseconds(cudaGraphExec_t graph, cudaStream_t stream) {
    CudaOk(cudaEventRecord(begin_, stream), "record");
    CudaOk(cudaGraphLaunch(graph, stream), "launch");
    CudaOk(cudaEventRecord(end_, stream), "record");
    CudaOk(cudaEventSynchronize(end_), "synchronize");
    float ms = 0;
    CudaOk(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
    return ms * 1000;
  }

 private:
  cudaEvent_t begin_;
  cudaEvent_t end_;
};

template <typename Body>
cudaGraphExec_t Capture(cudaStream_t stream, Body body) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  body();
  CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
  CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  CudaOk(cudaGraphDestroy(graph), "destroy");
  return executable;
}

__global__ void Empty() {}

// One pool serves every case.
constexpr size_t kPoolBytes = size_t{5} << 30;

void RunCase(const Case& test, const Options& options, void* pool, Timer& timer,
             cudaStream_t stream) {
  const bool e4m3 = test.type == MlaCacheType::kE4m3;
  const size_t row_bytes = e4m3 ? 576 : 1152;
  const int requests = static_cast<int>(test.query_lens.size());
  int tokens = 0;
  int longest = 1;
  size_t pages_per_copy = 0;
  double kv_tokens = 0;
  double pairs = 0;
  std::vector<int> starts = {0};
  for (int i = 0; i < requests; ++i) {
    tokens += test.query_lens[i];
    starts.push_back(tokens);
    longest = std::max(longest, test.seq_lens[i]);
    pages_per_copy += (test.seq_lens[i] + test.page_size - 1) / test.page_size;
    kv_tokens += test.seq_lens[i];
    const double q = test.query_lens[i];
    pairs += q * (test.seq_lens[i] - q) + q * (q + 1) / 2;
  }
  const double rows = static_cast<double>(tokens) * test.heads;
  const double flops = 2176.0 * test.heads * pairs;
  const double bytes = kv_tokens * row_bytes + rows * 2176;
  const double floor_us = std::max(bytes / BytesPerUs(), flops / 790e6);
  const size_t copy_bytes = pages_per_copy * test.page_size * row_bytes;
  const int copies = static_cast<int>(
      std::min<size_t>(64, std::max<size_t>(1, (size_t{512} << 20) / copy_bytes + 1)));
  const size_t num_blocks =
      std::min(kPoolBytes / (test.page_size * row_bytes), copies * pages_per_copy);
  if (num_blocks < copies * pages_per_copy) {
    std::printf("%-34s does not fit\n", test.name.c_str());
    return;
  }
  std::mt19937 random(1);
  std::vector<int> order(num_blocks);
  for (size_t i = 0; i < num_blocks; ++i) order[i] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), random);
  const int stride = (longest + test.page_size - 1) / test.page_size;
  std::vector<std::vector<int>> host_tables;
  std::vector<DeviceArray<int>> tables;
  size_t next = 0;
  for (int copy = 0; copy < copies; ++copy) {
    std::vector<int> table(static_cast<size_t>(requests) * stride, 0);
    for (int i = 0; i < requests; ++i) {
      const int pages = (test.seq_lens[i] + test.page_size - 1) / test.page_size;
      for (int p = 0; p < pages; ++p) table[static_cast<size_t>(i) * stride + p] = order[next++];
    }
    tables.emplace_back(table);
    host_tables.push_back(std::move(table));
  }
  DeviceArray<int> d_starts(starts), d_lens(test.seq_lens);
  DeviceArray<__nv_bfloat16> q(static_cast<size_t>(rows) * 576);
  FillBf16<<<1024, 256, 0, stream>>>(q.data(), q.size(), 77);
  DeviceArray<uint16_t> output(static_cast<size_t>(rows) * 512);
  DeviceArray<float> lse(static_cast<size_t>(rows));
  const MlaDecodeLimits limits = {tokens, requests, 1 << 17, test.heads};
  DeviceArray<uint8_t> workspace(MlaDecodeWorkspaceBytes(limits), 0);
  MlaDecodeParams params;
  params.num_requests = requests;
  params.num_tokens = tokens;
  params.heads = test.heads;
  params.q = q.data();
  params.query_start_loc = d_starts.data();
  params.seq_lens = d_lens.data();
  params.block_table_stride = stride;
  params.cache = pool;
  params.cache_type = test.type;
  params.num_blocks = static_cast<int>(num_blocks);
  params.page_size = test.page_size;
  params.softmax_scale = 0.1352f * (e4m3 ? 2 : 1);
  params.output = output.data();
  params.lse = lse.data();
  params.splits = options.splits;
  params.relaxed = options.relaxed;
  auto layer = [&](int copy) {
    params.block_table = tables[copy].data();
    CudaOk(MlaDecode(params, limits, workspace.data(), stream), "MlaDecode");
  };
  params.block_table = tables[0].data();
  cudaGraphExec_t plan = Capture(
      stream, [&] { CudaOk(MlaDecodePlan(params, limits, workspace.data(), stream), "plan"); });
  std::vector<float> plan_times;
  for (int i = 0; i < 10; ++i) plan_times.push_back(timer.Microseconds(plan, stream));

  // Spot check of a few rows of copy 0.
  layer(0);
  CudaOk(cudaStreamSynchronize(stream), test.name.c_str());
  params.plan_settled = true;  // what is timed is a layer behind the first
  double error = 0;
  for (int check = 0; check < 4; ++check) {
    const int request = static_cast<int>(random() % requests);
    const int token = static_cast<int>(random() % test.query_lens[request]);
    const int head = static_cast<int>(random() % test.heads);
    const size_t row = static_cast<size_t>(starts[request] + token) * test.heads + head;
    const int keys = test.seq_lens[request] - test.query_lens[request] + token + 1;
    std::vector<uint16_t> raw_q(576), raw_o(512);
    CudaOk(cudaMemcpy(raw_q.data(), q.data() + row * 576, 1152, cudaMemcpyDeviceToHost), "q");
    CudaOk(cudaMemcpy(raw_o.data(), output.data() + row * 512, 1024, cudaMemcpyDeviceToHost), "o");
    std::vector<float> query(576), cache(static_cast<size_t>(keys) * 576);
    for (int d = 0; d < 576; ++d) query[d] = Bf16ToFloat(raw_q[d]);
    std::vector<uint8_t> page(test.page_size * row_bytes);
    for (int j = 0; j < keys; ++j) {
      if (j % test.page_size == 0) {
        const size_t block =
            host_tables[0][static_cast<size_t>(request) * stride + j / test.page_size];
        CudaOk(cudaMemcpy(page.data(), static_cast<uint8_t*>(pool) + block * page.size(),
                          page.size(), cudaMemcpyDeviceToHost),
               "page");
      }
      for (int d = 0; d < 576; ++d) {
        const size_t at = static_cast<size_t>(j % test.page_size) * 576 + d;
        uint16_t wide = 0;
        if (!e4m3) std::memcpy(&wide, page.data() + 2 * at, 2);
        cache[static_cast<size_t>(j) * 576 + d] = e4m3 ? E4m3ToFloat(page[at]) : Bf16ToFloat(wide);
      }
    }
    const MlaReferenceRow expected = ReferenceMlaRow(
        query.data(), keys, params.softmax_scale, std::nan(""),
        [&](int j) { return cache.data() + static_cast<size_t>(j) * 576; },
        [](int) { return true; });
    double difference = 0, norm = 0;
    for (int d = 0; d < 512; ++d) {
      const double delta = Bf16ToFloat(raw_o[d]) - expected.output[d];
      difference += delta * delta;
      norm += expected.output[d] * expected.output[d];
    }
    error = std::max(error, std::sqrt(difference / norm));
    if (std::isnan(difference)) error = difference;
  }

  std::vector<cudaGraphExec_t> graphs;
  for (int copy = 0; copy < copies; ++copy) graphs.push_back(Capture(stream, [&] { layer(copy); }));
  std::vector<float> times;
  for (int i = 0; i < options.repeats + 5; ++i) {
    const float time = timer.Microseconds(graphs[i % copies], stream);
    if (i >= 5) times.push_back(time);
  }
  cudaGraphExec_t chain = Capture(stream, [&] {
    for (int i = 0; i < 16; ++i) layer(i % copies);
  });
  std::vector<float> chain_times;
  for (int i = 0; i < 6; ++i) chain_times.push_back(timer.Microseconds(chain, stream) / 16);
  const double us = Median(times);
  std::printf(
      "%-34s %8.1f us  chain %8.1f  plan %5.1f  floor %7.1f (%4.1f%%)  %6.0f GB/s %6.1f TF  ",
      test.name.c_str(), us, Median(chain_times), Median(plan_times), floor_us, 100 * floor_us / us,
      kv_tokens * row_bytes / us / 1e3, flops / us / 1e6);
  if (test.peer_us > 0) std::printf("peer %7.1f (%.2fx)  ", test.peer_us, test.peer_us / us);
  std::printf("%s %.1e\n", error < 8e-3 ? "ok" : "WRONG", error);
  std::fflush(stdout);
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  cudaGraphExecDestroy(chain);
  cudaGraphExecDestroy(plan);
}

/// Requests alike.
Case Uniform(int heads, int q, int batch, int context, double peer, int page, MlaCacheType type) {
  std::string name = "h" + std::to_string(heads) + " q" + std::to_string(q) + " b" +
                     std::to_string(batch) + " ctx" + std::to_string(context);
  if (page != 64) name += " page" + std::to_string(page);
  if (type == MlaCacheType::kE4m3) name += " e4m3";
  return {name, heads, page, type, std::vector<int>(batch, q), std::vector<int>(batch, context),
          peer};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  auto uniform = [&](int heads, int q, int batch, int context, double peer, int page = 64,
                     MlaCacheType type = MlaCacheType::kBf16) {
    cases.push_back(Uniform(heads, q, batch, context, peer, page, type));
  };
  uniform(16, 1, 1, 64, 0);
  uniform(16, 1, 1, 256, 0);
  uniform(16, 1, 1, 4096, 26.8);
  uniform(16, 1, 8, 4096, 26.7);
  uniform(16, 1, 32, 4096, 54.3);
  uniform(16, 1, 32, 1024, 25.4);
  uniform(16, 1, 128, 1024, 51.1);
  uniform(16, 1, 128, 4096, 164.3);
  uniform(16, 1, 128, 8192, 308.1);
  uniform(32, 1, 128, 8192, 308.5);
  uniform(64, 1, 128, 8192, 310.7);
  uniform(16, 1, 36, 4096, 0);
  uniform(16, 1, 48, 4096, 0);
  uniform(16, 1, 96, 4096, 0);
  uniform(16, 1, 16, 32768, 168.0);
  uniform(64, 1, 16, 32768, 171.4);
  uniform(16, 2, 128, 8192, 308.6);
  uniform(16, 4, 1, 4096, 29.9);
  uniform(16, 4, 32, 4096, 57.8);
  uniform(16, 4, 128, 8192, 310.8);
  uniform(64, 1, 1, 4096, 29.7);
  uniform(64, 1, 8, 4096, 31.5);
  uniform(128, 1, 1, 4096, 25.2);
  uniform(128, 1, 8, 4096, 40.0);
  uniform(128, 1, 32, 4096, 74.4);
  uniform(128, 1, 24, 4096, 0);
  uniform(128, 1, 48, 4096, 0);
  uniform(128, 1, 128, 1024, 75.5);
  uniform(128, 1, 128, 4096, 230.1);
  uniform(128, 1, 128, 8192, 461.3);
  uniform(128, 2, 128, 4096, 428.9);
  uniform(128, 2, 128, 8192, 838.5);
  uniform(128, 4, 8, 4096, 75.8);
  uniform(128, 4, 32, 4096, 216.1);
  uniform(128, 4, 128, 4096, 830.0);
  uniform(128, 4, 16, 32768, 839.3);
  uniform(16, 1, 128, 8192, 0, 16);
  uniform(128, 1, 128, 8192, 0, 16);
  for (int heads : {8, 16, 32, 64, 128}) uniform(heads, 1, 128, 8192, 0, 64, MlaCacheType::kE4m3);
  uniform(16, 2, 128, 8192, 0, 64, MlaCacheType::kE4m3);
  uniform(16, 4, 128, 8192, 0, 64, MlaCacheType::kE4m3);
  uniform(16, 1, 128, 8192, 0, 16, MlaCacheType::kE4m3);
  uniform(16, 1, 16, 32768, 0, 64, MlaCacheType::kE4m3);
  for (int batch : {1, 8, 32, 128}) uniform(16, 1, batch, 4096, 0, 64, MlaCacheType::kE4m3);
  // Ragged.
  for (int heads : {16, 128}) {
    std::vector<int> mixed, spread, extend;
    for (int i = 0; i < 128; ++i) {
      mixed.push_back(i % 10 == 9 ? 8 : 1);
      spread.push_back(1 + i % 8);
      extend.push_back(i == 64 ? 32 : 1);
    }
    const std::string h = "h" + std::to_string(heads);
    const std::vector<int> lens(128, 8192);
    cases.push_back(
        {h + " 90% q1 10% q8 b128 ctx8192", heads, 64, MlaCacheType::kBf16, mixed, lens, 0});
    cases.push_back({h + " q 1..8 b128 ctx8192", heads, 64, MlaCacheType::kBf16, spread, lens, 0});
    cases.push_back({h + " one q32 b128 ctx8192", heads, 64, MlaCacheType::kBf16, extend, lens, 0});
  }
  // As a padded call, and as a call per length (the sum of these).
  uniform(16, 8, 128, 8192, 0);
  uniform(16, 32, 128, 8192, 0);
  uniform(16, 1, 116, 8192, 0);
  uniform(16, 8, 12, 8192, 0);
  uniform(16, 1, 127, 8192, 0);
  uniform(16, 32, 1, 8192, 0);
  for (int q = 1; q <= 8; ++q) uniform(16, q, 16, 8192, 0);
  return cases;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--relaxed") {
      options.relaxed = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "mla_decode_bench: %s needs a value\n", name.c_str());
      return 2;
    }
    const char* value = argv[++i];
    if (name == "--filter") {
      std::stringstream list(value);
      for (std::string text; std::getline(list, text, ',');) options.filters.push_back(text);
    } else if (name == "--repeats") {
      options.repeats = std::atoi(value);
    } else if (name == "--case") {
      int heads = 0, q = 0, batch = 0, context = 0;
      if (std::sscanf(value, "%d,%d,%d,%d", &heads, &q, &batch, &context) != 4) {
        std::fprintf(stderr, "mla_decode_bench: --case takes HEADS,ROWS,BATCH,CONTEXT\n");
        return 2;
      }
      options.cases.push_back(Uniform(heads, q, batch, context, 0, 64, MlaCacheType::kBf16));
    } else if (name == "--base") {
      options.splits.base = std::atoi(value);
    } else if (name == "--end0") {
      options.splits.end0 = std::atoi(value);
    } else if (name == "--end1") {
      options.splits.end1 = std::atoi(value);
    } else {
      std::fprintf(stderr, "mla_decode_bench: unknown option %s\n", name.c_str());
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "mla_decode_bench: no GPU here\n");
    return 2;
  }
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  Timer timer;
  cudaGraphExec_t empty = Capture(stream, [&] { Empty<<<1, 32, 0, stream>>>(); });
  std::vector<float> times;
  for (int i = 0; i < 30; ++i) times.push_back(timer.Microseconds(empty, stream));
  std::printf("one empty kernel in a graph: %.1f us (subtracted nowhere)\n", Median(times));
  DeviceArray<uint8_t> pool(kPoolBytes);
  int filled = -1;
  for (const Case& test : options.cases.empty() ? Cases() : options.cases) {
    const bool wanted = std::any_of(
        options.filters.begin(), options.filters.end(),
        [&](const std::string& text) { return test.name.find(text) != std::string::npos; });
    if (!wanted && !options.filters.empty()) continue;
    const int kind = test.type == MlaCacheType::kE4m3;
    if (filled != kind) {
      if (kind == 1) {
        FillE4m3<<<4096, 256, 0, stream>>>(pool.data(), pool.size(), 5);
      } else {
        FillBf16<<<4096, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(pool.data()),
                                           pool.size() / 2, 5);
      }
      filled = kind;
    }
    RunCase(test, options, pool.data(), timer, stream);
  }
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) { return outrider::cuda::Main(argc, argv); }
