#include <algorithm>

#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/exchange_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kChunk = 16;       // bytes that one thread moves at a time
constexpr int kPollsPerLook = 1024;  // at the clock and at what the host says
constexpr size_t kMostStores = kMostExchangeStores;
constexpr size_t kMostLoads = kMostExchangeLoads;

/// A copy in units that all of its addresses and widths are multiples of.
struct UnitCopy {
  ColumnCopy copy;
  int unit;
};

struct Exchange {
  int rank;
  int ranks;
  ExchangeCounters* counters[kMostExchangeRanks];
  ExchangeState* state;
  uint64_t patience_ns;
  int64_t turn_bytes;
  int num_stores;
  int num_own;
  int num_loads;
  UnitCopy stores[kMostStores];
  UnitCopy own[kMostStores];
  UnitCopy loads[kMostLoads];
};

__device__ __forceinline__ uint64_t Now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

template <typename Unit>
__device__ __forceinline__ void CopyChunk(const std::byte* from, std::byte* to, int bytes) {
  // What another GPU has stored meanwhile is in no cache of this one's multiprocessors.
  for (int i = 0; i < bytes / static_cast<int>(sizeof(Unit)); ++i) {
    reinterpret_cast<Unit*>(to)[i] = __ldcg(reinterpret_cast<const Unit*>(from) + i);
  }
}

/// This block's chunks of a copy: which they are depends on rows and width alone, so the block of
/// this number of another GPU reads what this one has written.
__device__ __forceinline__ void CopyShare(const UnitCopy& c, int64_t from_offset,
                                          int64_t to_offset) {
  const ColumnCopy& copy = c.copy;
  const int64_t chunks = (copy.width + kChunk - 1) / kChunk;
  const int64_t all = chunks * copy.rows;
  const int64_t step = int64_t{kExchangeBlocks} * kThreads;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const int64_t row = i / chunks;
    const int64_t column = (i - row * chunks) * kChunk;
    const std::byte* from = copy.from + from_offset + row * copy.from_stride + column;
    std::byte* to = copy.to + to_offset + row * copy.to_stride + column;
    const int bytes = static_cast<int>(min(kChunk, copy.width - column));
    if (c.unit == 16) {
      CopyChunk<uint4>(from, to, bytes);
    } else if (c.unit == 4) {
      CopyChunk<unsigned>(from, to, bytes);
    } else if (c.unit == 2) {
      CopyChunk<unsigned short>(from, to, bytes);
    } else {
      CopyChunk<unsigned char>(from, to, bytes);
    }
  }
}

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

/// Waits until this block's number of rank `from` has stored its columns in call `call`.
__device__ void WaitForColumns(const Exchange& e, int from, uint32_t call) {
  const uint32_t* stored = &e.counters[e.rank]->stored[from][blockIdx.x];
  uint64_t begin = 0;
  for (int polls = 1; static_cast<int32_t>(LoadAcquire(stored) - call) < 0; ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    volatile ExchangeState* state = e.state;
    if (state->ended != 0) return;
    const uint64_t now = Now();
    if (begin == 0) begin = now;
    if (now - begin < e.patience_ns) continue;
    state->late = static_cast<uint32_t>(from) + 1;
    __threadfence_system();
    state->ended = 1;
    return;
  }
}

__global__ void __launch_bounds__(kThreads) ExchangeRowsKernel(const __grid_constant__ Exchange e) {
  __shared__ uint32_t shared_call;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    uint32_t& calls = e.counters[e.rank]->calls[blockIdx.x];
    shared_call = calls + 1;
    calls = shared_call;
  }
  __syncthreads();
  const uint32_t call = shared_call;
  // The others have read what call n - 2 left here before they told of call n - 1, which this block
  // has waited for.
  const int64_t turn = (call % 2) * e.turn_bytes;
  for (int i = 0; i < e.num_stores; ++i) CopyShare(e.stores[i], 0, turn);
  __syncthreads();
  const bool waits = thread < e.ranks && thread != e.rank;
  if (waits) {
    __threadfence_system();
    uint32_t* stored = &e.counters[thread]->stored[e.rank][blockIdx.x];
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(stored), "r"(call) : "memory");
  }
  for (int i = 0; i < e.num_own; ++i) CopyShare(e.own[i], 0, 0);
  if (waits) WaitForColumns(e, thread, call);
  __syncthreads();
  for (int i = 0; i < e.num_loads; ++i) CopyShare(e.loads[i], turn, 0);
}

/// `odd`: what else the unit is to divide.
int UnitOf(const ColumnCopy& copy, int64_t odd) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(copy.from) |
                        reinterpret_cast<uintptr_t>(copy.to) |
                        static_cast<uint64_t>(copy.from_stride | copy.to_stride | copy.width | odd);
  for (const int unit : {16, 4, 2}) {
    if (bits % static_cast<uint64_t>(unit) == 0) return unit;
  }
  return 1;
}

int Take(std::span<const ColumnCopy> copies, size_t room, int64_t turn_bytes, UnitCopy* taken) {
  if (copies.size() > room) {
    RefuseArgument("ExchangeRows: ", copies.size(), " copies: at most ", room, " are possible");
  }
  for (size_t i = 0; i < copies.size(); ++i) taken[i] = {copies[i], UnitOf(copies[i], turn_bytes)};
  return static_cast<int>(copies.size());
}

}  // namespace

cudaError_t ExchangeRows(const ExchangeParams& params, cudaStream_t stream) {
  if (params.ranks < 1 || static_cast<size_t>(params.ranks) > kMostExchangeRanks) {
    RefuseArgument("ExchangeRows: ", params.ranks, " ranks: at most ", kMostExchangeRanks,
                   " are possible");
  }
  Exchange e = {};
  e.rank = params.rank;
  e.ranks = params.ranks;
  std::copy(std::begin(params.counters), std::end(params.counters), e.counters);
  e.state = params.state;
  e.patience_ns = params.patience_ns;
  e.turn_bytes = params.turn_bytes;
  e.num_stores = Take(params.stores, kMostStores, params.turn_bytes, e.stores);
  e.num_own = Take(params.own, kMostStores, 0, e.own);
  e.num_loads = Take(params.loads, kMostLoads, params.turn_bytes, e.loads);
  ExchangeRowsKernel<<<kExchangeBlocks, kThreads, 0, stream>>>(e);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
