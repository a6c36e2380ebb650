// Every body of the products and several cuts of K, for the products of the layers of
// DeepSeek-V2-Lite, GLM-4.7-Flash and DeepSeek-V3 (v3): what `SegmentsOf` and `ChooseShape` are
// chosen by. A line has the time of what runs by itself, cuBLASLt's (bf16), and those of all
// others, fastest first, as segments/form/rows of x per tile: u usual, d deep, p pair, w wide, a
// all segments, s2 shared by two. --own: with the weight's own number of segments only.
//
//   matmul_sweep [--format bf16|f8|f8pow2] [--only NAME,...] [--own] [rows...]
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "bench/cuda/matmul/cublaslt_oracle.h"
#include "bench/cuda/matmul/matmul_weights.h"

namespace outrider::cuda {
namespace {

struct Weight {
  const char* name;
  int n;
  int k;
};

std::vector<MatMulShape> Shapes(WeightFormat format, int rows, int segments) {
  constexpr auto kDeep = MatMulVariant::kDeep, kPair = MatMulVariant::kPair,
                 kWide = MatMulVariant::kWide;
  const bool bf16 = format == WeightFormat::kBf16;
  std::vector<MatMulShape> shapes;
  for (const int tokens : {8, 16, 32, 64}) {
    const bool enough = tokens >= rows && (tokens == 8 || tokens / 2 < rows);
    if (!enough && !(tokens == 64 && rows > 64 && rows <= 512)) continue;
    shapes.push_back({.tokens = tokens});
    if (bf16) shapes.push_back({.tokens = tokens, .variant = kDeep});
    for (const int shares : {2, 4}) {
      if (!bf16 || tokens < 32 || rows > tokens || shares * segments > 8) continue;
      shapes.push_back({.tokens = tokens, .shares = shares});
      shapes.push_back({.tokens = tokens, .variant = kDeep, .shares = shares});
    }
  }
  if (segments > 1 && bf16 && rows > 8) {
    if (rows <= 512) shapes.push_back({.tokens = 64, .variant = kDeep, .all_segments = true});
    if (rows > 64) shapes.push_back({.tokens = 128, .all_segments = true});
  }
  if (segments > 1 && rows > 64) {
    shapes.push_back({.tokens = 128, .variant = kWide, .all_segments = true});
  }
  if (rows <= 32) return shapes;
  if (rows > 64) {
    shapes.push_back({.tokens = 128});
    shapes.push_back({.tokens = 128, .variant = kWide});
  }
  if (rows > 128 && bf16) shapes.push_back({.tokens = 192, .variant = kPair});
  if (rows > 192 && bf16) {
    shapes.push_back({.tokens = 256, .variant = kPair});
    shapes.push_back({.tokens = 256, .variant = kWide});
  }
  return shapes;
}

std::string Name(int segments, const MatMulShape& shape) {
  const char* const forms[] = {"u", "d", "p", "w"};
  std::string name = std::to_string(segments) + "/" + forms[static_cast<int>(shape.variant)] +
                     (shape.all_segments ? "a" : "") + "/" + std::to_string(shape.tokens);
  if (shape.shares > 1) name += "s" + std::to_string(shape.shares);
  return name;
}

void Sweep(const Weight& which, WeightFormat format, bool own, const std::vector<int>& all_rows,
           CublasLt& oracle, cudaStream_t stream) {
  PackedWeight weight;
  weight.format = format;
  weight.n = which.n;
  weight.k = which.k;
  const size_t bytes = PackedWeightBytes(weight.format, which.n, which.k);
  const int copies = static_cast<int>(std::min<size_t>(24, (size_t{256} << 20) / bytes + 2));
  const DeviceArray<uint8_t> packed(bytes * copies);
  const size_t count = static_cast<size_t>(which.n) * which.k;
  const bool compare = format == WeightFormat::kBf16 && oracle.ok();
  const DeviceArray<uint16_t> raw(compare ? count * copies : 0);
  for (int i = 0; i < copies; ++i) {
    PackRandom(weight, packed.data() + i * bytes, 77 + i,
               compare ? raw.data() + i * count : nullptr);
  }
  for (const int rows : all_rows) {
    const DeviceArray<uint16_t> x(static_cast<size_t>(rows) * which.k);
    FillBf16<<<1024, 256>>>(x.data(), x.size(), 5);
    const DeviceArray<uint16_t> y(static_cast<size_t>(rows) * which.n);
    CudaOk(cudaDeviceSynchronize(), "fill");
    const int launches = rows >= 1024 ? 6 : 12;
    const auto time = [&](int segments, const MatMulShape* shape) {
      MatMulParams params;
      params.rows = rows;
      params.x = x.data();
      params.x_stride = which.k;
      params.w = weight;
      params.w.segments = segments;
      params.y = y.data();
      params.y_stride = which.n;
      params.shape = shape;
      return MicrosecondsPerLaunch(launches, 3, stream, [&](int i, cudaStream_t on) {
        params.w.data = packed.data() + i % copies * bytes;
        MatMul(params, on);
      });
    };
    const double oracle_us =
        compare && oracle.Prepare(rows, which.n, which.k)
            ? MicrosecondsPerLaunch(launches, 3, stream,
                                    [&](int i, cudaStream_t on) {
                                      oracle.Run(x.data(), raw.data() + i % copies * count,
                                                 y.data(), on);
                                    })
            : 0;
    const double moved =
        static_cast<double>(bytes) + 2.0 * rows * (static_cast<double>(which.n) + which.k);
    std::printf("%-8s rows %4d limit %6.1f cublas %6.1f own %6.1f (%d):", which.name, rows,
                LimitUs(moved, 2.0 * rows * which.n * which.k), oracle_us, time(0, nullptr),
                SegmentsOf(weight).count);
    std::vector<std::pair<double, std::string>> times;
    for (const int segments : {1, 2, 3, 4, 6, 8}) {
      if (own && segments != SegmentsOf(weight).count) continue;
      if (segments > 1 && which.k / 128 < 2 * segments) continue;
      if (segments * ((which.n + 63) / 64) > 600 && segments > 1) continue;
      for (const MatMulShape& shape : Shapes(format, rows, segments)) {
        times.emplace_back(time(segments, &shape), Name(segments, shape));
      }
    }
    std::sort(times.begin(), times.end());
    for (const auto& [us, name] : times) std::printf(" %s %.1f", name.c_str(), us);
    std::printf("\n");
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "matmul_sweep: no GPU here\n");
    return 2;
  }
  std::vector<int> rows;
  WeightFormat format = WeightFormat::kBf16;
  std::string only;
  bool own = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (i + 1 < argc && argument == "--only") {
      only = std::string(",") + argv[++i] + ",";
    } else if (argument == "--own") {
      own = true;
    } else if (i + 1 < argc && argument == "--format") {
      const std::string name = argv[++i];
      for (const auto known : {WeightFormat::kF8, WeightFormat::kF8PowerOfTwo}) {
        if (name == Name(known)) format = known;
      }
      if (name != Name(format)) {
        std::fprintf(stderr, "matmul_sweep: unknown format %s\n", name.c_str());
        return 2;
      }
    } else {
      rows.push_back(std::atoi(argv[i]));
    }
  }
  if (rows.empty()) rows = {1, 8, 32, 64, 128, 256, 512, 1024, 4096};
  CublasLt oracle;
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  const Weight weights[] = {
      {"q_a+kv_a", 1344, 2048}, {"q_b", 5120, 768},      {"v2-qkv", 3648, 2048},
      {"v2-o", 2048, 2048},     {"o_proj", 2048, 5120},  {"router", 64, 2048},
      {"dense", 20480, 2048},   {"d-down", 2048, 10240}, {"square", 8192, 8192},
      {"v3-qkv", 2112, 7168},   {"v3-o", 7168, 16384}};
  for (const Weight& weight : weights) {
    if (!only.empty() && only.find("," + std::string(weight.name) + ",") == std::string::npos) {
      continue;
    }
    Sweep(weight, format, own, rows, oracle, stream);
  }
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) { return outrider::cuda::Main(argc, argv); }
