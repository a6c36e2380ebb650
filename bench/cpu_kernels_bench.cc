// The CPU kernels against this machine's limits, measured in the same run: matrix products and
// attention of D8 (hidden 2048, 16 heads, FFN 10944, vocabulary 102400, 8 layers) and of
// the bundled tiny model. Prints Markdown.
//
// Longer than most files: the sections share their tables and limits.
//
//   cpu_kernels_bench [--threads N] [--section d8|prompt|tiny|attention|per-head|rows]
//                     [--weights bf16|fp8|int8]

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cpu_limits.h"
#include "outrider/base/buffer.h"
#include "outrider/base/cpu_features.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::bench {
namespace {

// Set with one thread on a machine that others use as well: time is then this thread's own.
bool g_thread_time = false;

double Now() {
  timespec t;
  clock_gettime(g_thread_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Of all matrix products.
PackedFormat g_format = {.dtype = DType::kBF16};

const KernelTable& Kernels() {
  static const KernelTable& kernels = GetKernels(SelectIsa());
  return kernels;
}

/// Seconds of one call, the best of `repeats`, after one that warms up.
template <typename Call>
double BestSeconds(int repeats, Call call) {
  call();
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = Now();
    call();
    best = std::min(best, Now() - start);
  }
  return best;
}

struct Limits {
  double dram = 0;    // bytes per second
  double cache = 0;   // bytes per second from the last cache level, 16 MiB in all
  double gflops = 0;  // float32 FMA
};

Limits Measure(ThreadPool& pool) {
  Buffer large(size_t{1} << 30);
  std::memset(large.data(), 1, large.size());
  const size_t small = size_t{16} << 20;
  return {
      .dram = static_cast<double>(large.size()) / ReadSeconds(pool, large.data(), large.size(), 5),
      .cache = static_cast<double>(small) / ReadSeconds(pool, large.data(), small, 30),
      .gflops = FmaGflops(pool)};
}

void FillRandom(std::byte* data, size_t bytes) {
  // bfloat16 values of magnitude 2^-8 to 2^-5, from a linear congruential generator.
  auto* out = reinterpret_cast<uint16_t*>(data);
  uint32_t state = 1;
  for (size_t i = 0; i < bytes / 2; ++i) {
    state = state * 1664525 + 1013904223;
    out[i] = static_cast<uint16_t>((state >> 16 & 0x81ff) + 0x3b80);
  }
}

void FillNormal(float* data, int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) data[i] = normal(random);
}

struct Shape {
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> weights;  // (N, K) of the jobs of one call
  int calls;                                         // per pass over the model, distinct weights
};

/// All matrix products of a model, in order, on distinct weights.
class Products {
 public:
  explicit Products(std::vector<Shape> shapes) : shapes_(std::move(shapes)) {
    size_t bytes = 0;
    for (const Shape& s : shapes_) bytes += ShapeBytes(s) * static_cast<size_t>(s.calls);
    storage_ = Buffer(bytes);
    FillRandom(storage_.data(), bytes);
    const std::byte* next = storage_.data();
    for (const Shape& s : shapes_) {
      for (int c = 0; c < s.calls; ++c) {
        for (const auto& [n, k] : s.weights) {
          weights_.push_back({.format = g_format, .rows = n, .cols = k, .data = next});
          // Blocks of 128 rows, eight panels, share their scales.
          for (int64_t p = 0; p < weights_.back().panels(); ++p) {
            std::fill_n(const_cast<float*>(weights_.back().scales(p)), ScalesPerPanel(g_format, k),
                        std::ldexp(1.0F, -9 - static_cast<int>(p / 8 % 8)));
          }
          next += PackedBytes(g_format, n, k);
        }
      }
    }
  }

  static double ShapeWeights(const Shape& s) {
    double sum = 0;
    for (const auto& [n, k] : s.weights) sum += static_cast<double>(n * k);
    return sum;
  }

  static size_t ShapeBytes(const Shape& s) {
    size_t bytes = 0;
    for (const auto& [n, k] : s.weights) bytes += PackedBytes(g_format, n, k);
    return bytes;
  }

  size_t bytes() const { return storage_.size(); }
  double weights() const {
    double sum = 0;
    for (const PackedMatrix& w : weights_) sum += static_cast<double>(w.rows * w.cols);
    return sum;
  }
  const std::vector<Shape>& shapes() const { return shapes_; }

  /// Bytes per second of reading all weights and doing nothing with them.
  double ReadBytesPerSecond(ThreadPool& pool, int passes) const {
    return static_cast<double>(bytes()) / ReadSeconds(pool, storage_.data(), bytes(), passes);
  }

  /// Seconds per shape (all its calls) of one pass with `rows` rows.
  std::vector<double> Pass(ThreadPool& pool, int64_t rows, const float* x, float* y) const {
    std::vector<double> seconds;
    const PackedMatrix* w = weights_.data();
    std::vector<MatMulJob> jobs;
    for (const Shape& s : shapes_) {
      const double start = Now();
      for (int c = 0; c < s.calls; ++c) {
        jobs.clear();
        float* out = y;
        for (size_t i = 0; i < s.weights.size(); ++i, ++w) {
          jobs.push_back({.x = {x, rows, w->cols}, .w = w, .y = {out, rows, w->rows}});
          out += rows * w->rows;
        }
        Kernels().matmul(pool, jobs, DType::kBF16);
      }
      seconds.push_back(Now() - start);
    }
    return seconds;
  }

 private:
  std::vector<Shape> shapes_;
  Buffer storage_;
  std::vector<PackedMatrix> weights_;
};

void ReportProducts(const std::string& title, const Products& products, ThreadPool& pool,
                    const Limits& limits, const std::vector<int64_t>& row_counts, int repeats) {
  int64_t widest_in = 0;
  int64_t widest_out = 0;
  for (const Shape& s : products.shapes()) {
    int64_t out = 0;
    for (const auto& [n, k] : s.weights) {
      widest_in = std::max(widest_in, k);
      out += n;
    }
    widest_out = std::max(widest_out, out);
  }
  const int64_t most_rows = *std::max_element(row_counts.begin(), row_counts.end());
  std::vector<float> x(static_cast<size_t>(most_rows * widest_in));
  std::vector<float> y(static_cast<size_t>(most_rows * widest_out));
  FillNormal(x.data(), static_cast<int64_t>(x.size()));

  const double bandwidth = products.ReadBytesPerSecond(pool, repeats + 1);
  fmt::print("\n### {} ({:.1f} MB; reading these bytes alone: {:.1f} GB/s)\n\n", title,
             static_cast<double>(products.bytes()) * 1e-6, bandwidth * 1e-9);
  fmt::print(
      "| product | rows | us per call | GB/s | of read limit | GFLOP/s | of FMA peak | time ÷ 1 "
      "row |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  std::vector<double> one_row;
  for (const int64_t rows : row_counts) {
    std::vector<double> best(products.shapes().size(), 1e30);
    double best_total = 1e30;
    for (int i = 0; i <= repeats; ++i) {
      const std::vector<double> seconds = products.Pass(pool, rows, x.data(), y.data());
      if (i == 0 && repeats > 0) continue;
      double total = 0;
      for (size_t s = 0; s < seconds.size(); ++s) {
        best[s] = std::min(best[s], seconds[s]);
        total += seconds[s];
      }
      best_total = std::min(best_total, total);
    }
    best.push_back(best_total);
    if (one_row.empty()) one_row = best;
    for (size_t s = 0; s < best.size(); ++s) {
      const bool all = s == products.shapes().size();
      const double calls = all ? 1 : products.shapes()[s].calls;
      const double bytes =
          all ? static_cast<double>(products.bytes())
              : static_cast<double>(Products::ShapeBytes(products.shapes()[s])) * calls;
      const double rate = bytes / best[s];
      const double weights =
          all ? products.weights() : Products::ShapeWeights(products.shapes()[s]) * calls;
      const double flops = 2 * weights * static_cast<double>(rows) / best[s] * 1e-9;
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.0f} | {:.2f} | {:.2f} |\n",
                 all ? "**whole pass**" : products.shapes()[s].name, rows, best[s] / calls * 1e6,
                 rate * 1e-9, rate / bandwidth, flops, flops / limits.gflops, best[s] / one_row[s]);
    }
  }
}

std::vector<Shape> D8Shapes(int layers, bool with_head) {
  std::vector<Shape> shapes = {{"q_a + kv_a 2112 × 2048", {{1536, 2048}, {576, 2048}}, layers},
                               {"q_b 3072 × 1536", {{3072, 1536}}, layers},
                               {"o 2048 × 2048", {{2048, 2048}}, layers},
                               {"gate + up 21888 × 2048", {{21888, 2048}}, layers},
                               {"down 2048 × 10944", {{2048, 10944}}, layers}};
  if (with_head) shapes.push_back({"lm_head 102400 × 2048", {{102400, 2048}}, 1});
  return shapes;
}

std::vector<Shape> TinyShapes() {
  return {{"q_a + kv_a 768 × 256", {{192, 256}, {576, 256}}, 8},
          {"q_b 1024 × 192", {{1024, 192}}, 8},
          {"8 heads 512 × 64", std::vector(8, std::pair<int64_t, int64_t>{512, 64}), 8},
          {"8 heads 64 × 512", std::vector(8, std::pair<int64_t, int64_t>{64, 512}), 8},
          {"o 256 × 512", {{256, 512}}, 8},
          {"gate + up 1280 × 256", {{1280, 256}}, 8},
          {"down 256 × 640", {{256, 640}}, 8},
          {"2 experts 256 × 256", {{256, 256}, {256, 256}}, 8},
          {"2 experts 256 × 128", {{256, 128}, {256, 128}}, 8},
          {"lm_head 2048 × 256", {{2048, 256}}, 4}};
}

struct AttentionCase {
  int32_t heads, context, rows, requests;
  DType dtype;
};

/// Attention over a paged cache: what a call is given for one layer.
struct PagedCall {
  LayerCache cache;
  MatrixView<const float> q;
  std::span<const AttentionSpan> requests;
  float* out;
};

/// Times `call` for each case over caches of 16 layers in turn. `width` and `macs`: numbers per
/// entry, multiply-adds per row and key of one head.
void ReportPaged(const Limits& limits, std::span<const AttentionCase> cases, int32_t query_width,
                 const std::function<int32_t(const AttentionCase&)>& width, double macs,
                 const std::function<void(const AttentionCase&, const PagedCall&)>& call) {
  constexpr int32_t kBlockSize = 64;
  fmt::print(
      "| heads | context | rows | cache | us per call | GB/s | of read limit | GFLOP/s | of FMA "
      "peak | time ÷ 1 row |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|\n");
  double one_row = 0;
  for (const AttentionCase& c : cases) {
    constexpr int kLayers = 16;
    const int32_t blocks = (c.context + c.rows + kBlockSize - 1) / kBlockSize;
    const int64_t entries = int64_t{blocks} * c.requests * kBlockSize;
    const size_t entry_bytes = static_cast<size_t>(width(c)) * DTypeSize(c.dtype);
    const size_t layer_bytes = static_cast<size_t>(entries) * entry_bytes;
    Buffer storage(layer_bytes * kLayers);
    if (c.dtype == DType::kBF16) {
      FillRandom(storage.data(), storage.size());
    } else {
      FillNormal(storage.as<float>(), static_cast<int64_t>(storage.size() / 4));
    }
    std::vector<int32_t> table(static_cast<size_t>(blocks * c.requests));
    std::iota(table.rbegin(), table.rend(), 0);
    const int32_t rows = c.rows * c.requests;
    std::vector<float> q(static_cast<size_t>(rows * c.heads * query_width));
    std::vector<float> out(q.size());
    FillNormal(q.data(), static_cast<int64_t>(q.size()));
    std::vector<AttentionSpan> spans;
    spans.reserve(static_cast<size_t>(c.requests));
    for (int32_t r = 0; r < c.requests; ++r) {
      spans.push_back({.first_row = r * c.rows,
                       .query_length = c.rows,
                       .context_length = c.context,
                       .block_table = table.data() + r * blocks});
    }
    const double seconds =
        BestSeconds(c.context > 1000 ? 3 : 20,
                    [&] {
                      for (int layer = 0; layer < kLayers; ++layer) {
                        call(c, {.cache = {.data = storage.data() +
                                                   static_cast<size_t>(layer) * layer_bytes,
                                           .dtype = c.dtype,
                                           .block_size = kBlockSize,
                                           .width = width(c)},
                                 .q = {q.data(), rows, c.heads * query_width},
                                 .requests = spans,
                                 .out = out.data()});
                      }
                    }) /
        kLayers;
    if (c.rows == 1) one_row = seconds;
    const double keys = static_cast<double>(c.context) * c.requests;
    const double rate = keys * static_cast<double>(entry_bytes) / seconds;
    const double gflops = keys * c.rows * c.heads * 2 * macs / seconds * 1e-9;
    fmt::print("| {} | {}{} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.0f} | {:.2f} | {} |\n",
               c.heads, c.context, c.requests > 1 ? fmt::format(" × {} requests", c.requests) : "",
               c.rows, DTypeName(c.dtype), seconds * 1e6, rate * 1e-9, rate / limits.dram, gflops,
               gflops / limits.gflops,
               c.requests == 1 ? fmt::format("{:.2f}", seconds / one_row) : "");
  }
}

void ReportAbsorbed(ThreadPool& pool, const Limits& limits) {
  constexpr int32_t kLatent = 512;
  constexpr int32_t kRope = 64;
  fmt::print("\n### Absorbed attention (latent 512, rope 64; caches of 16 layers in turn)\n\n");
  const std::vector<AttentionCase> cases = {
      {16, 4096, 1, 1, DType::kBF16}, {16, 4096, 4, 1, DType::kBF16},
      {16, 4096, 1, 1, DType::kF32},  {16, 4096, 4, 1, DType::kF32},
      {8, 256, 1, 1, DType::kBF16},   {8, 256, 4, 1, DType::kBF16},
      {8, 32, 1, 1, DType::kBF16},    {8, 32, 4, 1, DType::kBF16},
      {8, 256, 4, 16, DType::kBF16}};
  ReportPaged(
      limits, cases, kLatent + kRope, [](const AttentionCase&) { return kLatent + kRope; },
      kLatent + kRope + kLatent,
      [&](const AttentionCase& c, const PagedCall& call) {
        Kernels().absorbed_attention(pool,
                                     {.q = call.q,
                                      .heads = c.heads,
                                      .latent = kLatent,
                                      .rope = kRope,
                                      .scale = 0.01f,
                                      .cache = call.cache,
                                      .requests = call.requests,
                                      .out = {call.out, call.q.rows, int64_t{c.heads} * kLatent}});
      });
}

void ReportPerHead(ThreadPool& pool, const Limits& limits) {
  constexpr int32_t kPart = 64;  // key, rotated key and value of the tiny model
  fmt::print("\n### Per-head attention (64 + 64, 64; caches of 16 layers in turn)\n\n");
  const std::vector<AttentionCase> cases = {
      {8, 32, 1, 1, DType::kBF16},   {8, 32, 4, 1, DType::kBF16},   {8, 448, 1, 1, DType::kBF16},
      {8, 448, 2, 1, DType::kBF16},  {8, 448, 4, 1, DType::kBF16},  {8, 448, 1, 1, DType::kF32},
      {8, 448, 4, 1, DType::kF32},   {8, 4096, 1, 1, DType::kBF16}, {8, 4096, 4, 1, DType::kBF16},
      {8, 256, 4, 16, DType::kBF16}, {8, 256, 512, 1, DType::kBF16}};
  ReportPaged(
      limits, cases, 2 * kPart, [](const AttentionCase& c) { return c.heads * 2 * kPart + kPart; },
      3 * kPart,
      [&](const AttentionCase& c, const PagedCall& call) {
        Kernels().per_head_attention(pool,
                                     {.q = call.q,
                                      .heads = c.heads,
                                      .nope = kPart,
                                      .rope = kPart,
                                      .value = kPart,
                                      .scale = 0.1f,
                                      .cache = call.cache,
                                      .requests = call.requests,
                                      .out = {call.out, call.q.rows, int64_t{c.heads} * kPart}});
      });
}

void ReportExpanded(ThreadPool& pool, const Limits& limits) {
  fmt::print(
      "\n### Expanded attention (nope 128, rope 64, value 128; one prompt from its start)\n\n");
  fmt::print("| heads | rows | us per call | GFLOP/s | of FMA peak |\n|---|---|---|---|---|\n");
  for (const auto& [heads, rows] : {std::pair{16, 512}, {16, 2048}, {8, 64}, {8, 8}}) {
    std::vector<float> q(static_cast<size_t>(rows * heads * 192));
    std::vector<float> kv(static_cast<size_t>(rows * heads * 256));
    std::vector<float> k_rope(static_cast<size_t>(rows * 64));
    std::vector<float> out(static_cast<size_t>(rows * heads * 128));
    std::vector<float> max(static_cast<size_t>(rows * heads));
    std::vector<float> sum(max.size());
    FillNormal(q.data(), static_cast<int64_t>(q.size()));
    FillNormal(kv.data(), static_cast<int64_t>(kv.size()));
    FillNormal(k_rope.data(), static_cast<int64_t>(k_rope.size()));
    std::vector<ExpandedBlock> blocks;
    double pairs = 0;
    for (int32_t first = 0; first < rows; first += kExpandedBlock) {
      blocks.push_back({.request = {.first_row = 0, .query_length = rows},
                        .first_key = first,
                        .num_keys = std::min(kExpandedBlock, rows - first),
                        .kv_row = first});
    }
    for (int r = 0; r < rows; ++r) pairs += r + 1;
    const double seconds = BestSeconds(3, [&] {
      Kernels().expanded_attention(pool, {.q = {q.data(), rows, heads * 192},
                                          .heads = heads,
                                          .nope = 128,
                                          .rope = 64,
                                          .value = 128,
                                          .scale = 0.07f,
                                          .kv = {kv.data(), rows, heads * 256},
                                          .k_rope = {k_rope.data(), rows, 64},
                                          .blocks = blocks,
                                          .out = {out.data(), rows, heads * 128},
                                          .running_max = {max.data(), rows, heads},
                                          .running_sum = {sum.data(), rows, heads}});
    });
    const double gflops = pairs * heads * 2 * (192 + 128) / seconds * 1e-9;
    fmt::print("| {} | {} | {:.1f} | {:.0f} | {:.2f} |\n", heads, rows, seconds * 1e6, gflops,
               gflops / limits.gflops);
  }
}

void ReportRows(ThreadPool& pool) {
  fmt::print(
      "\n### Row kernels, us per call\n\n| kernel | 1 row | 4 rows | 512 rows "
      "|\n|---|---|---|---|\n");
  const KernelTable& kernels = Kernels();
  constexpr int64_t kRows = 512;
  std::vector<float> x(kRows * 21888);
  std::vector<float> y(kRows * 10944);
  std::vector<float> weight(2048, 1.0f);
  std::vector<float> cos(kRows * 32, 0.6f);
  std::vector<float> sin(kRows * 32, 0.8f);
  std::vector<int64_t> slots(kRows);
  for (int64_t i = 0; i < kRows; ++i) slots[static_cast<size_t>(i)] = i;
  std::vector<uint16_t> cache(kRows * 576);
  FillNormal(x.data(), static_cast<int64_t>(x.size()));
  const auto report = [&](const std::string& name, const std::function<void(int64_t)>& call) {
    fmt::print("| {} ", name);
    for (const int64_t rows : {int64_t{1}, int64_t{4}, kRows}) {
      fmt::print("| {:.2f} ", BestSeconds(rows == kRows ? 5 : 200, [&] { call(rows); }) * 1e6);
    }
    fmt::print("|\n");
  };
  for (const int64_t n : {256, 2048}) {
    report(fmt::format("rms_norm {}", n), [&](int64_t rows) {
      kernels.rms_norm(pool, {x.data(), rows, n}, weight.data(), 1e-6f, {y.data(), rows, n});
    });
  }
  for (const int64_t n : {640, 10944}) {
    report(fmt::format("silu_mul {}", n), [&](int64_t rows) {
      kernels.silu_mul(pool, {x.data(), rows, 2 * n}, {y.data(), rows, n});
    });
  }
  report("rotate 16 heads × 64", [&](int64_t rows) {
    kernels.rotate(pool, {x.data(), rows, 16 * 192}, 16, 192, 128,
                   {.cos = {cos.data(), rows, 32}, .sin = {sin.data(), rows, 32}});
  });
  report("write_latent 512 + 64", [&](int64_t rows) {
    kernels.write_latent(pool, {x.data(), rows, 576}, weight.data(), 1e-6f,
                         {.cos = {cos.data(), rows, 32}, .sin = {sin.data(), rows, 32}},
                         slots.data(),
                         {.data = reinterpret_cast<std::byte*>(cache.data()),
                          .dtype = DType::kBF16,
                          .block_size = 64,
                          .width = 576});
  });
}

int Main(int argc, char** argv) {
  int threads = AvailableProcessors();
  std::string section;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--threads") threads = std::atoi(argv[i + 1]);
    if (std::string_view(argv[i]) == "--section") section = argv[i + 1];
    if (std::string_view(argv[i]) == "--weights") {
      const std::string_view weights = argv[i + 1];
      if (weights == "fp8")
        g_format = {.dtype = DType::kF8E4M3, .scale_cols = 128, .power_of_two_scales = true};
      if (weights == "int8") g_format = {.dtype = DType::kI8};
    }
  }
  const auto wanted = [&](std::string_view name) { return section.empty() || section == name; };
  g_thread_time = threads == 1;
  ThreadPool pool(threads);
  const Limits limits = Measure(pool);
  fmt::print(
      "Kernels: {}, {} threads, weights {}. Limits in this run: read {:.1f} GB/s from memory (1 "
      "GiB), {:.1f} "
      "GB/s "
      "from a 16 MiB set, {:.0f} GFLOP/s float32 FMA.\n",
      Kernels().name, threads, DTypeName(g_format.dtype), limits.dram * 1e-9, limits.cache * 1e-9,
      limits.gflops);
  if (wanted("d8")) {
    ReportProducts("D8 matrix products", Products(D8Shapes(8, true)), pool, limits, {1, 2, 4, 8},
                   2);
  }
  if (wanted("prompt")) {
    ReportProducts("One layer of D8, a prompt", Products(D8Shapes(1, false)), pool, limits, {512},
                   1);
  }
  if (wanted("tiny")) {
    ReportProducts("Tiny model", Products(TinyShapes()), pool, limits, {1, 2, 4, 8, 64}, 30);
  }
  if (wanted("attention")) {
    ReportAbsorbed(pool, limits);
    ReportExpanded(pool, limits);
  }
  if (wanted("attention") || wanted("per-head")) ReportPerHead(pool, limits);
  if (wanted("rows")) ReportRows(pool);
  return 0;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) { return outrider::bench::Main(argc, argv); }
