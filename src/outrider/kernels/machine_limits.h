// What this machine can do at most, measured now: what the figures of kernels are divided by.
#pragma once

#include <cstddef>

#include "outrider/base/cpu_features.h"
#include "outrider/base/thread_pool.h"

namespace outrider {

/// Seconds on the clock that kernels are timed by. With one thread it is that thread's own time, so
/// that others on the machine count for less.
double KernelClock(const ThreadPool& pool);

/// Seconds for reading all `bytes` of data once, on all threads of the pool: the best of `passes`.
/// Needs AVX2.
double ReadSeconds(ThreadPool& pool, const std::byte* data, size_t bytes, int passes);

/// Float32 FMA rate of all threads together, with every operand in registers of this set, in
/// FLOP/s: the mean over at least `seconds`. isa: kAvx2 or higher, one that this machine has.
double FmaFlopsPerSecond(ThreadPool& pool, Isa isa, double seconds = 0.03);

/// Rate of VDPBF16PS of all threads together, with every operand in registers, in FLOP/s: the mean
/// over at least `seconds`. Needs AVX-512 BF16.
double DotFlopsPerSecond(ThreadPool& pool, double seconds = 0.03);

/// Rate of AMX products of bfloat16 of all threads together, with both operands in each core's L2,
/// in FLOP/s: the mean over at least `seconds`. Needs AMX.
double TileFlopsPerSecond(ThreadPool& pool, double seconds = 0.03);

}  // namespace outrider
