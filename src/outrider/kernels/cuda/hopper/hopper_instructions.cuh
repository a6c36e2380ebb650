// PTX of Hopper (sm_90a) that CUDA C++ does not expose: mbarriers, bulk tensor copies, wgmma fences
// and descriptors, named barriers, register reallocation, dependent launch.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace outrider::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers ----

__device__ __forceinline__ void BarrierInit(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count));
}

/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// racecheck of compute-sanitizer follows a thread's own arrivals only; for it every lane arrives.
#ifdef OUTRIDER_CUDA_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

/// A converged warp's arrival (counts as kWarpArrivals), after all that its lanes did before.
__device__ __forceinline__ void BarrierArriveWarp(uint64_t* barrier) {
  __syncwarp();
  if (kWarpArrivals == 32 || threadIdx.x % 32 == 0) BarrierArrive(barrier);
}

__device__ __forceinline__ void BarrierArriveExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

/// Waits until the phase with this parity has completed.
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra wait;\n"
      "done:\n}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// ---- bulk tensor copies ----

// Cache policies: what createpolicy gives, and CUTLASS's for a copy without one, which is not the
// same as evict-normal.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kEvictNormal = 0x16F0000000000000ull;
inline constexpr uint64_t kNoPolicy = 0x1000000000000000ull;

/// Begins to bring memory into L2. from: 16-byte aligned; bytes: a multiple of 16.
__device__ __forceinline__ void PrefetchIntoL2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void TensorLoad4d(void* destination, const CUtensorMap* map,
                                             uint64_t* barrier, uint64_t policy, int c0, int c1,
                                             int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void TensorLoad5d(void* destination, const CUtensorMap* map,
                                             uint64_t* barrier, uint64_t policy, int c0, int c1,
                                             int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
      "l"(policy)
      : "memory");
}

/// Contiguous bytes, a multiple of 16, both addresses too.
__device__ __forceinline__ void BulkLoad(void* destination, const void* source, uint32_t bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(destination)),
      "l"(source), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

/// Orders this thread's ordinary shared-memory stores before later accesses of the tensor cores and
/// the copy engine.
__device__ __forceinline__ void ProxyFence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma ----

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses of accumulators across a fence or a wait.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

/// Matrix descriptor with 128-byte swizzle. For K-major operands `stride` is the distance in bytes
/// between groups of 8 rows and `leading` is unused; for MN-major operands `leading` is the
/// distance between groups of 64 columns and `stride` the one between groups of 8 rows (K).
__device__ __forceinline__ uint64_t MakeDescriptor(uint32_t address, uint32_t leading,
                                                   uint32_t stride) {
  return (uint64_t{1} << 62) | (uint64_t{stride >> 4} << 32) | (uint64_t{leading >> 4} << 16) |
         uint64_t{(address & 0x3FFFF) >> 4};
}

/// The descriptor `bytes` further on (a constant, so that it costs one addition).
__device__ __forceinline__ uint64_t Advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

template <int kRegisters>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// threadIdx.x, read anew where it is called: where registers are short, what is computed from it
/// should not take one for longer.
__device__ __forceinline__ uint32_t FreshThread() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// True in one lane of a converged warp; the form in which the compiler knows that it is one.
__device__ __forceinline__ bool ElectOne() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.b32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

// ---- named barriers ----

__device__ __forceinline__ void NamedSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// NamedSync that tells every thread whether any has `value`.
__device__ __forceinline__ bool NamedSyncOr(int id, int threads, bool value) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(value))
      : "memory");
  return any != 0;
}

// ---- arithmetic and stores ----

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ void StoreMatrix4(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// Matrices of 8x8 bf16, transposed: lane 8 i + j gives the address of column j of matrix i.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t address,
                                                        const uint32_t (&values)[1]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address),
               "r"(values[0])
               : "memory");
}
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t address,
                                                        const uint32_t (&values)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(values[0]), "r"(values[1])
               : "memory");
}
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t address,
                                                        const uint32_t (&values)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
      : "memory");
}

// ---- dependent launch ----

__device__ __forceinline__ void LaunchDependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void WaitForPriorGrid() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace outrider::cuda
