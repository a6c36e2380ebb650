// wgmma m64nNk16 with bf16 operands and float32 sums, both operands K-major: D [64, N] (+)= A B^T,
// for the numbers of columns N that the matrix products use. `MakeDescriptor` gives descriptors.
//
// Registers of thread t of the warpgroup (warp w = t / 32, lane l = t % 32):
//   d[4 j + 2 h + e] = D[16 w + 8 h + l / 4, 8 j + l % 4 * 2 + e],
//   a[2 i + h] = the pair A[16 w + 8 h + l / 4, 8 i + l % 4 * 2 + {0, 1}].
#pragma once

#include <cstdint>

namespace outrider::cuda {

/// Multiply(d, a, b, scale_d): `a` is a descriptor, or registers in MultiplyRegisters. scale_d 0
/// starts from zero, 1 accumulates.
template <int kColumns>
struct WgmmaKMajor;

#define OUTRIDER_D4 "%0, %1, %2, %3"
#define OUTRIDER_D8 OUTRIDER_D4 ", %4, %5, %6, %7"
#define OUTRIDER_D12 OUTRIDER_D8 ", %8, %9, %10, %11"
#define OUTRIDER_D16 OUTRIDER_D12 ", %12, %13, %14, %15"
#define OUTRIDER_D32 \
  OUTRIDER_D16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OUTRIDER_D48 \
  OUTRIDER_D32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define OUTRIDER_D64 \
  OUTRIDER_D48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OUTRIDER_D96                                                                 \
  OUTRIDER_D64                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OUTRIDER_D128                                                                          \
  OUTRIDER_D96                                                                                 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110"     \
  ", %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125" \
  ", %126, %127"

#define OUTRIDER_R4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define OUTRIDER_R8(i) OUTRIDER_R4(i), OUTRIDER_R4((i) + 4)
#define OUTRIDER_R12(i) OUTRIDER_R8(i), OUTRIDER_R4((i) + 8)
#define OUTRIDER_R16(i) OUTRIDER_R8(i), OUTRIDER_R8((i) + 8)
#define OUTRIDER_R32(i) OUTRIDER_R16(i), OUTRIDER_R16((i) + 16)
#define OUTRIDER_R48(i) OUTRIDER_R32(i), OUTRIDER_R16((i) + 32)
#define OUTRIDER_R64(i) OUTRIDER_R32(i), OUTRIDER_R32((i) + 32)
#define OUTRIDER_R96(i) OUTRIDER_R64(i), OUTRIDER_R32((i) + 64)
#define OUTRIDER_R128(i) OUTRIDER_R64(i), OUTRIDER_R64((i) + 64)

// N, its registers (N / 2), and the numbers of the six operands behind them.
#define OUTRIDER_WGMMA(N, D, p0, p1, p2, p3, p4, p5)                                             \
  template <>                                                                                    \
  struct WgmmaKMajor<N> {                                                                        \
    static __device__ __forceinline__ void Multiply(float (&d)[D], uint64_t a, uint64_t b,       \
                                                    int scale_d) {                               \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N  \
          "k16.f32.bf16.bf16 {" OUTRIDER_D##D "}, %" #p0 ", %" #p1 ", p, 1, 1, 0, 0;\n}\n"       \
          : OUTRIDER_R##D(0)                                                                     \
          : "l"(a), "l"(b), "r"(scale_d));                                                       \
    }                                                                                            \
    static __device__ __forceinline__ void MultiplyRegisters(float (&d)[D], const uint32_t* a,   \
                                                             uint64_t b, int scale_d) {          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5                                      \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                                  \
                   "k16.f32.bf16.bf16 {" OUTRIDER_D##D "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 \
                                                       "}, %" #p4 ", p, 1, 1, 0;\n}\n"           \
                   : OUTRIDER_R##D(0)                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d));          \
    }                                                                                            \
  }

OUTRIDER_WGMMA(8, 4, 4, 5, 6, 7, 8, 9);
OUTRIDER_WGMMA(16, 8, 8, 9, 10, 11, 12, 13);
OUTRIDER_WGMMA(24, 12, 12, 13, 14, 15, 16, 17);
OUTRIDER_WGMMA(32, 16, 16, 17, 18, 19, 20, 21);
OUTRIDER_WGMMA(64, 32, 32, 33, 34, 35, 36, 37);
OUTRIDER_WGMMA(96, 48, 48, 49, 50, 51, 52, 53);
OUTRIDER_WGMMA(128, 64, 64, 65, 66, 67, 68, 69);
OUTRIDER_WGMMA(192, 96, 96, 97, 98, 99, 100, 101);
OUTRIDER_WGMMA(256, 128, 128, 129, 130, 131, 132, 133);

/// m64n128k32 of e4m3 operands, as WgmmaKMajor<128>. The tensor cores keep 13 bits below the
/// largest of the products that they add at once.
__device__ __forceinline__ void WgmmaE4m3M64N128(float (&d)[64], uint64_t a, uint64_t b,
                                                 int scale_d) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128"
      "k32.f32.e4m3.e4m3 {" OUTRIDER_D64 "}, %64, %65, p, 1, 1;\n}\n"
      : OUTRIDER_R64(0)
      : "l"(a), "l"(b), "r"(scale_d));
}

/// m64n64k32 of e4m3 operands, as WgmmaE4m3M64N128.
__device__ __forceinline__ void WgmmaE4m3M64N64(float (&d)[32], uint64_t a, uint64_t b,
                                                int scale_d) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64"
      "k32.f32.e4m3.e4m3 {" OUTRIDER_D32 "}, %32, %33, p, 1, 1;\n}\n"
      : OUTRIDER_R32(0)
      : "l"(a), "l"(b), "r"(scale_d));
}

#undef OUTRIDER_WGMMA
#undef OUTRIDER_D4
#undef OUTRIDER_D8
#undef OUTRIDER_D12
#undef OUTRIDER_D16
#undef OUTRIDER_D32
#undef OUTRIDER_D48
#undef OUTRIDER_D64
#undef OUTRIDER_D96
#undef OUTRIDER_D128
#undef OUTRIDER_R4
#undef OUTRIDER_R8
#undef OUTRIDER_R12
#undef OUTRIDER_R16
#undef OUTRIDER_R32
#undef OUTRIDER_R48
#undef OUTRIDER_R64
#undef OUTRIDER_R96
#undef OUTRIDER_R128

}  // namespace outrider::cuda
