// Products with FP4 codes of few rows in tiles by VDPBF16PS: pairs of columns are widened to
// bfloat16 in registers. Each sum is one chain, as of weights of bfloat16 (matmul_leaves.cc).

#include "outrider/kernels/cpu/avx512/fp4_tiles.h"
#include "outrider/kernels/cpu/avx512_bf16/leaves.h"
#include "outrider/kernels/cpu/avx512_bf16/vectors.h"

namespace outrider::cpu::avx512_bf16 {

namespace {

using avx512::Fp4PairReader;
using avx512::Fp4ReadAhead;
using avx512::Fp4TileFunction;
using avx512::kFp4WordBytes;
using avx512::kFp4WordCols;
using avx512::kMostFp4Rows;

constexpr int kPairs = kTileCols / 2;

/// x: row 0's pairs from the first of `codes` on.
template <int kPair, int R, int P>
inline __attribute__((always_inline)) void AddPairs(const Fp4PairReader& reader, const float* x,
                                                    const __m512i (&codes)[P],
                                                    const __m512i (&shifts)[P],
                                                    __m512 (&sums)[R][P]) {
  if constexpr (kPair < kFp4WordCols / 2) {
    __m512i weights[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) weights[p] = reader.Read<kPair>(codes[p], shifts[p]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i both = _mm512_castps_si512(_mm512_set1_ps(x[r * kPairs + kPair]));
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) AddDots(weights[p], both, sums[r][p]);
      // Or the compiler reads all of x early, and has too few registers for the sums.
      asm volatile("" ::: "memory");
    }
    AddPairs<kPair + 1>(reader, x, codes, shifts, sums);
  }
}

template <int R, int P>
void Tile(const PanelProduct& product, int64_t first, Fp4ReadAhead ahead) {
  static_assert(kTileCols == kFp4Group);
  const int64_t panel_bytes = product.panel_bytes;
  const int64_t groups = product.cols / kFp4Group;
  const std::byte* w = product.panels + first * panel_bytes;
  const uint8_t* exponents = product.exponents + first * groups * kPanelRows;
  const Fp4PairReader reader;
  const auto* x = reinterpret_cast<const float*>(product.x_tiles);  // a pair at a time
  __m512 sums[R][P] = {};
  for (int64_t group = 0; group < groups; ++group, exponents += kPanelRows, x += R * kPairs) {
    const int64_t fetch = ahead.Of(group);
    __m512i shifts[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      shifts[p] = Fp4PairReader::Shift(exponents + p * groups * kPanelRows);
    }
    for (int pair = 0; pair < kPairs; pair += kFp4WordCols / 2, w += kFp4WordBytes) {
      __m512i codes[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        avx512::FetchAhead(w + p * panel_bytes + fetch);
        codes[p] = _mm512_load_si512(w + p * panel_bytes);
      }
      AddPairs<0>(reader, x + pair, codes, shifts, sums);
    }
  }
  avx512::StoreFp4Sums(product, first, sums);
}

struct Tiles {
  static constexpr int64_t kMostPanels[kMostFp4Rows] = {4, 4, 4, 4, 3, 3, 2, 2};
  static int64_t MostPanels(int64_t rows) { return kMostPanels[rows - 1]; }

  template <int R>
  static constexpr Fp4TileFunction kOfRows[4] = {Tile<R, 1>, Tile<R, 2>,
                                                 Tile<R, kMostPanels[R - 1] >= 3 ? 3 : 1>,
                                                 Tile<R, kMostPanels[R - 1] >= 4 ? 4 : 1>};

  static Fp4TileFunction Of(int64_t rows, int64_t panels) {
    static constexpr const Fp4TileFunction* kOf[kMostFp4Rows] = {kOfRows<1>, kOfRows<2>, kOfRows<3>,
                                                                 kOfRows<4>, kOfRows<5>, kOfRows<6>,
                                                                 kOfRows<7>, kOfRows<8>};
    return kOf[rows - 1][panels - 1];
  }
};

}  // namespace

void MultiplyFewRowsByFp4(const PanelProduct& product) { avx512::MultiplyFp4<Tiles>(product); }

}  // namespace outrider::cpu::avx512_bf16
