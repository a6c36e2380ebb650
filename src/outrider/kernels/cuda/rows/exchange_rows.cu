#include <algorithm>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/exchange_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kPostThreads = 512;
constexpr int kFlagThreads = 256;
constexpr int kPostChunk = 16;       // bytes that one thread moves at a time
constexpr int kFlagChunk = 8;        // that have one flag
constexpr int kBatch = 4;            // chunks of a thread that are on their way together
constexpr int kPollsPerLook = 1024;  // at the clock and at what the host says
constexpr size_t kMostStores = kMostExchangeStores;
constexpr size_t kMostLoads = kMostExchangeLoads;

/// A copy in units that all of its addresses and widths are multiples of, and where what it reads
/// or writes lies in a post.
struct UnitCopy {
  ColumnCopy copy;
  int unit;
  int rank;  // whose post it is
  int64_t at;
};

/// The grid is [turns, blocks]: in each turn a rank has another one as its peer, which has it, too,
/// so that what comes from several ranks is waited for and moved side by side.
struct Exchange {
  int rank;
  int ranks;
  ExchangeCounters* counters[kMostExchangeRanks];
  ExchangeState* state;
  uint64_t patience_ns;
  bool shares_gpu;
  int64_t post_bytes;
  std::byte* inboxes[kMostExchangeRanks];
  int64_t inbox_bytes;
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

/// Tells a thread that polls when nobody waits any more.
class Patience {
 public:
  /// After a poll in vain for what rank `from` stores.
  __device__ bool Ends(const Exchange& e, int from) {
    if (++polls_ % kPollsPerLook != 0) return false;
    volatile ExchangeState* state = e.state;
    if (state->ended != 0) return true;
    const uint64_t now = Now();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ < e.patience_ns) return false;
    state->late = static_cast<uint32_t>(from) + 1;
    __threadfence_system();
    state->ended = 1;
    return true;
  }

 private:
  int polls_ = 0;
  uint64_t begin_ = 0;
};

template <typename Unit>
__device__ __forceinline__ void CopyUnits(const std::byte* from, std::byte* to, int bytes) {
  // What another GPU has stored meanwhile is in no cache of this one's multiprocessors.
  for (int i = 0; i < bytes / static_cast<int>(sizeof(Unit)); ++i) {
    reinterpret_cast<Unit*>(to)[i] = __ldcg(reinterpret_cast<const Unit*>(from) + i);
  }
}
__device__ __forceinline__ void CopyOdd(const std::byte* from, std::byte* to, int bytes, int unit) {
  if (unit == 8) {
    CopyUnits<uint2>(from, to, bytes);
  } else if (unit == 4) {
    CopyUnits<unsigned>(from, to, bytes);
  } else if (unit == 2) {
    CopyUnits<unsigned short>(from, to, bytes);
  } else {
    CopyUnits<unsigned char>(from, to, bytes);
  }
}

/// The chunks of a copy, row after row: which are a thread's depends on rows, width and the number
/// of blocks alone, so the block of this number of another GPU reads what this one has written.
template <int kChunk>
class Chunks {
 public:
  __device__ explicit Chunks(const ColumnCopy& copy)
      : of_row_(static_cast<uint32_t>((copy.width + kChunk - 1) / kChunk)),
        all_(of_row_ * static_cast<uint32_t>(copy.rows)),
        width_(static_cast<int>(copy.width)) {}

  __device__ uint32_t first() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  __device__ uint32_t step() const { return gridDim.x * blockDim.x; }
  __device__ uint32_t all() const { return all_; }
  __device__ int64_t RowOf(uint32_t i) const { return i / of_row_; }
  __device__ int ColumnOf(uint32_t i) const { return static_cast<int>(i % of_row_) * kChunk; }
  __device__ int BytesOf(uint32_t i) const { return min(kChunk, width_ - ColumnOf(i)); }

 private:
  uint32_t of_row_;
  uint32_t all_;
  int width_;
};

/// This thread's chunks of a copy.
__device__ __forceinline__ void CopyShare(const UnitCopy& c, int64_t from_offset,
                                          int64_t to_offset) {
  const Chunks<kPostChunk> chunks(c.copy);
  const std::byte* const from = c.copy.from + from_offset;
  std::byte* const to = c.copy.to + to_offset;
  for (uint32_t i = chunks.first(); i < chunks.all(); i += kBatch * chunks.step()) {
    uint4 batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t chunk = i + b * chunks.step();
      if (chunk >= chunks.all() || c.unit != kPostChunk) continue;
      batch[b] = __ldcg(reinterpret_cast<const uint4*>(
          from + chunks.RowOf(chunk) * c.copy.from_stride + chunks.ColumnOf(chunk)));
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t chunk = i + b * chunks.step();
      if (chunk >= chunks.all()) continue;
      const int64_t row = chunks.RowOf(chunk);
      const int column = chunks.ColumnOf(chunk);
      std::byte* const at = to + row * c.copy.to_stride + column;
      if (c.unit == kPostChunk) {
        *reinterpret_cast<uint4*>(at) = batch[b];
      } else {
        CopyOdd(from + row * c.copy.from_stride + column, at, chunks.BytesOf(chunk), c.unit);
      }
    }
  }
}

/// Whether peers differ in bits: else some turns leave a rank without one.
__host__ __device__ constexpr bool IsPaired(int ranks) {
  return ranks > 1 && (ranks & (ranks - 1)) == 0;
}
/// Turns in which every rank has each other one as its peer once.
constexpr int TurnsOf(int ranks) { return IsPaired(ranks) ? ranks - 1 : ranks; }
/// This block's peer; the rank itself: it has none in this turn.
__device__ __forceinline__ int PeerOf(const Exchange& e) {
  const int turn = static_cast<int>(blockIdx.y);
  return IsPaired(e.ranks) ? e.rank ^ (turn + 1) : (turn + e.ranks - e.rank) % e.ranks;
}

/// The number of the call that runs.
__device__ __forceinline__ uint64_t BeginCall(const Exchange& e) {
  WaitForPriorGrid();
  // On a GPU of its own what follows may take its place, and ask for its weights.
  if (!e.shares_gpu) LaunchDependents();
  return *static_cast<volatile uint64_t*>(&e.counters[e.rank]->calls) + 1;
}
/// All threads of all blocks.
__device__ __forceinline__ void EndCall(const Exchange& e, uint64_t call) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  ExchangeCounters& own = *e.counters[e.rank];
  if (atomicAdd(&own.ended_blocks, 1) + 1 != gridDim.x * gridDim.y) return;
  own.ended_blocks = 0;
  own.calls = call;
}

__device__ __forceinline__ uint64_t LoadAcquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

__global__ void __launch_bounds__(kPostThreads) PostRowsKernel(const __grid_constant__ Exchange e) {
  const uint64_t call = BeginCall(e);
  const int thread = static_cast<int>(threadIdx.x);
  const int peer = PeerOf(e);
  // The others have read what call n - 2 left here before they told of call n - 1, which this rank
  // has waited for.
  const int64_t at = (call % 2) * e.post_bytes;
  // The blocks of the first turn store for all others.
  if (blockIdx.y == 0) {
    for (int i = 0; i < e.num_stores; ++i) CopyShare(e.stores[i], 0, at);
    __syncthreads();
    if (thread < e.ranks && thread != e.rank) {
      __threadfence_system();
      uint64_t* posted = &e.counters[thread]->posted[e.rank][blockIdx.x];
      asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(posted), "l"(call) : "memory");
    }
    for (int i = 0; i < e.num_own; ++i) CopyShare(e.own[i], 0, 0);
  }
  if (thread == 0 && peer != e.rank) {
    const uint64_t* posted = &e.counters[e.rank]->posted[peer][blockIdx.x];
    Patience patience;
    while (LoadAcquire(posted) < call && !patience.Ends(e, peer)) {
    }
  }
  __syncthreads();
  for (int i = 0; i < e.num_loads; ++i) {
    if (e.loads[i].rank == peer) CopyShare(e.loads[i], at, 0);
  }
  EndCall(e, call);
}

/// Where in an inbox what rank `from` has in a call lies.
__device__ __forceinline__ int64_t InboxAt(const Exchange& e, uint32_t call, int from) {
  return (int64_t{call % 2} * e.ranks + from) * e.inbox_bytes;
}

/// This thread's chunks of this rank's columns to a peer. A word of 16 bytes has two numbers of
/// four bytes, each behind the call's: whatever part of it comes first, it tells what is there.
__device__ __forceinline__ void SendShare(const Exchange& e, const UnitCopy& c, int peer,
                                          uint32_t call) {
  const Chunks<kFlagChunk> chunks(c.copy);
  std::byte* const inbox = e.inboxes[peer] + InboxAt(e, call, e.rank);
  for (uint32_t i = chunks.first(); i < chunks.all(); i += kBatch * chunks.step()) {
    uint2 batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t chunk = i + b * chunks.step();
      if (chunk >= chunks.all()) continue;
      const std::byte* from =
          c.copy.from + chunks.RowOf(chunk) * c.copy.from_stride + chunks.ColumnOf(chunk);
      if (c.unit >= kFlagChunk) {
        batch[b] = __ldcg(reinterpret_cast<const uint2*>(from));
      } else {
        batch[b] = make_uint2(0, 0);
        CopyOdd(from, reinterpret_cast<std::byte*>(&batch[b]), chunks.BytesOf(chunk), c.unit);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t chunk = i + b * chunks.step();
      if (chunk >= chunks.all()) continue;
      std::byte* const at =
          inbox + 2 * (c.at + chunks.RowOf(chunk) * c.copy.to_stride + chunks.ColumnOf(chunk));
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"(batch[b].x),
                   "r"(call), "r"(batch[b].y)
                   : "memory");
    }
  }
}

/// This thread's chunks of another rank's columns, when they are there.
__device__ __forceinline__ void ReceiveShare(const Exchange& e, const UnitCopy& c, uint32_t call) {
  const Chunks<kFlagChunk> chunks(c.copy);
  const std::byte* const inbox = e.inboxes[e.rank] + InboxAt(e, call, c.rank);
  Patience patience;
  for (uint32_t i = chunks.first(); i < chunks.all(); i += kBatch * chunks.step()) {
    uint4 batch[kBatch];
    bool are_there;
    do {
      are_there = true;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const uint32_t chunk = i + b * chunks.step();
        if (chunk >= chunks.all()) continue;
        const std::byte* at =
            inbox + 2 * (c.at + chunks.RowOf(chunk) * c.copy.from_stride + chunks.ColumnOf(chunk));
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(batch[b].x), "=r"(batch[b].y), "=r"(batch[b].z), "=r"(batch[b].w)
                     : "l"(at)
                     : "memory");
        are_there &= batch[b].y == call && batch[b].w == call;
      }
    } while (!are_there && !patience.Ends(e, c.rank));
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t chunk = i + b * chunks.step();
      if (chunk >= chunks.all()) continue;
      const uint2 values = make_uint2(batch[b].x, batch[b].z);
      std::byte* to = c.copy.to + chunks.RowOf(chunk) * c.copy.to_stride + chunks.ColumnOf(chunk);
      if (c.unit >= kFlagChunk) {
        *reinterpret_cast<uint2*>(to) = values;
        continue;
      }
      for (int n = 0; n < chunks.BytesOf(chunk); ++n) {
        const uint32_t word = n < 4 ? values.x : values.y;
        to[n] = static_cast<std::byte>(word >> n % 4 * 8 & 0xFF);
      }
    }
  }
}

__global__ void __launch_bounds__(kFlagThreads) SendRowsKernel(const __grid_constant__ Exchange e) {
  const uint64_t number = BeginCall(e);
  const auto call = static_cast<uint32_t>(number);  // what flags have room for
  const int peer = PeerOf(e);
  // The others have read what call n - 2 left with them before they sent call n - 1, which this
  // rank has received.
  if (peer != e.rank) {
    for (int i = 0; i < e.num_stores; ++i) SendShare(e, e.stores[i], peer, call);
  }
  if (blockIdx.y == 0) {
    for (int i = 0; i < e.num_own; ++i) CopyShare(e.own[i], 0, 0);
  }
  for (int i = 0; i < e.num_loads; ++i) {
    if (e.loads[i].rank == peer) ReceiveShare(e, e.loads[i], call);
  }
  EndCall(e, number);
}

/// `odd`: what else the unit is to divide.
int UnitOf(const ColumnCopy& copy, int64_t odd) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(copy.from) |
                        reinterpret_cast<uintptr_t>(copy.to) |
                        static_cast<uint64_t>(copy.from_stride | copy.to_stride | copy.width | odd);
  for (const int unit : {16, 8, 4, 2}) {
    if (bits % static_cast<uint64_t>(unit) == 0) return unit;
  }
  return 1;
}

/// post_of(copy): what it reads or writes of a post; null: of none.
template <typename PostOf>
int Take(const ExchangeParams& params, std::span<const ColumnCopy> copies, size_t room,
         PostOf post_of, UnitCopy* taken) {
  if (copies.size() > room) {
    RefuseArgument("ExchangeRows: ", copies.size(), " copies: at most ", room, " are possible");
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    taken[i] = {copies[i], UnitOf(copies[i], params.post_bytes), -1, 0};
    const std::byte* const at = post_of(copies[i]);
    if (at == nullptr) continue;
    for (int rank = 0; rank < params.ranks; ++rank) {
      const std::byte* const post = params.posts[rank];
      if (at >= post && at < post + params.post_bytes) taken[i].rank = rank;
    }
    if (taken[i].rank < 0) RefuseArgument("ExchangeRows: copy ", i, " is of no rank's post");
    taken[i].at = at - params.posts[taken[i].rank];
  }
  return static_cast<int>(copies.size());
}

/// Blocks by turn: in each turn one for `bytes_of_block` bytes of a rank, at least `least`. Where
/// ranks share a GPU there are no more than have room in all turns together.
dim3 GridFor(const ExchangeParams& params, int64_t bytes_of_block, int64_t least) {
  const int turns = TurnsOf(params.ranks);
  const int64_t most =
      params.shares_gpu ? std::max(kMostSharedExchangeBlocks / turns, 1) : kMostExchangeBlocks;
  const int64_t blocks = (params.bytes + bytes_of_block - 1) / bytes_of_block;
  return {static_cast<unsigned>(std::clamp(blocks, std::min(least, most), most)),
          static_cast<unsigned>(turns)};
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
  e.shares_gpu = params.shares_gpu;
  e.post_bytes = params.post_bytes;
  std::copy(std::begin(params.inboxes), std::end(params.inboxes), e.inboxes);
  e.inbox_bytes = params.inbox_bytes;
  e.num_stores = Take(
      params, params.stores, kMostStores, [](const ColumnCopy& copy) { return copy.to; }, e.stores);
  e.num_own =
      Take(params, params.own, kMostStores, [](const ColumnCopy&) { return nullptr; }, e.own);
  e.num_loads = Take(
      params, params.loads, kMostLoads, [](const ColumnCopy& copy) { return copy.from; }, e.loads);
  if (!params.with_flags) {
    const dim3 grid = GridFor(params, 2 * kPostThreads * kPostChunk, kMostSharedExchangeBlocks);
    return LaunchDependent(PostRowsKernel, grid, dim3(kPostThreads), 0, stream, e);
  }
  if (2 * params.bytes > params.inbox_bytes) {
    RefuseArgument("ExchangeRows: ", params.bytes, " bytes with flags: there is room for ",
                   params.inbox_bytes / 2);
  }
  const dim3 grid = GridFor(params, kFlagThreads * kFlagChunk, 1);
  return LaunchDependent(SendRowsKernel, grid, dim3(kFlagThreads), 0, stream, e);
}

}  // namespace outrider::cuda
