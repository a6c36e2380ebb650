#include "outrider/kernels/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "outrider/base/buffer.h"
#include "outrider/base/error.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512_bf16/leaves.h"

namespace outrider {

namespace {

std::atomic<float> g_sink;  // keeps results alive

/// Seconds of task(0, thread) to task(count - 1, thread) on the pool.
double Seconds(ThreadPool& pool, int64_t count, FunctionRef<float(int64_t, int)> task) {
  const double start = KernelClock(pool);
  pool.ParallelFor(count, [&](int64_t i, int thread) {
    g_sink.store(task(i, thread), std::memory_order_relaxed);
  });
  return KernelClock(pool) - start;
}

/// Operations per second, over at least `seconds`, of tasks that do `per_task` operations each.
double MeanRate(ThreadPool& pool, double seconds, double per_task,
                FunctionRef<float(int64_t, int)> task) {
  const int64_t tasks = 16L * pool.size();
  double spent = 0;
  double done = 0;
  do {
    spent += Seconds(pool, tasks, task);
    done += static_cast<double>(tasks) * per_task;
  } while (spent < seconds);
  return done / spent;
}

}  // namespace

double KernelClock(const ThreadPool& pool) {
  timespec t{};
  clock_gettime(pool.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double ReadSeconds(ThreadPool& pool, const std::byte* data, size_t bytes, int passes) {
  OUTRIDER_CHECK(DetectIsa() >= Isa::kAvx2);
  constexpr int64_t kChunk = 1 << 18;
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) {
    best = std::min(
        best, Seconds(pool, static_cast<int64_t>(bytes) / kChunk, [&](int64_t i, int /*thread*/) {
          return cpu::avx2::ReadAll(data + i * kChunk, kChunk);
        }));
  }
  return best;
}

double FmaFlopsPerSecond(ThreadPool& pool, Isa isa, double seconds) {
  OUTRIDER_CHECK(isa >= Isa::kAvx2 && isa <= DetectIsa());
  constexpr int64_t kRounds = 200000;
  const bool wide = isa >= Isa::kAvx512;
  const double flops = static_cast<double>(kRounds) * 2.0 * cpu::kFmaChains * (wide ? 16 : 8);
  return MeanRate(pool, seconds, flops, [&](int64_t i, int /*thread*/) {
    const auto seed = static_cast<float>(i);
    return wide ? cpu::avx512::RunFmaChains(kRounds, seed) : cpu::avx2::RunFmaChains(kRounds, seed);
  });
}

double DotFlopsPerSecond(ThreadPool& pool, double seconds) {
  OUTRIDER_CHECK(DetectIsa() >= Isa::kAvx512Bf16);
  constexpr int64_t kRounds = 200000;
  constexpr double kFlops = kRounds * 2.0 * cpu::kFmaChains * 32;
  return MeanRate(pool, seconds, kFlops, [&](int64_t i, int /*thread*/) {
    return cpu::avx512_bf16::RunDotChains(kRounds, static_cast<float>(i));
  });
}

double TileFlopsPerSecond(ThreadPool& pool, double seconds) {
  OUTRIDER_CHECK(DetectIsa() >= Isa::kAmx);
  constexpr int64_t kRounds = 200;
  Buffer data(static_cast<size_t>(cpu::amx::kLimitBytes * pool.size()));
  std::memset(data.data(), 0x3c, data.size());  // small numbers
  return MeanRate(pool, seconds, kRounds * cpu::amx::kLimitFlops, [&](int64_t /*i*/, int thread) {
    return cpu::amx::RunTileProducts(data.data() + thread * cpu::amx::kLimitBytes, kRounds);
  });
}

}  // namespace outrider
