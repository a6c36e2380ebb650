// Products with FP4 codes of few rows of floats, each sum one chain of FMAs over k, and panels of
// codes as panels of bfloat16 for more rows.

#include "outrider/kernels/cpu/avx512/fp4_tiles.h"
#include "outrider/kernels/cpu/avx512/leaves.h"

namespace outrider::cpu::avx512 {

namespace {

struct Tiles {
  static constexpr int64_t kMostPanels[kMostFp4Rows] = {4, 4, 4, 4, 3, 3, 2, 2};
  static int64_t MostPanels(int64_t rows) { return kMostPanels[rows - 1]; }

  template <int R>
  static constexpr Fp4TileFunction kOfRows[4] = {
      MultiplyFp4Tile<R, 1, false>, MultiplyFp4Tile<R, 2, false>,
      MultiplyFp4Tile<R, kMostPanels[R - 1] >= 3 ? 3 : 1, false>,
      MultiplyFp4Tile<R, kMostPanels[R - 1] >= 4 ? 4 : 1, false>};

  static Fp4TileFunction Of(int64_t rows, int64_t panels) {
    static constexpr const Fp4TileFunction* kOf[kMostFp4Rows] = {kOfRows<1>, kOfRows<2>, kOfRows<3>,
                                                                 kOfRows<4>, kOfRows<5>, kOfRows<6>,
                                                                 kOfRows<7>, kOfRows<8>};
    return kOf[rows - 1][panels - 1];
  }
};

template <int kPair>
__attribute__((always_inline)) inline void StorePairs(const Fp4PairReader& reader, __m512i codes,
                                                      __m512i shift, BFloat16* to) {
  if constexpr (kPair < kFp4WordCols / 2) {
    _mm512_store_si512(to + kPair * 2 * kPanelRows, reader.Read<kPair>(codes, shift));
    StorePairs<kPair + 1>(reader, codes, shift, to);
  }
}

}  // namespace

void MultiplyFewRowsByFp4(const PanelProduct& product) { MultiplyFp4<Tiles>(product); }

void WidenFp4Panel(const std::byte* codes, const uint8_t* exponents, int64_t cols, BFloat16* to) {
  const Fp4PairReader reader;
  for (int64_t group = 0; group < cols; group += kFp4Group, exponents += kPanelRows) {
    const __m512i shift = Fp4PairReader::Shift(exponents);
    for (int64_t k = 0; k < kFp4Group; k += kFp4WordCols) {
      StorePairs<0>(reader, _mm512_load_si512(codes), shift, to);
      codes += kFp4WordBytes;
      to += kFp4WordCols * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx512
