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

namespace outrider {

namespace {

std::atomic<float> g_sink;  // keeps results alive

/// Seconds of task(0, thread) to task(count - 1, thread) on the pool, the best of `passes`.
double BestSeconds(ThreadPool& pool, int passes, int64_t count,
                   FunctionRef<float(int64_t, int)> task) {
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) {
    const double start = KernelClock(pool);
    pool.ParallelFor(count, [&](int64_t i, int thread) {
      g_sink.store(task(i, thread), std::memory_order_relaxed);
    });
    best = std::min(best, KernelClock(pool) - start);
  }
  return best;
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
  return BestSeconds(
      pool, passes, static_cast<int64_t>(bytes) / kChunk,
      [&](int64_t i, int /*thread*/) { return cpu::avx2::ReadAll(data + i * kChunk, kChunk); });
}

double FmaFlopsPerSecond(ThreadPool& pool, Isa isa) {
  OUTRIDER_CHECK(isa >= Isa::kAvx2 && isa <= DetectIsa());
  constexpr int64_t kRounds = 200000;
  const int64_t tasks = 32L * pool.size();
  const bool wide = isa >= Isa::kAvx512;
  const double seconds = BestSeconds(pool, 3, tasks, [&](int64_t i, int /*thread*/) {
    const auto seed = static_cast<float>(i);
    return wide ? cpu::avx512::RunFmaChains(kRounds, seed) : cpu::avx2::RunFmaChains(kRounds, seed);
  });
  const double flops_per_round = 2.0 * cpu::kFmaChains * (wide ? 16 : 8);
  return static_cast<double>(tasks * kRounds) * flops_per_round / seconds;
}

double TileFlopsPerSecond(ThreadPool& pool) {
  OUTRIDER_CHECK(DetectIsa() >= Isa::kAmx);
  constexpr int64_t kRounds = 200;
  Buffer data(static_cast<size_t>(cpu::amx::kLimitBytes * pool.size()));
  std::memset(data.data(), 0x3c, data.size());  // small numbers
  const int64_t tasks = 16L * pool.size();
  const double seconds = BestSeconds(pool, 3, tasks, [&](int64_t /*i*/, int thread) {
    return cpu::amx::RunTileProducts(data.data() + thread * cpu::amx::kLimitBytes, kRounds);
  });
  return static_cast<double>(tasks * kRounds) * cpu::amx::kLimitFlops / seconds;
}

}  // namespace outrider
