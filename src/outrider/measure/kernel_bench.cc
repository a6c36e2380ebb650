#include "outrider/measure/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/buffer.h"
#include "outrider/base/error.h"
#include "outrider/base/version.h"
#include "outrider/kernels/machine_limits.h"
#include "outrider/measure/kernel_loads.h"

namespace outrider {

namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kD8Heads = 16;
constexpr int kD8Layers = 8;
constexpr int32_t kLongContext = 4096;
constexpr int32_t kPromptRows = 512;
constexpr size_t kReadBytes = size_t{1} << 30;
constexpr int kRepeats = 4;

/// Measures figures one after the other and keeps them in the report. What is compared is measured
/// in turn, kRepeats times, each for about as long, and the best of each counts: the speed of a
/// shared machine changes from moment to moment.
class Bench {
 public:
  Bench(Isa isa, ThreadPool& pool, FunctionRef<void(const KernelFigure&)> found,
        KernelReport& report)
      : kernels_(GetKernels(isa)), isa_(isa), pool_(pool), found_(found), report_(report) {
    std::memset(memory_.data(), 1, memory_.size());
    report_.read_bytes_per_second = ReadBytesPerSecond();
    for (int i = 0; i < kRepeats; ++i) {
      double& fma = report_.fma_flops_per_second;
      double& dots = report_.dot_flops_per_second;
      double& tiles = report_.tile_flops_per_second;
      fma = std::max(fma, FmaFlopsPerSecond(pool_, isa));
      if (HasDots()) dots = std::max(dots, DotFlopsPerSecond(pool_));
      if (HasTiles()) tiles = std::max(tiles, TileFlopsPerSecond(pool_));
    }
  }

  void Decode(const std::string& model, DType dtype, std::vector<ProductGroup> groups,
              double target) {
    const ModelProducts products({.dtype = dtype}, std::move(groups));
    double limit = 0;
    double seconds = kNever;
    for (int i = 0; i < kRepeats; ++i) {
      limit = std::max(limit, products.ReadBytesPerSecond(pool_, 1));
      seconds = std::min(seconds, products.Seconds(kernels_, pool_, 1, 1).back());
    }
    Add(fmt::format("{} {}, 1 row: share of read bandwidth", model, DTypeName(dtype)), seconds,
        static_cast<double>(products.bytes_per_pass()) / seconds / limit, target);
  }

  void ManyRows() {
    const ModelProducts products({.dtype = DType::kBF16}, D8Products(kD8Layers, true));
    constexpr std::array<int64_t, 3> kRows = {1, 4, 8};
    std::array<double, 3> seconds = {kNever, kNever, kNever};
    // Each as often first, second and third: memory can be faster after a rest.
    constexpr size_t kRounds = 6;
    for (size_t i = 0; i < kRounds * kRows.size(); ++i) {
      const size_t r = (i + i / kRows.size()) % kRows.size();
      seconds[r] = std::min(seconds[r], products.Seconds(kernels_, pool_, kRows[r], 1).back());
    }
    const auto [one, four, eight] = seconds;
    double one_attention = kNever;
    double four_attention = kNever;
    for (int i = 0; i < kRepeats; ++i) {
      one_attention = std::min(one_attention, Absorbed(1));
      four_attention = std::min(four_attention, Absorbed(4));
    }
    Add("D8 bfloat16, 8 requests: tokens/s / (8 x 1 request)", eight, one / eight,
        IsWide() ? 0.80 : 0.45);
    Add("D8 bfloat16, 4 rows / 1 row, context 0", four, four / one, IsWide() ? 1.08 : 1.25, true);
    const double one_deep = one + kD8Layers * one_attention;
    const double four_deep = four + kD8Layers * four_attention;
    Add("D8 bfloat16, 4 rows / 1 row, context 4096", four_deep, four_deep / one_deep,
        HasTiles() ? 1.15
        : IsWide() ? 1.20
                   : 1.4,
        true);
  }

  void Prompt() {
    const ModelProducts layer({.dtype = DType::kBF16}, D8Products(1, false));
    double seconds = kNever;
    double limit = 0;
    for (int i = 0; i < kRepeats; ++i) {
      const double now = layer.Seconds(kernels_, pool_, kPromptRows, 1).back() +
                         ExpandedSeconds(kernels_, pool_, kD8Heads, kPromptRows);
      seconds = std::min(seconds, now);
      limit = std::max(limit, FlopsPerSecond(now));
    }
    const double flops =
        2 * layer.weights_per_pass() * kPromptRows + ExpandedFlops(kD8Heads, kPromptRows);
    Add(fmt::format("D8 bfloat16, a layer of a prompt of 512: share of {} peak", HasTiles() ? "AMX"
                                                                                 : HasDots()
                                                                                     ? "VDPBF16PS"
                                                                                     : "FMA"),
        seconds, flops / seconds / limit, HasTiles() ? 0.35 : 0.75);
  }

  void Attention() {
    for (const int32_t rows : {1, 4}) {
      double seconds = kNever;
      double read_limit = 0;
      double flops_limit = 0;
      for (int i = 0; i < kRepeats; ++i) {
        read_limit = std::max(read_limit, ReadBytesPerSecond());
        const double now = Absorbed(rows);
        seconds = std::min(seconds, now);
        for (int round = 0; round < 3; ++round) {  // as often as Absorbed
          flops_limit = std::max(flops_limit, FlopsPerSecond(now * kCacheLayers));
        }
      }
      const double bytes = double{kLongContext} * kAbsorbedEntry * 2;
      const double flops = 2 * kAbsorbedMacs * kLongContext * kD8Heads * rows;
      const double limit = std::max(bytes / read_limit, flops / flops_limit);
      Add(fmt::format("MLA decode, 16 heads, context 4096, {}: share of its limit",
                      rows == 1 ? "1 row" : "4 rows"),
          seconds, limit / seconds, 0.6);
    }
  }

  /// What a relaxed kernel would gain: splits cut as suits the batch and the threads, in place of
  /// those at fixed positions. What products could gain is what the shares above leave.
  void Exactness() {
    for (const int32_t rows : {1, 4}) {
      double exact = kNever;
      double relaxed = kNever;
      for (int i = 0; i < kRepeats; ++i) {
        for (const int32_t splits_per_thread : {1, 2, 4}) {
          const int32_t splits = splits_per_thread * pool_.size();
          exact = std::min(exact, Absorbed(rows));
          relaxed = std::min(relaxed, Absorbed(rows, (kLongContext + rows + splits - 1) / splits));
        }
      }
      Add(fmt::format("MLA decode, {}: exact / relaxed splits", rows == 1 ? "1 row" : "4 rows"),
          exact, exact / relaxed, 1.03, true);
    }
  }

 private:
  /// AVX-512: more arithmetic per byte, so higher targets.
  bool IsWide() const { return isa_ >= Isa::kAvx512; }
  /// VDPBF16PS.
  bool HasDots() const { return isa_ == Isa::kAvx512Bf16; }
  /// AMX.
  bool HasTiles() const { return isa_ == Isa::kAmx; }

  double Absorbed(int32_t rows, int32_t split = kPagedSplit) {
    return AbsorbedSeconds(kernels_, pool_, kD8Heads, kLongContext, rows, 1, DType::kBF16, split);
  }

  /// What memory gives now.
  double ReadBytesPerSecond() {
    return static_cast<double>(kReadBytes) / ReadSeconds(pool_, memory_.data(), memory_.size(), 2);
  }

  /// The rate of bfloat16 products, measured for `seconds`.
  double FlopsPerSecond(double seconds) const {
    if (HasTiles()) return TileFlopsPerSecond(pool_, seconds);
    if (HasDots()) return DotFlopsPerSecond(pool_, seconds);
    return FmaFlopsPerSecond(pool_, isa_, seconds);
  }

  void Add(std::string name, double seconds, double ratio, double target, bool at_most = false) {
    report_.figures.push_back({std::move(name), seconds * 1e3, ratio, target, at_most});
    found_(report_.figures.back());
  }

  const KernelTable& kernels_;
  Isa isa_;
  Buffer memory_{kReadBytes};
  ThreadPool& pool_;
  FunctionRef<void(const KernelFigure&)> found_;
  KernelReport& report_;
};

}  // namespace

KernelReport MeasureKernels(Isa isa, ThreadPool& pool,
                            FunctionRef<void(const KernelFigure&)> found) {
  if (isa < Isa::kAvx2) {
    throw InvalidArgument(
        "bench kernels: needs a processor with AVX2, and no OUTRIDER_ISA below it");
  }
  KernelReport report;
  report.kernels = GetKernels(isa).name;
  report.num_threads = pool.size();
  Bench bench(isa, pool, found, report);
  bench.Decode("D8", DType::kBF16, D8Products(kD8Layers, true), 0.90);
  bench.Decode("D8", DType::kI8, D8Products(kD8Layers, true), 0.85);
  bench.ManyRows();
  bench.Decode("M8", DType::kBF16, M8Products(), 0.88);
  bench.Decode("M8", DType::kI8, M8Products(), 0.80);
  bench.Prompt();
  bench.Attention();
  bench.Exactness();
  return report;
}

std::string KernelTableText(const KernelReport& report) {
  std::string out = fmt::format(
      "{} kernels, {} threads, {}\n"
      "limits in this run: {:.1f} GB/s read from memory, {:.0f} GFLOP/s float32 FMA{}{}\n\n"
      "                                                              ms   ratio  target\n",
      report.kernels, report.num_threads, report.cpu, report.read_bytes_per_second * 1e-9,
      report.fma_flops_per_second * 1e-9,
      report.dot_flops_per_second > 0
          ? fmt::format(", {:.0f} GFLOP/s VDPBF16PS", report.dot_flops_per_second * 1e-9)
          : "",
      report.tile_flops_per_second > 0 ? fmt::format(", {:.0f} GFLOP/s AMX bfloat16 from L2",
                                                     report.tile_flops_per_second * 1e-9)
                                       : "");
  for (const KernelFigure& figure : report.figures) {
    out += fmt::format(
        "  {:<55} {:>8.2f} {:>6.2f}  {} {:.2f}  {}\n", figure.name, figure.milliseconds,
        figure.ratio, figure.at_most ? "<=" : ">=", figure.target, figure.Met() ? "met" : "missed");
  }
  return out;
}

std::string KernelJson(const KernelReport& report) {
  Json object = {{"command", "kernels"},
                 {"version", kVersion},
                 {"kernels", report.kernels},
                 {"cpu", report.cpu},
                 {"num_threads", report.num_threads},
                 {"read_bytes_per_second", report.read_bytes_per_second},
                 {"fma_flops_per_second", report.fma_flops_per_second},
                 {"dot_flops_per_second", report.dot_flops_per_second},
                 {"tile_flops_per_second", report.tile_flops_per_second},
                 {"figures", Json::array()}};
  for (const KernelFigure& figure : report.figures) {
    object["figures"].push_back(Json::object({{"name", figure.name},
                                              {"milliseconds", figure.milliseconds},
                                              {"ratio", figure.ratio},
                                              {"target", figure.target},
                                              {"at_most", figure.at_most},
                                              {"met", figure.Met()}}));
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace outrider
