// What a kernel that stays on the card for a whole pass could count on: how long a hop between all
// multiprocessors takes, alone and beside a stream of weights; how fast a ring of shared memory
// streams, also where its readers pause; what dependent products cost; and what straight code costs
// by its size. One block per multiprocessor. Takes no arguments and prints one figure a line.
// Longer than most files: a kernel for each question.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {
namespace {

constexpr int kSlotBytes = 16 << 10;
constexpr int kSlots = 11;
constexpr int kReaders = 256;  // threads that read what the ring brings
constexpr int kThreads = kReaders + 32;
constexpr int kValues = 2048;       // float32 that a hop carries from all blocks to all: 8 KB
constexpr int kCounterStride = 32;  // counters of their own lines of 128 bytes

/// How blocks learn that others' values are there.
enum class Hop {
  kFenced,    // a counter: a fence and a release by one thread, its polls between two barriers
  kReleased,  // a counter: a release without the fence, a thread of each warp polls
  kNumbered,  // no counter: each value is stored with the hop's number, its reader polls the pair
};

struct RingParams {
  const char* weights = nullptr;
  int steps = 0;
  int slots = 0;  // of a step, of every block
  int hops = 0;   // behind every step
  Hop hop = Hop::kFenced;
  bool loads = false;               // a hop carries values, too
  int pause_ns = 0;                 // behind every step
  float* values = nullptr;          // [2, kValues], of kNumbered [2, kValues, 2]
  uint32_t* counters = nullptr;     // one for every hop, zero
  long long* hop_cycles = nullptr;  // [blocks], of all hops
  float* never = nullptr;
};

__device__ uint64_t Nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// Waits until all blocks have arrived.
__device__ void Poll(const uint32_t* counter) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < gridDim.x);
}

/// All blocks' readers meet: everybody's values are there for everybody.
__device__ void Meet(Hop hop, uint32_t* counter) {
  NamedSync(1, kReaders);
  if (hop == Hop::kFenced) {
    if (threadIdx.x == 0) {
      asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter)
                   : "memory");
      Poll(counter);
    }
    NamedSync(1, kReaders);
  } else {
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    }
    if (threadIdx.x % 32 == 0) Poll(counter);
    __syncwarp();
  }
}

/// Values of this thread that all blocks get, and its share of everybody's: their sum is added.
__device__ void Carry(const RingParams& p, int hop, float& value) {
  if (p.hop == Hop::kNumbered) {
    auto* const pairs = reinterpret_cast<uint2*>(p.values) + hop % 2 * kValues;
    const uint32_t number = static_cast<uint32_t>(hop) + 1;
    NamedSync(1, kReaders);  // the last hop's values are read: others may write where they were
    for (int at = blockIdx.x + threadIdx.x * gridDim.x; at < kValues; at += kReaders * gridDim.x) {
      asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(pairs + at),
                   "r"(__float_as_uint(value)), "r"(number)
                   : "memory");
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kValues / 2 / kReaders; ++j) {
      uint4 two;
      do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(two.x), "=r"(two.y), "=r"(two.z), "=r"(two.w)
                     : "l"(pairs + 2 * (j * kReaders + threadIdx.x))
                     : "memory");
      } while (two.y != number || two.w != number);
      sum += __uint_as_float(two.x) + __uint_as_float(two.z);
    }
    value += sum;
    return;
  }
  float* const values = p.values + hop % 2 * kValues;
  for (int at = blockIdx.x + threadIdx.x * gridDim.x; at < kValues; at += kReaders * gridDim.x) {
    values[at] = value;
  }
  Meet(p.hop, p.counters + hop * kCounterStride);
#pragma unroll
  for (int j = 0; j < kValues / 4 / kReaders; ++j) {
    const float4 four =
        __ldcg(reinterpret_cast<const float4*>(values) + j * kReaders + threadIdx.x);
    value += four.x + four.y + four.z + four.w;
  }
}

__global__ void __launch_bounds__(kThreads, 1) RingKernel(RingParams p) {
  extern __shared__ __align__(128) char ring[];
  __shared__ uint64_t full[kSlots], empty[kSlots];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      BarrierInit(full + i, 1);
      BarrierInit(empty + i, kReaders / 32);
    }
    BarrierInitFence();
  }
  __syncthreads();
  const int all = p.steps * p.slots;
  if (threadIdx.x >= kReaders) {
    if (threadIdx.x != kReaders) return;
    for (int i = 0; i < all; ++i) {
      const int slot = i % kSlots;
      if (i >= kSlots) BarrierWait(empty + slot, (i / kSlots - 1) & 1);
      BarrierArriveExpect(full + slot, kSlotBytes);
      BulkLoad(ring + slot * kSlotBytes,
               p.weights + (size_t{static_cast<unsigned>(i)} * gridDim.x + blockIdx.x) * kSlotBytes,
               kSlotBytes, full + slot);
    }
    return;
  }
  uint32_t sum = 0;
  float value = 0;
  long long hop_cycles = 0;
  int hop = 0;
  for (int step = 0, i = 0; step < p.steps; ++step) {
    for (int s = 0; s < p.slots; ++s, ++i) {
      const int slot = i % kSlots;
      BarrierWait(full + slot, i / kSlots & 1);
      const auto* const from = reinterpret_cast<const uint4*>(ring + slot * kSlotBytes);
#pragma unroll
      for (int j = 0; j < kSlotBytes / 16 / kReaders; ++j) {
        const uint4 four = from[j * kReaders + threadIdx.x];
        sum ^= four.x ^ four.y ^ four.z ^ four.w;
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) BarrierArrive(empty + slot);
    }
    if (p.pause_ns > 0) {
      const uint64_t begin = Nanoseconds();
      while (Nanoseconds() - begin < p.pause_ns) {
      }
      NamedSync(1, kReaders);
    }
    const long long begin = clock64();
    for (int h = 0; h < p.hops; ++h, ++hop) {
      if (p.loads) {
        Carry(p, hop, value);
      } else {
        Meet(p.hop, p.counters + hop * kCounterStride);
      }
    }
    hop_cycles += clock64() - begin;
  }
  if (threadIdx.x == 0) p.hop_cycles[blockIdx.x] = hop_cycles;
  if (sum == 0x12345678 && value == 1) *p.never = value;
}

constexpr int kChain = 4096;

/// Cycles of a chain of dependent products: mma.sync m16n8k16, then wgmma m64n8k16.
__global__ void ChainKernel(long long* cycles, float* never) {
  extern __shared__ __align__(1024) char operands[];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) reinterpret_cast<int*>(operands)[i] = 0;
  ProxyFence();
  __syncthreads();
  float c[4] = {};
  const uint32_t a = threadIdx.x;
  long long begin = clock64();
#pragma unroll 16
  for (int i = 0; i < kChain; ++i) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, "
        "{%4, %4}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a));
  }
  if (c[0] == 1) *never = c[0];
  if (threadIdx.x == 0) cycles[0] = clock64() - begin;
  const uint64_t left = MakeDescriptor(SharedAddress(operands), 0, 1024);
  const uint64_t right = MakeDescriptor(SharedAddress(operands) + 8192, 0, 1024);
  float d[4] = {};
  PinRegisters(d);
  begin = clock64();
  WgmmaFence();
#pragma unroll 16
  for (int i = 0; i < kChain; ++i) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, "
        "0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(left), "l"(right));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(d);
  if (threadIdx.x == 0) cycles[1] = clock64() - begin;
  if (d[0] == 1) *never = d[0];
}

/// 64 multiply-adds of 16 bytes of code each.
__device__ __forceinline__ void Kilobyte(float (&x)[4], float y) {
#define OUTRIDER_FOUR                                        \
  "fma.rn.f32 %0, %0, %4, %4;\nfma.rn.f32 %1, %1, %4, %4;\n" \
  "fma.rn.f32 %2, %2, %4, %4;\nfma.rn.f32 %3, %3, %4, %4;\n"
#define OUTRIDER_SIXTEEN OUTRIDER_FOUR OUTRIDER_FOUR OUTRIDER_FOUR OUTRIDER_FOUR
  asm volatile(OUTRIDER_SIXTEEN OUTRIDER_SIXTEEN OUTRIDER_SIXTEEN OUTRIDER_SIXTEEN
               : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
               : "f"(y));
#undef OUTRIDER_FOUR
#undef OUTRIDER_SIXTEEN
}

constexpr size_t kStreamBytes = 60 << 20;

/// Cycles of kKilobytes of straight code: the first time, again, and behind a stream through L2.
template <int kKilobytes>
__global__ void CodeKernel(const uint4* stream, long long* cycles, float* never) {
  float x[4] = {1, 2, 3, 4};
  const float y = static_cast<float>(threadIdx.x);
  uint32_t sum = 0;
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2) {
      const size_t count = kStreamBytes / sizeof(uint4);
      for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
           i += size_t{gridDim.x} * blockDim.x) {
        const uint4 four = __ldcg(stream + i);
        sum ^= four.x ^ four.y ^ four.z ^ four.w;
      }
      cooperative_groups::this_grid().sync();
    }
    __syncthreads();
    const long long begin = clock64();
#pragma unroll
    for (int i = 0; i < kKilobytes; ++i) Kilobyte(x, y);
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) cycles[pass] = clock64() - begin;
  }
  if (x[0] + x[1] + x[2] + x[3] == 1 && sum == 0x12345678) *never = x[0];
}

class ResidentBench {
 public:
  ResidentBench() {
    CudaOk(cudaDeviceGetAttribute(&blocks_, cudaDevAttrMultiProcessorCount, 0), "device");
    int kilohertz = 0;
    CudaOk(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0), "device");
    gigahertz_ = kilohertz / 1e6;
    CudaOk(cudaFuncSetAttribute(RingKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kSlots * kSlotBytes),
           "shared memory");
    CudaOk(cudaEventCreate(&begin_), "event");
    CudaOk(cudaEventCreate(&end_), "event");
    CudaOk(cudaMalloc(&weights_, WeightBytes()), "weights");
    CudaOk(cudaMemset(weights_, 1, WeightBytes()), "weights");
    CudaOk(cudaMalloc(&values_, kValuesBytes), "values");
    CudaOk(cudaMalloc(&counters_, kMostHops * kCounterStride * sizeof(uint32_t)), "counters");
    CudaOk(cudaMalloc(&cycles_, blocks_ * sizeof(long long)), "cycles");
    CudaOk(cudaMalloc(&never_, sizeof(float)), "never");
  }

  void RunAll() {
    const double read = ReadRate();
    std::printf("reads of all bytes: %.2f TB/s\n", read);
    const double streamed =
        Ring("ring without pauses", {.steps = kSteps, .slots = kStepSlots}, read);
    Ring("ring, 20 us without readers behind every step",
         {.steps = kSteps, .slots = kStepSlots, .pause_ns = 20000}, read);
    std::printf("ring: %.2f of the rate of reads\n", streamed / read);
    for (const auto& [name, hop] :
         {std::pair("fenced", Hop::kFenced), std::pair("released", Hop::kReleased),
          std::pair("numbered", Hop::kNumbered)}) {
      std::printf("%s: ", name);
      Ring("ring, 8 hops with 8 KB behind every step",
           {.steps = kSteps, .slots = kStepSlots, .hops = 8, .hop = hop, .loads = true}, read);
      if (hop != Hop::kNumbered) {
        std::printf("%s: ", name);
        TimeHop("hop", {.steps = 1, .hops = kMostHops, .hop = hop});
      }
      std::printf("%s: ", name);
      TimeHop("hop with 8 KB", {.steps = 1, .hops = kMostHops, .hop = hop, .loads = true});
    }
    Chains();
    Code<16>();
    Code<32>();
    Code<64>();
    Code<128>();
    Code<256>();
    Code<512>();
  }

 private:
  static constexpr int kSteps = 40;
  static constexpr int kStepSlots = 64;  // of 132 blocks together 138 MB: a layer of GLM-4.7-Flash
  static constexpr int kMostHops = 2000;
  static constexpr size_t kValuesBytes = size_t{4} * kValues * sizeof(float);

  size_t WeightBytes() const {
    return size_t{kSteps} * kStepSlots * kSlotBytes * static_cast<size_t>(blocks_);
  }

  /// Milliseconds of the fastest of five runs.
  template <typename Launch>
  double Fastest(Launch launch) {
    float best = 1e30F;
    for (int i = 0; i < 5; ++i) {
      CudaOk(cudaMemset(counters_, 0, kMostHops * kCounterStride * sizeof(uint32_t)), "counters");
      CudaOk(cudaMemset(values_, 0, kValuesBytes), "values");
      CudaOk(cudaEventRecord(begin_), "record");
      launch();
      CudaOk(cudaEventRecord(end_), "record");
      CudaOk(cudaEventSynchronize(end_), "a run");
      float ms = 0;
      CudaOk(cudaEventElapsedTime(&ms, begin_, end_), "time");
      best = std::min(best, ms);
    }
    return best;
  }

  double ReadRate() {
    const double ms = Fastest([&] {
      ReadAll<<<blocks_ * 8, 256>>>(reinterpret_cast<const uint4*>(weights_),
                                    WeightBytes() / sizeof(uint4),
                                    reinterpret_cast<uint32_t*>(never_));
    });
    return static_cast<double>(WeightBytes()) / ms / 1e9;
  }

  double RunRing(RingParams params) {
    params.weights = weights_;
    params.values = values_;
    params.counters = counters_;
    params.hop_cycles = cycles_;
    params.never = never_;
    void* arguments[] = {&params};
    return Fastest([&] {
      CudaOk(cudaLaunchCooperativeKernel(RingKernel, dim3(blocks_), dim3(kThreads), arguments,
                                         kSlots * kSlotBytes, nullptr),
             "the ring");
    });
  }

  double HopMicroseconds(int hops) {
    std::vector<long long> cycles(static_cast<size_t>(blocks_));
    CudaOk(cudaMemcpy(cycles.data(), cycles_, cycles.size() * sizeof(long long), cudaMemcpyDefault),
           "cycles");
    return static_cast<double>(cycles[0]) / hops / gigahertz_ / 1e3;
  }

  double Ring(const char* name, const RingParams& params, double read) {
    const double ms = RunRing(params);
    const double rate = static_cast<double>(WeightBytes()) / ms / 1e9;
    const double step = ms * 1e3 / params.steps;
    std::printf("%s: %.2f TB/s, %.1f us a step, %.1f beside its bytes", name, rate, step,
                step - static_cast<double>(WeightBytes()) / params.steps / read / 1e6);
    if (params.hops > 0) {
      std::printf("; a hop %.2f us", HopMicroseconds(params.hops * params.steps));
    }
    std::printf("\n");
    return rate;
  }

  void TimeHop(const char* name, const RingParams& params) {
    const double ms = RunRing(params);
    std::printf("%s: %.2f us by the clock of the card, %.2f by cycles\n", name,
                ms * 1e3 / params.hops, HopMicroseconds(params.hops));
  }

  std::vector<long long> Cycles(size_t count) {
    std::vector<long long> cycles(count);
    CudaOk(cudaMemcpy(cycles.data(), cycles_, count * sizeof(long long), cudaMemcpyDefault),
           "cycles");
    return cycles;
  }

  void Chains() {
    for (int i = 0; i < 2; ++i) {
      ChainKernel<<<1, 128, 16384>>>(cycles_, never_);
      CudaOk(cudaDeviceSynchronize(), "chains");
    }
    const std::vector<long long> cycles = Cycles(2);
    std::printf("dependent mma.sync m16n8k16: %.1f cycles; wgmma m64n8k16: %.1f\n",
                static_cast<double>(cycles[0]) / kChain, static_cast<double>(cycles[1]) / kChain);
  }

  template <int kKilobytes>
  void Code() {
    const auto* stream = reinterpret_cast<const uint4*>(weights_);
    void* arguments[] = {&stream, &cycles_, &never_};
    CudaOk(cudaLaunchCooperativeKernel(CodeKernel<kKilobytes>, dim3(blocks_), dim3(128), arguments,
                                       0, nullptr),
           "straight code");
    CudaOk(cudaDeviceSynchronize(), "straight code");
    const std::vector<long long> cycles = Cycles(3);
    const auto us = [&](size_t i) { return static_cast<double>(cycles[i]) / gigahertz_ / 1e3; };
    std::printf("%d KB of straight code: %.2f us the first time, %.2f again, %.2f behind 60 MB\n",
                kKilobytes, us(0), us(1), us(2));
  }

  int blocks_ = 0;
  double gigahertz_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  char* weights_ = nullptr;
  float* values_ = nullptr;
  uint32_t* counters_ = nullptr;
  long long* cycles_ = nullptr;
  float* never_ = nullptr;
};

}  // namespace
}  // namespace outrider::cuda

int main() {
  outrider::cuda::ResidentBench().RunAll();
  return 0;
}
