// The tiles of AVX2 panel products: R rows of x times P panels of weights in one format, sums in
// registers. Include in AVX2 leaves only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/avx2/weight_formats.h"

namespace outrider::cpu::avx2 {
// One copy per leaf file: these must not become shared symbols with AVX2 code.
namespace {  // NOLINT(google-build-namespaces)

// Rows up to which all sums stay in registers and each panel is read once, in one go.
constexpr int64_t kRowTile = 6;
constexpr int64_t kEightBitRowTile = 4;  // widening needs registers, too

struct TileArgs {
  const std::byte* w;  // the first panel, at the tile's first k
  int64_t panel_bytes;
  const float* const* x;  // R pointers
  int64_t first_k;
  int64_t count_k;
  bool from_zero;  // else from sums
  float* sums;     // panel p, row r at sums + p * panel_sums + r * row_sums
  int64_t panel_sums;
  int64_t row_sums;
  bool complete;              // the last k of the chains is among these
  const float* scales;        // of the product
  int64_t first_panel;        // in that
  const std::byte* prefetch;  // read ahead from here, prefetch_step bytes per round
  int64_t prefetch_step;
  const std::byte* far_prefetch;  // read ahead into L2, from here
};

inline void Prefetch(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

inline void PrefetchFar(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

/// The compiler would otherwise read all of x and both halves of a pair of k's early, and then have
/// too few registers for the sums.
inline __attribute__((always_inline)) void KeepLoadsInPlace() { asm volatile("" ::: "memory"); }

/// Adds x[r][k] * W[n][k] to the sums of every row and panel, for one k of the pair at w.
template <int R, int P, typename W, int kParity>
inline __attribute__((always_inline)) void AddProducts(const float* const (&x)[R], int64_t k,
                                                       const std::byte* w, int64_t panel_bytes,
                                                       __m256 (&acc)[R][P][2]) {
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const __m256 w0 = W::template Load<kParity>(w + p * panel_bytes, 0);
    const __m256 w1 = W::template Load<kParity>(w + p * panel_bytes, 1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 xk = _mm256_broadcast_ss(x[r] + k);
      MultiplyAdd(xk, w0, acc[r][p][0]);
      MultiplyAdd(xk, w1, acc[r][p][1]);
      KeepLoadsInPlace();
    }
  }
}

/// Adds the products of both k's of a pair of 8-bit weights.
template <int R, int P, typename W>
inline __attribute__((always_inline)) void AddEightBitProducts(const float* const (&x)[R],
                                                               int64_t k, const std::byte* w,
                                                               int64_t panel_bytes,
                                                               __m256 (&acc)[R][P][2]) {
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    __m256 weights[2][2];
    W::Unpack(w + p * panel_bytes, weights);
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; ++parity) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 xk = _mm256_broadcast_ss(x[r] + k + parity);
        MultiplyAdd(xk, weights[parity][0], acc[r][p][0]);
        MultiplyAdd(xk, weights[parity][1], acc[r][p][1]);
        KeepLoadsInPlace();
      }
    }
  }
}

template <int R, int P, typename W>
void Tile(const TileArgs& args) {
  __m256 acc[R][P][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const float* sums = args.sums + p * args.panel_sums + r * args.row_sums;
      acc[r][p][0] = args.from_zero ? _mm256_setzero_ps() : _mm256_loadu_ps(sums);
      acc[r][p][1] = args.from_zero ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + 8);
    }
  }
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = args.x[r] + args.first_k;

  const std::byte* w = args.w;
  const int64_t panel_bytes = args.panel_bytes;
  const std::byte* prefetch = args.prefetch;
  const int64_t prefetch_step = args.prefetch_step;
  const std::byte* far_prefetch = args.far_prefetch;
  const int64_t count_k = args.count_k;
  const int64_t rounds = count_k / W::kRound;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
      for (int64_t line = 0; line < W::kRoundBytes; line += 64) {
        Prefetch(prefetch + p * panel_bytes + line);
        PrefetchFar(far_prefetch + p * panel_bytes + line);
      }
    }
    if constexpr (W::kIsEightBit) {
      AddEightBitProducts<R, P, W>(x, 4 * i, w, panel_bytes, acc);
      AddEightBitProducts<R, P, W>(x, 4 * i + 2, w + 32, panel_bytes, acc);
    } else {
      AddProducts<R, P, W, 0>(x, 2 * i, w, panel_bytes, acc);
      AddProducts<R, P, W, 1>(x, 2 * i + 1, w, panel_bytes, acc);
    }
    w += W::kRoundBytes;
    prefetch += prefetch_step;
    far_prefetch += prefetch_step;
  }
  if constexpr (!W::kIsEightBit) {
    if (count_k % 2 != 0) AddProducts<R, P, W, 0>(x, 2 * rounds, w, panel_bytes, acc);
  }

#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      if (W::kIsEightBit && args.complete) {
        W::Order(acc[r][p][0], acc[r][p][1]);
        W::Scale(args.scales, args.first_panel + p, acc[r][p][0], acc[r][p][1]);
      }
      float* sums = args.sums + p * args.panel_sums + r * args.row_sums;
      _mm256_storeu_ps(sums, acc[r][p][0]);
      _mm256_storeu_ps(sums + 8, acc[r][p][1]);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

template <int R, int P, typename W>
constexpr TileFunction TileOf() {
  if constexpr (W::kIsEightBit && R > kEightBitRowTile) return nullptr;
  return Tile<R, P, W>;
}

/// kTiles[rows - 1][panels - 1]. Three rows and two panels would be twelve sums, but the compiler
/// then moves some to the stack in every round: six in registers are faster.
template <typename W>
constexpr TileFunction kTiles[kRowTile][4] = {
    {TileOf<1, 1, W>(), TileOf<1, 2, W>(), TileOf<1, 3, W>(), TileOf<1, 4, W>()},
    {TileOf<2, 1, W>(), TileOf<2, 2, W>(), nullptr, nullptr},
    {TileOf<3, 1, W>(), nullptr, nullptr, nullptr},
    {TileOf<4, 1, W>(), nullptr, nullptr, nullptr},
    {TileOf<5, 1, W>(), nullptr, nullptr, nullptr},
    {TileOf<6, 1, W>(), nullptr, nullptr, nullptr}};

}  // namespace
}  // namespace outrider::cpu::avx2
