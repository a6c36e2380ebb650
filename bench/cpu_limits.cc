#include "bench/cpu_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

namespace outrider::bench {

namespace {

/// With one thread, that thread's own time, so that others on the machine count for less.
double Now(const ThreadPool& pool) {
  timespec t;
  clock_gettime(pool.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::atomic<float> g_sink;  // keeps results alive

float SumOf(__m256 v) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  return lanes[0] + lanes[7];
}

}  // namespace

double ReadSeconds(ThreadPool& pool, const std::byte* data, size_t bytes, int passes) {
  const int64_t chunk = 1 << 18;
  const int64_t chunks = static_cast<int64_t>(bytes) / chunk;
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) {
    const double start = Now(pool);
    pool.ParallelFor(chunks, [&](int64_t i, int /*thread*/) {
      const auto* p = reinterpret_cast<const float*>(data + i * chunk);
      __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                        _mm256_setzero_ps()};
      for (int64_t j = 0; j < chunk / 4; j += 32) {
        for (int s = 0; s < 4; ++s) {
          sums[s] = _mm256_xor_ps(sums[s], _mm256_load_ps(p + j + s * 8));
        }
        _mm_prefetch(reinterpret_cast<const char*>(p + j) + 2048, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(p + j) + 2112, _MM_HINT_T0);
      }
      g_sink.store(
          SumOf(_mm256_xor_ps(_mm256_xor_ps(sums[0], sums[1]), _mm256_xor_ps(sums[2], sums[3]))),
          std::memory_order_relaxed);
    });
    best = std::min(best, Now(pool) - start);
  }
  return best;
}

double FmaGflops(ThreadPool& pool) {
  constexpr int64_t kSteps = 200000;
  constexpr int kChains = 12;
  const int64_t tasks = 32L * pool.size();
  double best = 1e30;
  for (int pass = 0; pass < 3; ++pass) {
    const double start = Now(pool);
    pool.ParallelFor(tasks, [&](int64_t i, int /*thread*/) {
      __m256 acc[kChains];
      for (int c = 0; c < kChains; ++c) acc[c] = _mm256_set1_ps(static_cast<float>(c + i));
      const __m256 a = _mm256_set1_ps(0.999f);
      const __m256 b = _mm256_set1_ps(0.001f);
      for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
        for (__m256& chain : acc) chain = _mm256_fmadd_ps(chain, a, b);
      }
      __m256 sum = acc[0];
      for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, acc[c]);
      g_sink.store(SumOf(sum), std::memory_order_relaxed);
    });
    best = std::min(best, Now(pool) - start);
  }
  return static_cast<double>(tasks * kSteps) * kChains * 16 / best * 1e-9;
}

}  // namespace outrider::bench
