// What exchanges among the ranks of a model add to the products beside them. Microseconds on rank
// 0's GPU, medians:
//   a hop       a recorded product of 32 rows whose 7168 columns are brought together, and the same
//               product of a rank's own columns alone
//   a prompt    16,384 rows by o_proj of GLM-4.7-Flash: rows of attention are brought together
//               before the product and its columns after it, at once or in chunks
//   chunks      GB/s that a rank gets of the rows of a layer, in one chunk or eight, with nothing
//               beside them
//
//   rank_overlap_bench [--ranks N]
//
// Rank i is on GPU i modulo those that there are; ranks that share one tell nothing about speed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/peer_communicator.h"
#include "outrider/ops/cuda/peer_rows.h"
#include "outrider/ops/replayer.h"

namespace outrider::cuda {
namespace {

constexpr int kRuns = 15;

/// How rows travel.
struct Way {
  const char* name;
  int64_t chunks;  // where their number is asked for
  ChunkOptions options;
};
const std::array kWays = {
    Way{"at once", 1, {.least_bytes = std::numeric_limits<int64_t>::max()}},
    Way{"in chunks, copy engines", RowChunks::kMost, {.carrier = RowCarrier::kCopyEngines}},
    Way{"in chunks, kernels", RowChunks::kMost, {.carrier = RowCarrier::kKernels}},
};

/// A weight [rows, cols] of bf16, of which a rank has a part of the rows.
class BenchWeight {
 public:
  BenchWeight(const Context& context, const CudaOps& ops, int64_t rows, int64_t cols, Cut input) {
    packed_.n = static_cast<int>(OwnShare(context, Cut::kRows, rows).count);
    packed_.k = static_cast<int>(cols);
    PackedWeight whole = packed_;
    whole.n = static_cast<int>(rows);
    packed_.segments = SegmentsOf(whole).count;
    memory_ = DeviceMemory(PackedWeightBytes(packed_.format, packed_.n, packed_.k), "a weight");
    CheckCuda(cudaMemsetAsync(memory_.data(), 0x3C, memory_.bytes(), ops.stream()), "a weight");
    packed_.data = memory_.data();
    shared_ = {.rows = rows, .cols = cols, .packed = &packed_, .cut = {Cut::kRows, input}};
    own_ = {.rows = packed_.n, .cols = cols, .packed = &packed_};
  }
  BenchWeight(const BenchWeight&) = delete;
  BenchWeight& operator=(const BenchWeight&) = delete;

  /// Whose product exchanges rows; whose product does not.
  const Weight& shared() const { return shared_; }
  const Weight& own() const { return own_; }

 private:
  PackedWeight packed_;
  DeviceMemory memory_;
  Weight shared_;
  Weight own_;
};

/// Microseconds of one of the `count` that run() launches, which all ranks begin together.
double Time(const Context& context, const CudaOps& ops, int count,
            const std::function<void()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CheckCuda(cudaEventCreate(&begin), "an event");
  CheckCuda(cudaEventCreate(&end), "an event");
  std::vector<double> times;
  for (int i = 0; i < kRuns + 3; ++i) {
    ops.Synchronize();
    static_cast<DeviceCommunicator&>(*context.ranks).Meet();
    CheckCuda(cudaEventRecord(begin, ops.stream()), "an event");
    run();
    CheckCuda(cudaEventRecord(end, ops.stream()), "an event");
    ops.Synchronize();
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
    if (i >= 3) times.push_back(1e3 * milliseconds / count);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

Tensor ZeroRows(const Context& context, const CudaOps& ops, DType dtype, int64_t rows,
                int64_t cols) {
  const Tensor x = TakeRows(context, dtype, rows, cols);
  ops.SetZero(context, x);
  return x;
}

Tensor OwnColumns(const Context& context, const Tensor& x, Cut cut) {
  const Share own = OwnShare(context, cut, x.cols);
  return x.Columns(own.first, own.count);
}

struct Times {
  double alone = 0;  // the product
  double both = 0;   // with what travels
};

Times TimeHop(const Context& context, const CudaOps& ops) {
  constexpr int kHops = 64;
  const Scratch::Frame frame(context.arena);
  const BenchWeight w(context, ops, 7168, 7168, Cut::kNone);
  const Tensor x = ZeroRows(context, ops, DType::kBF16, 32, 7168);
  const Tensor y = ZeroRows(context, ops, DType::kF32, 32, 7168);
  const Tensor own = OwnColumns(context, y, Cut::kRows);
  const auto replayer = ops.MakeReplayer(context);
  Times times;
  for (const bool shared : {false, true}) {
    RunKey key;
    key.Add(shared ? 1 : 0);
    const Product product = {
        .x = x, .w = shared ? &w.shared() : &w.own(), .y = shared ? y : own, .accumulate = true};
    (shared ? times.both : times.alone) = Time(context, ops, kHops, [&] {
      replayer->Run(context, key, {}, [&](const Context&) {
        for (int i = 0; i < kHops; ++i) ops.Multiply(context, std::array{product});
      });
    });
  }
  return times;
}

Times TimePrompt(const Context& context, const CudaOps& ops) {
  constexpr int64_t kRows = 16384, kHeads = 20 * 256, kHidden = 2048;
  constexpr int kProducts = 8;
  const Scratch::Frame frame(context.arena);
  // As by heads, which not every number of ranks divides.
  const BenchWeight w(context, ops, kHidden, kHeads, Cut::kInner);
  const Tensor x = ZeroRows(context, ops, DType::kBF16, kRows, kHeads);
  const Tensor mine =
      ZeroRows(context, ops, DType::kBF16, kRows, OwnShare(context, Cut::kInner, kHeads).count);
  const Tensor y = ZeroRows(context, ops, DType::kF32, kRows, kHidden);
  const std::array alone = {
      Product{.x = x, .w = &w.own(), .y = OwnColumns(context, y, Cut::kRows), .accumulate = true}};
  const std::array both = {Product{.x = mine, .w = &w.shared(), .y = y, .accumulate = true}};
  const auto time = [&](const std::array<Product, 1>& product) {
    return Time(context, ops, kProducts, [&] {
      for (int i = 0; i < kProducts; ++i) ops.Multiply(context, product);
    });
  };
  const double product = time(alone);
  return {product, time(both)};
}

/// GB/s of rows that travel in so many chunks with nothing beside them.
double ChunkSpeed(const Context& context, const CudaOps& ops, int64_t most, DType dtype,
                  int64_t rows, int64_t cols) {
  constexpr int kGathers = 8;
  const Scratch::Frame frame(context.arena);
  const Tensor all = ZeroRows(context, ops, dtype, rows, cols);
  const Tensor mine = OwnColumns(context, all, Cut::kInner);
  const RowChunks chunks(rows, 1, most);
  ChunkedGathers& gathers = ChunkedGathersOf(context);
  const double microseconds = Time(context, ops, kGathers, [&] {
    for (int i = 0; i < kGathers; ++i) {
      gathers.Give(0);
      BeginGather(context, std::array{SharedTensor{mine, all, Cut::kInner}}, chunks);
      gathers.Await(chunks.count() - 1);
      gathers.End();
    }
  });
  const auto bytes =
      static_cast<double>(rows * (cols - mine.cols)) * static_cast<double>(DTypeSize(dtype));
  return bytes / microseconds / 1e3;
}

struct Figures {
  Times hop;
  Times prompt;
  double attention = 0, inner = 0, residual = 0;  // GB/s
};

Figures Measure(std::span<const CudaOps* const> ops, const Way& way) {
  auto communicators = MakePeerCommunicators(ops, /*seconds=*/10, way.options);
  Figures first;
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ops.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const CudaOps& own_ops = *ops[rank];
      own_ops.UseOnThisThread();
      const std::unique_ptr<Arena> arena = own_ops.MakeArena();
      const Context context({own_ops, nullptr, communicators[rank].get()}, *arena, DType::kBF16);
      Figures own;
      own.hop = TimeHop(context, own_ops);
      own.prompt = TimePrompt(context, own_ops);
      const auto speed = [&](DType dtype, int64_t rows, int64_t cols) {
        return ChunkSpeed(context, own_ops, way.chunks, dtype, rows, cols);
      };
      own.attention = speed(DType::kBF16, 16384, 20 * 256);
      own.inner = speed(DType::kBF16, 16384 * 5, 1536);
      own.residual = speed(DType::kF32, 16384, 2048);
      own_ops.Synchronize();
      if (rank == 0) first = own;
    });
  }
  threads.clear();
  return first;
}

void MeasureAll(int32_t ranks) {
  int gpus = 0;
  CheckCuda(cudaGetDeviceCount(&gpus), "the number of GPUs");
  const int used = std::min(gpus, ranks);
  std::vector<std::unique_ptr<CudaOps>> ops;
  std::vector<const CudaOps*> pointers;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    ops.push_back(std::make_unique<CudaOps>(rank % used, ranks, (ranks + used - 1) / used));
    pointers.push_back(ops.back().get());
  }
  std::printf("%d ranks on %d GPUs\n", ranks, used);
  std::printf(
      "| rows travel | hop: product, us | with it | exposed | prompt: product, us | with gathers "
      "| exposed | GB/s: 16384 x 5120 bf16 | 81920 x 1536 bf16 | 16384 x 2048 f32 |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Way& way : kWays) {
    const Figures f = Measure(pointers, way);
    std::printf("| %s | %.2f | %.2f | %.2f | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", way.name,
                f.hop.alone, f.hop.both, f.hop.both - f.hop.alone, f.prompt.alone, f.prompt.both,
                f.prompt.both - f.prompt.alone, f.attention, f.inner, f.residual);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) {
  int ranks = 2;
  const bool asks = argc == 3 && std::strcmp(argv[1], "--ranks") == 0;
  if (asks) ranks = std::atoi(argv[2]);
  if ((argc != 1 && !asks) || ranks < 2 || ranks > 8) {
    std::fprintf(stderr, "usage: rank_overlap_bench [--ranks N]\n");
    return 2;
  }
  // Before anything asks for a GPU: recorded runs of ranks that share one wait for each other
  // there.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  try {
    outrider::cuda::MeasureAll(ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank_overlap_bench: %s\n", error.what());
    return 1;
  }
}
