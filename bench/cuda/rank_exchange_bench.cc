// What an exchange among the ranks of a model costs: every rank gathers the columns of float32 rows
// that the others have, many times one after another. Prints microseconds of one exchange: of a
// recorded run, by events on rank 0's GPU, and launched one by one, by the host's clock.
//
//   rank_exchange_bench [--ranks N] [--nccl] [--columns N]
//
// Rank i is on GPU i modulo those that there are; ranks that share one tell nothing about speed.
// --nccl: over NCCL, else over the GPUs' own memory. --columns: of a row, 7168 without it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/nccl_communicator.h"
#include "outrider/ops/cuda/peer_communicator.h"
#include "outrider/ops/cuda/peer_rows.h"
#include "outrider/ops/replayer.h"

namespace outrider::cuda {
namespace {

constexpr int kExchanges = 64;  // of a run
constexpr int kRuns = 20;

struct Arguments {
  int32_t ranks = 2;
  bool nccl = false;
  int64_t columns = 7168;
};

struct Microseconds {
  double recorded = 0;
  double launched = 0;
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

/// Of this rank's runs, each of which all ranks begin together.
Microseconds TimeRows(const Context& context, const CudaOps& ops, int64_t rows, int64_t columns) {
  auto& ranks = static_cast<DeviceCommunicator&>(*context.ranks);
  const Scratch::Frame frame(context.arena);
  const Tensor all(context.arena.Take<float>(rows * columns), rows, columns);
  ops.SetZero(context, all);
  const auto exchange = [&] {
    for (int i = 0; i < kExchanges; ++i) GatherInPlace(context, all, Cut::kRows);
  };
  const auto replayer = ops.MakeReplayer(context);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CheckCuda(cudaEventCreate(&begin), "an event");
  CheckCuda(cudaEventCreate(&end), "an event");
  std::vector<double> recorded;
  std::vector<double> launched;
  for (int run = 0; run < kRuns + 2; ++run) {
    ops.Synchronize();
    ranks.Meet();
    CheckCuda(cudaEventRecord(begin, ops.stream()), "an event");
    replayer->Run(context, RunKey(), {}, [&](const Context&) { exchange(); });
    CheckCuda(cudaEventRecord(end, ops.stream()), "an event");
    ops.Synchronize();
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
    if (run >= 2) recorded.push_back(1e3 * milliseconds / kExchanges);
  }
  for (int run = 0; run < kRuns; ++run) {
    ranks.Meet();
    const auto start = std::chrono::steady_clock::now();
    exchange();
    ops.Synchronize();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    launched.push_back(time.count() / kExchanges);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return {Median(recorded), Median(launched)};
}

void Measure(const Arguments& arguments) {
  int gpus = 0;
  CheckCuda(cudaGetDeviceCount(&gpus), "the number of GPUs");
  const int used = std::min(gpus, arguments.ranks);
  std::vector<std::unique_ptr<CudaOps>> ops;
  std::vector<const CudaOps*> pointers;
  for (int32_t rank = 0; rank < arguments.ranks; ++rank) {
    ops.push_back(std::make_unique<CudaOps>(rank % used, arguments.ranks,
                                            (arguments.ranks + used - 1) / used));
    pointers.push_back(ops.back().get());
  }
  auto communicators = arguments.nccl ? MakeNcclCommunicators(pointers, /*seconds=*/10)
                                      : MakePeerCommunicators(pointers, /*seconds=*/10);
  std::printf("%d ranks on %d GPUs, rows of %lld float32, over %s\n", arguments.ranks, used,
              static_cast<long long>(arguments.columns), arguments.nccl ? "NCCL" : "peer memory");
  std::printf("| rows | recorded, us | launched, us |\n|---|---|---|\n");
  for (const int64_t rows : {1, 8, 32, 128, 512}) {
    Microseconds first;
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < ops.size(); ++rank) {
      threads.emplace_back([&, rank] {
        ops[rank]->UseOnThisThread();
        const std::unique_ptr<Arena> arena = ops[rank]->MakeArena();
        const Context context({*ops[rank], nullptr, communicators[rank].get()}, *arena,
                              DType::kBF16);
        const Microseconds own = TimeRows(context, *ops[rank], rows, arguments.columns);
        if (rank == 0) first = own;
      });
    }
    threads.clear();
    std::printf("| %lld | %.2f | %.2f |\n", static_cast<long long>(rows), first.recorded,
                first.launched);
    std::fflush(stdout);
  }
}

[[noreturn]] void ExitWithUsage() {
  std::fprintf(stderr, "usage: rank_exchange_bench [--ranks N] [--nccl] [--columns N]\n");
  std::exit(2);
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--nccl") == 0) {
      arguments.nccl = true;
    } else if (std::strcmp(argv[i], "--ranks") == 0 && has_value) {
      arguments.ranks = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--columns") == 0 && has_value) {
      arguments.columns = std::atoll(argv[++i]);
    } else {
      ExitWithUsage();
    }
  }
  if (arguments.ranks < 2 || arguments.ranks > 8 || arguments.columns < 128) ExitWithUsage();
  return arguments;
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) {
  const auto arguments = outrider::cuda::Parse(argc, argv);
  // Before anything asks for a GPU: recorded runs of ranks that share one wait for each other
  // there.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0);
  try {
    outrider::cuda::Measure(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank_exchange_bench: %s\n", error.what());
    return 1;
  }
}
