// Three or four rows times three panels, as two passes of one and a half panels each.
//
// Four rows and one panel are eight chains of FMAs, which keep two multipliers of latency four busy
// only as long as nothing ever comes late. A panel and a half makes twelve chains (nine with three
// rows). The two halves of a panel lie side by side, so the middle panel is read twice, the second
// time from L1; where panels are too long for that, one panel at a time is faster.
//
// The loop is written in assembler because the registers suffice in one way only, which GCC 12 does
// not find (it moves sums to the stack): sums in ymm0 to ymm11, the weights of three halves in
// ymm12 to ymm14, x in ymm15; the mask of odd k's comes from memory.

#include "outrider/kernels/cpu/avx2/three_panel_tile.h"

#include <immintrin.h>

namespace outrider::cpu::avx2 {

namespace {

alignas(32) constexpr uint32_t kUpperHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                  0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// clang-format off
#define OUTRIDER_ZERO_ROW(row, sum0, sum1, sum2)                 \
  "vxorps %%" sum0 ", %%" sum0 ", %%" sum0 "\n\t"                \
  "vxorps %%" sum1 ", %%" sum1 ", %%" sum1 "\n\t"                \
  "vxorps %%" sum2 ", %%" sum2 ", %%" sum2 "\n\t"
#define OUTRIDER_STORE_ROW(row, sum0, sum1, sum2)                \
  "vmovups %%" sum0 ", " row "\n\t"                              \
  "vmovups %%" sum1 ", 32" row "\n\t"                            \
  "vmovups %%" sum2 ", 64" row "\n\t"
#define OUTRIDER_THREE_ROWS_OF_SUMS(MOVE)                        \
  MOVE("(%[sums])", "ymm0", "ymm1", "ymm2")                      \
  MOVE("(%[sums], %[stride])", "ymm3", "ymm4", "ymm5")           \
  MOVE("(%[sums], %[stride], 2)", "ymm6", "ymm7", "ymm8")
#define OUTRIDER_FOUR_ROWS_OF_SUMS(MOVE)                         \
  OUTRIDER_THREE_ROWS_OF_SUMS(MOVE)                              \
  "add %[stride], %[sums]\n\t"                                   \
  MOVE("(%[sums], %[stride], 2)", "ymm9", "ymm10", "ymm11")      \
  "sub %[stride], %[sums]\n\t"

// One row at the even (0) or odd (4) k of a pair.
#define OUTRIDER_MULTIPLY_ROW(k, x, sum0, sum1, sum2)            \
  "vbroadcastss " k "(%[" x "], %[pair], 8), %%ymm15\n\t"        \
  "vfmadd231ps %%ymm12, %%ymm15, %%" sum0 "\n\t"                 \
  "vfmadd231ps %%ymm13, %%ymm15, %%" sum1 "\n\t"                 \
  "vfmadd231ps %%ymm14, %%ymm15, %%" sum2 "\n\t"
#define OUTRIDER_MULTIPLY_THREE_ROWS(k)                          \
  OUTRIDER_MULTIPLY_ROW(k, "x0", "ymm0", "ymm1", "ymm2")         \
  OUTRIDER_MULTIPLY_ROW(k, "x1", "ymm3", "ymm4", "ymm5")         \
  OUTRIDER_MULTIPLY_ROW(k, "x2", "ymm6", "ymm7", "ymm8")
#define OUTRIDER_MULTIPLY_FOUR_ROWS(k)                           \
  OUTRIDER_MULTIPLY_THREE_ROWS(k)                                \
  OUTRIDER_MULTIPLY_ROW(k, "x3", "ymm9", "ymm10", "ymm11")

// `pair` counts from -pairs up to zero: x0 to x3 point past the pass's last k.
#define OUTRIDER_PASS(SUMS, MULTIPLY)                                                            \
  asm volatile(                                                                                  \
      SUMS(OUTRIDER_ZERO_ROW)                                                                    \
      ".p2align 5\n"                                                                             \
      "1:\n\t"                                                                                   \
      "vmovdqa (%[w]), %%ymm12\n\t"                                                              \
      "vmovdqa (%[w], %[half1]), %%ymm13\n\t"                                                    \
      "vmovdqa (%[w], %[half2]), %%ymm14\n\t"                                                    \
      "prefetcht0 2048(%[w])\n\t"                                                                \
      "prefetcht0 2048(%[w], %[half2])\n\t"                                                      \
      "prefetcht1 (%[w], %[far])\n\t"                                                            \
      "prefetcht1 (%[next])\n\t"                                                                 \
      "vpslld $16, %%ymm12, %%ymm12\n\t"                                                         \
      "vpslld $16, %%ymm13, %%ymm13\n\t"                                                         \
      "vpslld $16, %%ymm14, %%ymm14\n\t"                                                         \
      MULTIPLY("0")                                                                              \
      "vmovdqa %[upper], %%ymm14\n\t"                                                            \
      "vpand (%[w]), %%ymm14, %%ymm12\n\t"                                                       \
      "vpand (%[w], %[half1]), %%ymm14, %%ymm13\n\t"                                             \
      "vpand (%[w], %[half2]), %%ymm14, %%ymm14\n\t"                                             \
      MULTIPLY("4")                                                                              \
      "add $64, %[w]\n\t"                                                                        \
      "add $64, %[next]\n\t"                                                                     \
      "inc %[pair]\n\t"                                                                          \
      "jnz 1b\n\t"                                                                               \
      SUMS(OUTRIDER_STORE_ROW)                                                                   \
      : [w] "+r"(w), [next] "+r"(next), [pair] "+r"(pair), [sums] "+r"(sums)                     \
      : [half1] "r"(half1), [half2] "r"(half2), [far] "r"(far), [stride] "r"(stride),            \
        [x0] "r"(x0), [x1] "r"(x1), [x2] "r"(x2), [x3] "r"(x3), [upper] "m"(kUpperHalves)        \
      : "memory", "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8",  \
        "ymm9", "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15")
// clang-format on

/// One pass: the halves of panels at w, w + half1 and w + panel_bytes. Fetches into L2 what is
/// three panels from the first and the last of them.
template <int R>
void Pass(const std::byte* w, int64_t half1, int64_t panel_bytes, const ThreePanelTile& tile,
          float* sums) {
  int64_t pair = -tile.count_k / 2;
  const int64_t half2 = panel_bytes;
  const int64_t far = 3 * panel_bytes;
  const std::byte* next = w + half2 + far;
  const int64_t stride = tile.row_sums * int64_t{sizeof(float)};
  const float* x0 = tile.x[0] + tile.count_k;
  const float* x1 = tile.x[1] + tile.count_k;
  const float* x2 = tile.x[2] + tile.count_k;
  const float* x3 = tile.x[R - 1] + tile.count_k;
  if constexpr (R == 3) {
    OUTRIDER_PASS(OUTRIDER_THREE_ROWS_OF_SUMS, OUTRIDER_MULTIPLY_THREE_ROWS);
  } else {
    OUTRIDER_PASS(OUTRIDER_FOUR_ROWS_OF_SUMS, OUTRIDER_MULTIPLY_FOUR_ROWS);
  }
}

template <int R>
void Multiply(const ThreePanelTile& tile) {
  const int64_t panel_bytes = tile.count_k * 32;
  Pass<R>(tile.w, 32, panel_bytes, tile, tile.sums);
  Pass<R>(tile.w + panel_bytes + 32, panel_bytes - 32, panel_bytes, tile, tile.sums + 24);
}

}  // namespace

void MultiplyThreeRows(const ThreePanelTile& tile) { Multiply<3>(tile); }
void MultiplyFourRows(const ThreePanelTile& tile) { Multiply<4>(tile); }

}  // namespace outrider::cpu::avx2
