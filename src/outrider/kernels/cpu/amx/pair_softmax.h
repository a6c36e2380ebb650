// The softmax of a pair of groups of rows in steps, to be taken between products of tiles (include
// in AMX leaves only).
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/amx/entry_vectors.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

constexpr int64_t kTile = kTileRows * kTileCols;  // elements

/// A group's rows are lanes: scores lie as [key][row]. First the maxima are taken as scores come,
/// then steps make weights, [tile of keys][row][32 keys], zero past a row's keys, and their
/// sum: two chains, of every other pair of keys.
class PairSoftmax {
 public:
  /// Takes `groups` groups from `group` on, whose scores and weights lie one after the other.
  PairSoftmax(const EntryBlock& block, int64_t group, int64_t groups, const float* scores,
              int64_t scores_stride, BFloat16* weights, int64_t weights_stride, float* max,
              float* sum)
      : block_(block),
        max_to_(max),
        sum_to_(sum),
        scores_(scores),
        scores_stride_(scores_stride),
        weights_(weights),
        weights_stride_(weights_stride),
        key_tiles_((block.num_keys + kTileCols - 1) / kTileCols) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = (group + g) * kTileRows;
      const int64_t rows = Least(kTileRows, block.rows - row);
      const auto exist = static_cast<__mmask16>(0xffffU >> (16 - rows));
      visible_[g] = _mm512_maskz_loadu_epi32(exist, block.visible + row);
      // Keys that all rows of a whole group see need no mask.
      shared_[g] = 0;
      if (rows == kTileRows) shared_[g] = _mm512_reduce_min_epi32(visible_[g]);
      for (__m512& most : most_[g]) most = _mm512_set1_ps(-__builtin_inff());
    }
    ticks_ = groups * key_tiles_ * kTicksOfTile;
  }

  /// Takes keys t and t + 1 of a group of the pair, whose scores are there.
  __attribute__((always_inline)) void TakeMaxima(int64_t g, int64_t t) {
    const float* scores = scores_ + g * scores_stride_ + t * kTileRows;
    most_[g][0] = _mm512_mask_max_ps(most_[g][0], Sees(g, t), most_[g][0], _mm512_load_ps(scores));
    most_[g][1] = _mm512_mask_max_ps(most_[g][1], Sees(g, t + 1), most_[g][1],
                                     _mm512_load_ps(scores + kTileRows));
  }

  void Finish() {
    while (ticks_ > 0) Step();
  }

  __attribute__((noinline)) void Step() {
    if (ticks_ <= 0) return;
    --ticks_;
    if (tick_ == 0 && tile_ == 0) BeginGroup();
    if (tick_ < kTicksOfTile - 1) {
      TakeKeys();
      ++tick_;
      return;
    }
    StoreTile();
    tick_ = 0;
    if (++tile_ < key_tiles_) return;
    EndGroup();
    tile_ = 0;
    ++g_;
  }

 private:
  static constexpr int64_t kTicksOfTile = kTileCols / 4 + 1;

  __attribute__((always_inline)) __mmask16 Sees(int64_t g, int64_t t) const {
    if (t < shared_[g]) return 0xffff;
    return _mm512_cmpgt_epi32_mask(visible_[g], _mm512_set1_epi32(static_cast<int>(t)));
  }

  void BeginGroup() {
    max_ = _mm512_max_ps(most_[g_][0], most_[g_][1]);
    for (__m512& sum : sums_) sum = _mm512_setzero_ps();
  }

  /// Weights of four keys.
  __attribute__((always_inline)) void TakeKeys() {
    const int64_t t = tile_ * kTileCols + tick_ * 4;
    const float* scores = scores_ + g_ * scores_stride_ + t * kTileRows;
    const __m512 scale = _mm512_set1_ps(block_.scale * std::numbers::log2e_v<float>);
    const __m512 scaled_max = _mm512_mul_ps(max_, scale);
    __m512 weights[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512 score = _mm512_load_ps(scores + j * kTileRows);
      weights[j] = PowerOfTwo(_mm512_fmsub_ps(score, scale, scaled_max), Sees(g_, t + j));
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512i pairs = RoundToPairs(weights[2 * j], weights[2 * j + 1]);
      sums_[j] = AddPairs(sums_[j], pairs);
      pairs_[tick_ * 2 + j] = pairs;
    }
  }

  /// A tile of weights: rows of 32 keys.
  __attribute__((always_inline)) void StoreTile() {
    Transpose(pairs_);
    BFloat16* to = weights_ + g_ * weights_stride_ + tile_ * kTile;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_si512(to + r * kTileCols, pairs_[r]);
  }

  void EndGroup() const {
    _mm512_store_ps(max_to_ + g_ * kTileRows, _mm512_mul_ps(max_, _mm512_set1_ps(block_.scale)));
    _mm512_store_ps(sum_to_ + g_ * kTileRows, _mm512_add_ps(sums_[0], sums_[1]));
  }

  const EntryBlock& block_;
  float* max_to_;
  float* sum_to_;
  const float* scores_;
  int64_t scores_stride_;
  BFloat16* weights_;
  int64_t weights_stride_;
  int64_t key_tiles_;
  int64_t ticks_ = 0;
  // Where the next step is.
  int64_t g_ = 0;
  int64_t tile_ = 0;
  int64_t tick_ = 0;
  int64_t shared_[2] = {};
  __m512i visible_[2] = {};
  __m512 most_[2][2] = {};
  __m512 max_ = {};
  __m512 sums_[2] = {};
  Rows16 pairs_ = {};  // of keys, of the tile that is made
};

}  // namespace
}  // namespace outrider::cpu::amx
