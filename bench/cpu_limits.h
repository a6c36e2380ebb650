// What this machine can do at most: the figures that the CPU benchmarks are divided by. Needs AVX2.
#pragma once

#include <cstddef>

#include "outrider/base/thread_pool.h"

namespace outrider::bench {

/// Reads all `bytes` of data once on all threads of the pool; returns seconds, the best of
/// `passes`.
double ReadSeconds(ThreadPool& pool, const std::byte* data, size_t bytes, int passes);

/// Float32 FMA rate of all threads together with every operand in registers, in GFLOP/s.
double FmaGflops(ThreadPool& pool);

}  // namespace outrider::bench
