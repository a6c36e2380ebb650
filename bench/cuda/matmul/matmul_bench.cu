// Time of the matrix products and of the expert products beside max(bytes / the rate of reads,
// flops / 790 TFLOP/s) and, for bf16, cuBLASLt in the same run. Per product, in a chain of products
// in one graph, median of the replays; weights rotate over more than 512 MB.
//
//   matmul_bench [--filter TEXT] [--rows N] [--segments N] [--forms] [--no-oracle] [--kimi] [--v4]
//
// --forms: experts with tiles and bodies other than those that run by themselves, too.
// --kimi: experts of Kimi-K2.5's shape, too (35 GB with bf16 weights, 9.5 GB with 4 bits).
// --v4: experts of DeepSeek-V4-Flash's shape, too: FP4 (14 GB), and e4m3 codes (28 GB).
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "bench/cuda/goal_figures.h"
#include "bench/cuda/graph_timer.h"
#include "bench/cuda/matmul/cublaslt_oracle.h"
#include "bench/cuda/matmul/matmul_weights.h"
#include "outrider/kernels/cuda/matmul/matmul.h"

namespace outrider::cuda {
namespace {

struct Options {
  std::string filter;
  int rows = 0;
  int segments = 0;
  bool forms = false;
  bool oracle = true;
  bool kimi = false;
  bool v4 = false;
};

struct Shape {
  const char* name;
  int n;
  int k;
  bool has_goals = true;
};

/// A product's part of the goals.
void RecordProduct(const Shape& shape, WeightFormat format, int rows, size_t bytes, double us,
                   double limit, double oracle_us) {
  static std::map<std::pair<std::string, int>, double> bf16_us;
  // No goal is kept of codes with other scales.
  if (!shape.has_goals || IsFourBits(format) || format == WeightFormat::kF8Rows) return;
  const bool bf16 = format == WeightFormat::kBf16;
  const std::string where = std::to_string(shape.n) + " x " + std::to_string(shape.k) + " " +
                            Name(format) + ", " + std::to_string(rows) + " rows";
  if (bytes < size_t{16} << 20) {
    if (rows <= 32) RecordGoal(Goal::kSmallProducts, where, us - limit);
    return;
  }
  if (rows <= 32) RecordGoal(Goal::kFewRowsBandwidth, where, limit / us);
  if (bf16 && rows <= 32 && oracle_us > 0) {
    RecordGoal(Goal::kFewRowsOracle, where, oracle_us / us);
  }
  if (bf16 && rows >= 64 && rows <= 256 && oracle_us > 0) {
    RecordGoal(Goal::kSomeRowsOracle, where, oracle_us / us);
  }
  if (rows < 1024) return;
  if (!bf16) {
    const auto known = bf16_us.find({shape.name, rows});
    if (known != bf16_us.end()) RecordGoal(Goal::kManyRowsCodes, where, known->second / us);
    return;
  }
  bf16_us[{shape.name, rows}] = us;
  RecordGoal(Goal::kManyRowsRate, where, 2e-6 * rows * shape.n * shape.k / us);
  if (oracle_us > 0) RecordGoal(Goal::kManyRowsOracle, where, oracle_us / us);
}

void RunShape(const Shape& shape, WeightFormat format, const Options& options, CublasLt& oracle,
              cudaStream_t stream) {
  PackedWeight weight;
  weight.format = format;
  weight.n = shape.n;
  weight.k = shape.k;
  weight.segments = options.segments;
  const bool bf16 = format == WeightFormat::kBf16;
  const size_t bytes = PackedWeightBytes(format, shape.n, shape.k);
  const int copies = static_cast<int>(std::min<size_t>(24, (size_t{512} << 20) / bytes + 2));
  const bool compare = bf16 && options.oracle && oracle.ok();
  const DeviceArray<uint8_t> packed(bytes * copies);
  const size_t count = static_cast<size_t>(shape.n) * shape.k;
  const DeviceArray<uint16_t> raw(compare ? count * copies : 0);
  for (int i = 0; i < copies; ++i) {
    PackRandom(weight, packed.data() + i * bytes, 77 + i,
               compare ? raw.data() + i * count : nullptr);
  }
  std::vector<int> all = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
  if (shape.n > 100000) all = {1, 8, 32, 64};
  for (const int rows : all) {
    if (options.rows != 0 && rows != options.rows) continue;
    const DeviceArray<uint16_t> x(static_cast<size_t>(rows) * shape.k);
    FillBf16<<<1024, 256>>>(x.data(), x.size(), 5);
    const DeviceArray<uint16_t> y(static_cast<size_t>(rows) * shape.n);
    CudaOk(cudaDeviceSynchronize(), "fill");
    MatMulParams params;
    params.rows = rows;
    params.x = x.data();
    params.x_stride = shape.k;
    params.w = weight;
    params.y = y.data();
    params.y_stride = shape.n;
    const int launches = rows >= 1024 ? 8 : std::max(16, copies);
    const double us = MicrosecondsPerLaunch(launches, 9, stream, [&](int i, cudaStream_t on) {
      params.w.data = packed.data() + i % copies * bytes;
      MatMul(params, on);
    });
    double oracle_us = 0;
    if (compare && oracle.Prepare(rows, shape.n, shape.k)) {
      oracle_us = MicrosecondsPerLaunch(launches, 9, stream, [&](int i, cudaStream_t on) {
        oracle.Run(x.data(), raw.data() + i % copies * count, y.data(), on);
      });
    }
    const double flops = 2.0 * rows * shape.n * shape.k;
    const double all_bytes =
        static_cast<double>(bytes) + 2.0 * rows * (static_cast<double>(shape.n) + shape.k);
    const double limit = LimitUs(all_bytes, flops);
    std::printf("%-9s %-6s %6d x %5d rows %5d %9.2f us  limit %8.2f  %5.2f  %6.1f TFLOP/s",
                shape.name, Name(format), shape.n, shape.k, rows, us, limit, limit / us,
                flops / us / 1e6);
    RecordProduct(shape, format, rows, bytes, us, limit, oracle_us);
    if (oracle_us > 0) std::printf("  cublasLt %9.2f  %5.2f", oracle_us, oracle_us / us);
    std::printf("\n");
    std::fflush(stdout);
  }
}

struct ExpertShape {
  const char* name;
  int experts;  // with the shared one
  int choices;
  int hidden;
  int width;
  bool shared;  // the last one, which every row has
  int layers;   // of different weights
};

/// GLM-4.7-Flash: 64 experts of which a row has 4, and a shared one.
constexpr ExpertShape kGlmFlash = {.name = "experts",
                                   .experts = 65,
                                   .choices = 5,
                                   .hidden = 2048,
                                   .width = 1536,
                                   .shared = true,
                                   .layers = 2};
/// Kimi-K2.5: 384 experts of which a row has 8; its shared one is another format's.
constexpr ExpertShape kKimi = {.name = "kimi-experts",
                               .experts = 384,
                               .choices = 8,
                               .hidden = 7168,
                               .width = 2048,
                               .shared = false,
                               .layers = 1};
/// DeepSeek-V4-Flash, as Kimi-K2.5.
constexpr ExpertShape kV4Flash = {.name = "v4-experts",
                                  .experts = 256,
                                  .choices = 6,
                                  .hidden = 4096,
                                  .width = 2048,
                                  .shared = false,
                                  .layers = 4};

void RunExperts(const ExpertShape& model, WeightFormat format, const Options& options,
                cudaStream_t stream) {
  const int experts = model.experts, choices = model.choices, hidden = model.hidden,
            width = model.width, layers = model.layers;
  constexpr int kRoutings = 8;
  PackedWeight gate_up, down;
  gate_up.format = down.format = format;
  gate_up.n = 2 * width;
  gate_up.k = hidden;
  gate_up.gate_up = true;
  down.n = hidden;
  down.k = width;
  const size_t gate_up_bytes = PackedWeightBytes(format, gate_up.n, gate_up.k);
  const size_t down_bytes = PackedWeightBytes(format, down.n, down.k);
  const DeviceArray<uint8_t> gate_ups(gate_up_bytes * experts * layers);
  const DeviceArray<uint8_t> downs(down_bytes * experts * layers);
  for (int i = 0; i < experts * layers; ++i) {
    PackRandom(gate_up, gate_ups.data() + i * gate_up_bytes, 3 * i, nullptr);
    PackRandom(down, downs.data() + i * down_bytes, 3 * i + 1, nullptr);
  }
  std::mt19937 random(9);
  const auto run = [&](int rows, int given_tile, MatMulVariant variant) {
    const bool wide = variant == MatMulVariant::kWide;
    const int tile = given_tile != 0 ? given_tile : ExpertTileRows(format, rows, choices, experts);
    std::vector<DeviceArray<int32_t>> pairs, counts;
    std::vector<DeviceArray<ExpertTile>> tiles;
    std::vector<ExpertRouting> routings(kRoutings);
    double touched = 0;
    for (ExpertRouting& routing : routings) {
      std::vector<std::vector<int32_t>> of_expert(experts);
      std::vector<int> ids(model.shared ? experts - 1 : experts);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
      for (int row = 0; row < rows; ++row) {
        std::shuffle(ids.begin(), ids.end(), random);
        for (int choice = 0; choice < choices; ++choice) {
          const bool shared = model.shared && choice == choices - 1;
          of_expert[shared ? experts - 1 : ids[choice]].push_back(row * choices + choice);
        }
      }
      std::vector<int32_t> places;
      std::vector<ExpertTile> list;
      for (int expert = 0; expert < experts; ++expert) {
        const int own = static_cast<int>(of_expert[expert].size());
        touched += own > 0 ? 1.0 / kRoutings : 0;
        for (int first = 0; first < own; first += tile) {
          list.push_back({expert, static_cast<int32_t>(places.size()) + first,
                          std::min(tile, own - first), 0});
        }
        places.insert(places.end(), of_expert[expert].begin(), of_expert[expert].end());
      }
      std::vector<int32_t> of_pairs(places.size());
      for (size_t i = 0; i < places.size(); ++i) of_pairs[places[i]] = static_cast<int32_t>(i);
      pairs.emplace_back(places);
      pairs.emplace_back(of_pairs);
      tiles.emplace_back(list);
      counts.emplace_back(std::vector<int32_t>(experts + 1, static_cast<int32_t>(places.size())));
      routing.offsets = counts.back().data();
      routing.pairs = pairs.end()[-2].data();
      routing.places = pairs.back().data();
      routing.tiles = tiles.back().data();
      counts.emplace_back(std::vector<int32_t>{static_cast<int32_t>(list.size())});
      routing.num_tiles = counts.back().data();
    }
    const size_t all_pairs = static_cast<size_t>(rows) * choices;
    const DeviceArray<uint16_t> x(static_cast<size_t>(rows) * hidden), inner(all_pairs * width);
    const DeviceArray<uint16_t> gathered(all_pairs * hidden);
    const DeviceArray<float> out(all_pairs * hidden);
    FillBf16<<<1024, 256>>>(x.data(), x.size(), 5);
    FillBf16<<<1024, 256>>>(inner.data(), inner.size(), 6);
    CudaOk(cudaDeviceSynchronize(), "fill");
    const MatMulShape given = {.tokens = wide ? 256 : tile, .variant = variant};
    const MatMulShape* const shape = given_tile != 0 ? &given : nullptr;
    const auto up = [&](int i, cudaStream_t on) {
      ExpertMatMulParams params;
      params.max_rows = rows;
      params.choices = choices;
      params.experts = experts;
      params.tile_rows = tile;
      params.shape = shape;
      params.routing = routings[i % kRoutings];
      params.x = x.data();
      params.x_stride = hidden;
      params.gathered = gathered.data();
      params.w = gate_up;
      params.w.data = gate_ups.data() + i % layers * gate_up_bytes * experts;
      params.y = inner.data();
      params.y_stride = width;
      ExpertMatMul(params, on);
    };
    const auto back = [&](int i, cudaStream_t on) {
      ExpertMatMulParams params;
      params.max_rows = rows;
      params.choices = choices;
      params.experts = experts;
      params.tile_rows = tile;
      params.shape = shape;
      params.routing = routings[i % kRoutings];
      params.x = inner.data();
      params.x_stride = width;
      params.routing_settled = true;
      params.w = down;
      params.w.data = downs.data() + i % layers * down_bytes * experts;
      params.y = out.data();
      params.y_stride = hidden;
      params.y_type = OutputType::kF32;
      ExpertMatMul(params, on);
    };
    const double up_us = MicrosecondsPerLaunch(16, 9, stream, up);
    const double down_us = MicrosecondsPerLaunch(16, 9, stream, back);
    const double all_us = MicrosecondsPerLaunch(16, 9, stream, [&](int i, cudaStream_t on) {
      up(i, on);
      back(i, on);
    });
    const double flops = 6.0 * static_cast<double>(all_pairs) * hidden * width;
    const double bytes = touched * static_cast<double>(gate_up_bytes + down_bytes);
    const double limit = LimitUs(bytes, flops);
    std::printf(
        "%-12s %-6s rows %5d tile %3d%c touched %5.1f: gate+up %8.2f us (limit %8.2f)  down "
        "%8.2f "
        "(%8.2f)  all %8.2f  limit %8.2f  %5.2f  %6.1f TFLOP/s\n",
        model.name, Name(format), rows, tile, " dpw"[static_cast<int>(variant)], touched, up_us,
        limit * 2 / 3, down_us, limit / 3, all_us, limit, limit / all_us, flops / all_us / 1e6);
    std::fflush(stdout);
    if (format == WeightFormat::kBf16 && given_tile == 0 && rows <= 512 && model.shared) {
      RecordGoal(Goal::kExperts, std::to_string(rows) + " rows", limit / all_us);
    }
  };
  constexpr auto kUsual = MatMulVariant::kUsual, kDeep = MatMulVariant::kDeep,
                 kPair = MatMulVariant::kPair, kWide = MatMulVariant::kWide;
  std::vector<int> all = {1, 8, 32, 128, 512, 4096, 16384};
  if (options.forms) all = {8, 32, 64, 128, 256, 512, 1024, 4096, 16384};
  for (const int rows : all) {
    if (options.rows != 0 && rows != options.rows) continue;
    run(rows, 0, kUsual);
    if (!options.forms) continue;
    for (const auto& [tile, variant] : {std::pair(8, kUsual),
                                        {8, kDeep},
                                        {16, kUsual},
                                        {16, kDeep},
                                        {16, kPair},
                                        {32, kPair},
                                        {32, kUsual},
                                        {32, kDeep},
                                        {64, kUsual},
                                        {64, kDeep},
                                        {256, kWide}}) {
      const bool bf16 = format == WeightFormat::kBf16;
      if (variant == kWide && !bf16) continue;
      if (variant == kPair && !IsE2m1(format)) continue;
      // Those that are neither far too small nor far too large.
      const int pairs = rows * choices;
      if (tile * experts >= pairs / 4 && (variant == kWide || tile * experts <= pairs * 8)) {
        run(rows, tile, variant);
      }
    }
  }
}

}  // namespace

int RunMatMulBench(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--forms") {
      options.forms = true;
      continue;
    }
    if (flag == "--kimi") {
      options.kimi = true;
      continue;
    }
    if (flag == "--v4") {
      options.v4 = true;
      continue;
    }
    if (flag == "--no-oracle") {
      options.oracle = false;
      continue;
    }
    ++i;
    if (flag == "--filter") {
      options.filter = value;
    } else if (flag == "--rows") {
      options.rows = std::atoi(value);
    } else if (flag == "--segments") {
      options.segments = std::atoi(value);
    } else {
      std::fprintf(stderr, "matmul_bench: unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "matmul_bench: no GPU here\n");
    return 2;
  }
  CublasLt oracle;
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  const Shape shapes[] = {
      {"q_a+kv_a", 1344, 2048},        {"q_b", 5120, 768},       {"v2-o", 2048, 2048},
      {"o_proj", 2048, 5120},          {"gate_up", 20480, 2048}, {"down", 2048, 10240},
      {"v3-down", 7168, 18432, false}, {"square", 8192, 8192},   {"head", 154880, 2048},
  };
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kF8, WeightFormat::kF8PowerOfTwo, WeightFormat::kF8Rows,
        WeightFormat::kInt4, WeightFormat::kFp4, WeightFormat::kNvfp4}) {
    const auto wanted = [&](const char* name) {
      return (std::string(name) + " " + Name(format) + " ").find(options.filter) !=
             std::string::npos;
    };
    for (const Shape& shape : shapes) {
      if (wanted(shape.name)) RunShape(shape, format, options, oracle, stream);
    }
    if (wanted("experts")) RunExperts(kGlmFlash, format, options, stream);
    // 35 GB of bf16.
    if (options.kimi && wanted("kimi")) RunExperts(kKimi, format, options, stream);
    const bool is_v4s = format == WeightFormat::kFp4 || format == WeightFormat::kF8PowerOfTwo;
    if (options.v4 && is_v4s && wanted("v4")) {
      RunExperts(kV4Flash, format, options, stream);
    }
  }
  return 0;
}

}  // namespace outrider::cuda

#ifndef OUTRIDER_GOALS
int main(int argc, char** argv) { return outrider::cuda::RunMatMulBench(argc, argv); }
#endif
