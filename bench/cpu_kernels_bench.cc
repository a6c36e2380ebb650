// The CPU kernels against this machine's limits, measured in the same run: matrix products and
// attention of D8 (hidden 2048, 16 heads, FFN 10944, vocabulary 102400, 8 layers) and of
// the bundled tiny model. Prints Markdown.
//
// Longer than most files: the sections share their tables and limits.
//
// Section v4 is the experts of 16 layers of DeepSeek-V4-Flash, 6 per token: 1.3 GB of FP4 codes and
// scales.
//
//   cpu_kernels_bench [--threads N] [--section d8|v4|prompt|tiny|attention|per-head|rows]
//                     [--weights bf16|fp8|fp4|int8]

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/base/cpu_features.h"
#include "outrider/base/processors.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/kernels/machine_limits.h"
#include "outrider/measure/kernel_loads.h"

namespace outrider::bench {
namespace {

const KernelTable& Kernels() {
  static const KernelTable& kernels = GetKernels(SelectIsa());
  return kernels;
}

struct Limits {
  double dram = 0;        // bytes per second
  double cache = 0;       // bytes per second from the last cache level, 16 MiB in all
  double flops = 0;       // float32 FMA, per second
  double tile_flops = 0;  // AMX's bfloat16, per second, in the table for it

  double ProductFlops() const { return tile_flops > 0 ? tile_flops : flops; }
};

Limits Measure(ThreadPool& pool) {
  Buffer large(size_t{1} << 30);
  std::memset(large.data(), 1, large.size());
  const size_t small = size_t{16} << 20;
  return {
      .dram = static_cast<double>(large.size()) / ReadSeconds(pool, large.data(), large.size(), 5),
      .cache = static_cast<double>(small) / ReadSeconds(pool, large.data(), small, 30),
      .flops = FmaFlopsPerSecond(pool, SelectIsa()),
      .tile_flops = SelectIsa() == Isa::kAmx ? TileFlopsPerSecond(pool) : 0};
}

void ReportProducts(const std::string& title, const ModelProducts& products, ThreadPool& pool,
                    const Limits& limits, const std::vector<int64_t>& row_counts, int repeats) {
  const double bandwidth = products.ReadBytesPerSecond(pool, repeats + 1);
  fmt::print("\n### {} ({:.1f} MB; reading these bytes alone: {:.1f} GB/s)\n\n", title,
             static_cast<double>(products.bytes_per_pass()) * 1e-6, bandwidth * 1e-9);
  fmt::print(
      "| product | rows | us per call | GB/s | of read limit | GFLOP/s | of {} peak | time ÷ 1 "
      "row |\n",
      limits.tile_flops > 0 ? "AMX" : "FMA");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  std::vector<double> one_row;
  for (const int64_t rows : row_counts) {
    const std::vector<double> best = products.Seconds(Kernels(), pool, rows, repeats);
    if (one_row.empty()) one_row = best;
    for (size_t g = 0; g < best.size(); ++g) {
      const bool all = g == products.groups().size();
      const ProductGroup group =
          all ? ProductGroup{.name = "**whole pass**"} : products.groups()[g];
      const size_t bytes = all ? products.bytes_per_pass() : products.BytesPerPass(group);
      const double weights = all ? products.weights_per_pass() : group.WeightsPerPass();
      const double rate = static_cast<double>(bytes) / best[g];
      const double flops = 2 * weights * static_cast<double>(rows) / best[g];
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.0f} | {:.2f} | {:.2f} |\n", group.name,
                 rows, best[g] / group.calls * 1e6, rate * 1e-9, rate / bandwidth, flops * 1e-9,
                 flops / limits.ProductFlops(), best[g] / one_row[g]);
    }
  }
}

std::vector<ProductGroup> TinyProducts() {
  return {{.name = "q_a + kv_a 768 × 256", .n = 768, .k = 256, .calls = 8},
          {.name = "q_b 1024 × 192", .n = 1024, .k = 192, .calls = 8},
          {.name = "8 heads 512 × 64", .n = 512, .k = 64, .per_call = 8, .calls = 8},
          {.name = "8 heads 64 × 512", .n = 64, .k = 512, .per_call = 8, .calls = 8},
          {.name = "o 256 × 512", .n = 256, .k = 512, .calls = 8},
          {.name = "gate + up 1280 × 256", .n = 1280, .k = 256, .calls = 8},
          {.name = "down 256 × 640", .n = 256, .k = 640, .calls = 8},
          {.name = "2 experts 256 × 256", .n = 256, .k = 256, .per_call = 2, .calls = 8},
          {.name = "2 experts 256 × 128", .n = 256, .k = 128, .per_call = 2, .calls = 8},
          {.name = "lm_head 2048 × 256", .n = 2048, .k = 256, .calls = 4}};
}

/// Experts of DeepSeek-V4-Flash: hidden 4096, width 2048, of each layer the 6 that a token chooses.
std::vector<ProductGroup> V4Products(int layers) {
  return {{.name = "6 experts 4096 × 4096", .n = 4096, .k = 4096, .per_call = 6, .calls = layers},
          {.name = "6 experts 4096 × 2048", .n = 4096, .k = 2048, .per_call = 6, .calls = layers}};
}

struct AttentionCase {
  int32_t heads, context, rows, requests;
  DType dtype;
};

/// `width` and `macs`: numbers per cache entry, multiply-adds per row and key of one head.
void ReportAttention(const Limits& limits, std::span<const AttentionCase> cases,
                     const std::function<int32_t(const AttentionCase&)>& width, double macs,
                     const std::function<double(const AttentionCase&)>& seconds_of) {
  fmt::print(
      "| heads | context | rows | cache | us per call | GB/s | of read limit | GFLOP/s | of FMA "
      "peak | time ÷ 1 row |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|\n");
  double one_row = 0;
  for (const AttentionCase& c : cases) {
    const double seconds = seconds_of(c);
    if (c.rows == 1) one_row = seconds;
    const double keys = static_cast<double>(c.context) * c.requests;
    const double rate = keys * width(c) * static_cast<double>(DTypeSize(c.dtype)) / seconds;
    const double flops = keys * c.rows * c.heads * 2 * macs / seconds;
    fmt::print("| {} | {}{} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.0f} | {:.2f} | {} |\n",
               c.heads, c.context, c.requests > 1 ? fmt::format(" × {} requests", c.requests) : "",
               c.rows, DTypeName(c.dtype), seconds * 1e6, rate * 1e-9, rate / limits.dram,
               flops * 1e-9, flops / limits.flops,
               c.requests == 1 ? fmt::format("{:.2f}", seconds / one_row) : "");
  }
}

void ReportAbsorbed(ThreadPool& pool, const Limits& limits) {
  fmt::print("\n### Absorbed attention (latent 512, rope 64; caches of 16 layers in turn)\n\n");
  const std::vector<AttentionCase> cases = {
      {16, 4096, 1, 1, DType::kBF16},  {16, 4096, 4, 1, DType::kBF16},
      {16, 4096, 1, 1, DType::kF32},   {16, 4096, 4, 1, DType::kF32},
      {64, 4096, 1, 1, DType::kBF16},  {64, 4096, 4, 1, DType::kBF16},
      {128, 4096, 1, 1, DType::kBF16}, {128, 4096, 4, 1, DType::kBF16},
      {8, 256, 1, 1, DType::kBF16},    {8, 256, 4, 1, DType::kBF16},
      {8, 32, 1, 1, DType::kBF16},     {8, 32, 4, 1, DType::kBF16},
      {8, 256, 4, 16, DType::kBF16}};
  ReportAttention(
      limits, cases, [](const AttentionCase&) { return kAbsorbedEntry; }, kAbsorbedMacs,
      [&](const AttentionCase& c) {
        return AbsorbedSeconds(Kernels(), pool, c.heads, c.context, c.rows, c.requests, c.dtype);
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
  const auto width = [](const AttentionCase& c) { return c.heads * 2 * kPart + kPart; };
  ReportAttention(limits, cases, width, 3 * kPart, [&](const AttentionCase& c) {
    const PagedLoad load = {.heads = c.heads,
                            .context = c.context,
                            .rows = c.rows,
                            .requests = c.requests,
                            .dtype = c.dtype,
                            .query_width = 2 * kPart,
                            .entry_width = width(c)};
    return PagedSeconds(pool, load, [&](const PagedCall& call) {
      Kernels().per_head_attention(pool,
                                   {.q = call.q,
                                    .heads = c.heads,
                                    .kv_heads = c.heads,
                                    .nope = kPart,
                                    .rope = kPart,
                                    .value = kPart,
                                    .scale = 0.1F,
                                    .cache = call.cache,
                                    .requests = call.requests,
                                    .out = {call.out, call.q.rows, int64_t{c.heads} * kPart}});
    });
  });
}

void ReportExpanded(ThreadPool& pool, const Limits& limits) {
  fmt::print(
      "\n### Expanded attention (nope 128, rope 64, value 128; one prompt from its start)\n\n");
  fmt::print("| heads | rows | us per call | GFLOP/s | of FMA peak |\n|---|---|---|---|---|\n");
  for (const auto& [heads, rows] : {std::pair{16, 512}, {16, 2048}, {8, 64}, {8, 8}}) {
    const double seconds = ExpandedSeconds(Kernels(), pool, heads, rows);
    const double flops = ExpandedFlops(heads, rows) / seconds;
    fmt::print("| {} | {} | {:.1f} | {:.0f} | {:.2f} |\n", heads, rows, seconds * 1e6, flops * 1e-9,
               flops / limits.flops);
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
      fmt::print("| {:.2f} ",
                 BestSeconds(pool, rows == kRows ? 5 : 200, [&] { call(rows); }) * 1e6);
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
      kernels.silu_mul(pool, {x.data(), rows, 2 * n}, kNoLimit, {y.data(), rows, n});
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
  int threads = static_cast<int>(UsableProcessors().size());
  std::string section;
  PackedFormat format = {.dtype = DType::kBF16};  // of all products
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--threads") threads = std::atoi(argv[i + 1]);
    if (std::string_view(argv[i]) == "--section") section = argv[i + 1];
    if (std::string_view(argv[i]) == "--weights") {
      const std::string_view weights = argv[i + 1];
      if (weights == "fp8") {
        format = {.dtype = DType::kF8E4M3, .scale_cols = 128, .power_of_two_scales = true};
      }
      if (weights == "fp4") format = {.dtype = DType::kF4E2M1};
      if (weights == "int8") format = {.dtype = DType::kI8};
    }
  }
  const auto wanted = [&](std::string_view name) { return section.empty() || section == name; };
  ThreadPool pool(threads);
  const Limits limits = Measure(pool);
  fmt::print(
      "Kernels: {}, {} threads, weights {}. Limits in this run: read {:.1f} GB/s from memory (1 "
      "GiB), {:.1f} GB/s from a 16 MiB set, {:.0f} GFLOP/s float32 FMA{}.\n",
      Kernels().name, threads, DTypeName(format.dtype), limits.dram * 1e-9, limits.cache * 1e-9,
      limits.flops * 1e-9,
      limits.tile_flops > 0
          ? fmt::format(", {:.0f} GFLOP/s AMX bfloat16 from L2", limits.tile_flops * 1e-9)
          : "");
  if (wanted("d8")) {
    ReportProducts("D8 matrix products", ModelProducts(format, D8Products(8, true)), pool, limits,
                   {1, 2, 4, 8, 16, 32, 64}, 2);
  }
  if (section == "v4") {
    ReportProducts("Experts of DeepSeek-V4-Flash", ModelProducts(format, V4Products(16)), pool,
                   limits, {1, 4}, 3);
  }
  if (wanted("prompt")) {
    ReportProducts("One layer of D8, a prompt", ModelProducts(format, D8Products(1, false)), pool,
                   limits, {512}, 1);
  }
  if (wanted("tiny")) {
    ReportProducts("Tiny model", ModelProducts(format, TinyProducts()), pool, limits,
                   {1, 2, 4, 8, 16, 32, 34, 64}, 30);
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
