// Attention over one split of latent entries in AMX tiles.
//
// Queries are bfloat16 numbers, as entries are. The weights of the softmax are rounded to the sum
// of two, which is 16 bits and more; a row's sum is that of its weights as rounded.
//
// Scores are computed as S^T = C Q^T: sixteen entries are a tile just as they lie in the cache, and
// queries are packed once for all splits that a thread takes one after the other. They lie as
// [group of rows][key][row], so that the softmax runs down the keys with a row per lane; its
// weights leave it as tiles of rows. Then out = P V with V packed by pairs of keys. A row's bits
// depend on no other row of its tile, nor on which tile it is in. Elements of values that are no
// finite numbers are taken for zero: a tile multiplies them by the zero weight of rows that do not
// see them, and rows that see them have them in their scores.
//
// While the scores of a split are computed from L2 all of the next one's entries are fetched, a few
// lines with every step. A thread's first split is fetched while its own scores are computed.

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "outrider/kernels/cpu/amx/entry_vectors.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/amx/vectors.h"

namespace outrider::cpu::amx {

namespace {

constexpr int64_t kTile = kTileRows * kTileCols;  // elements
constexpr int kParts = 2;                         // of a weight

class TileAttention {
 public:
  explicit TileAttention(const EntryBlock& block)
      : block_(block),
        groups_((block.rows + kTileRows - 1) / kTileRows),
        steps_(PaddedPart(block.own_width) / kTileCols),
        key_tiles_((block.num_keys + kTileCols - 1) / kTileCols),
        padded_keys_((block.num_keys + kScoreKeys - 1) / kScoreKeys * kScoreKeys),
        queries_(block.tiles),
        scores_(reinterpret_cast<float*>(queries_ + groups_ * steps_ * kTile)),
        weights_(reinterpret_cast<BFloat16*>(scores_ + groups_ * padded_keys_ * kTileRows)),
        values_(weights_ + groups_ * key_tiles_ * kParts * kTile),
        fetcher_(block, Least(block.num_keys, block.is_fetched ? block.num_keys : kScoreKeys)) {}

  void Run() {
    shapes_.UseTwoGroups(kTileRows, kTileRows);
    if (block_.packs_queries) {
      for (int64_t g = 0; g < groups_; ++g) PackQueries(g);
    }
    const int64_t steps = (groups_ + 1) / 2 * key_tiles_ * steps_;
    const int64_t next_lines = fetcher_.LinesOf(block_.num_next) / steps + 1;
    // In the first pass over the entries those not fetched yet keep ahead of it.
    lines_ = next_lines + (block_.is_fetched ? 0 : fetcher_.LinesOf(kTileCols) / steps_ + 1);
    int64_t g = 0;
    for (; g + 2 <= groups_; g += 2) {
      for (int64_t t = 0; t < block_.num_keys; t += kTileCols) Scores<2>(t, g);
      lines_ = next_lines;
    }
    if (g < groups_) {
      for (int64_t t = 0; t < block_.num_keys; t += kScoreKeys) Scores<1>(t, g);
    }
    for (g = 0; g < groups_; ++g) Weights(g);
    // Values are elements of keys, so those that are no finite numbers are in the scores of any
    // row.
    if (HasFiniteScores()) {
      Outputs<true>();
    } else {
      Outputs<false>();
    }
  }

 private:
  int64_t RowsOf(int64_t group) const { return Least(kTileRows, block_.rows - group * kTileRows); }

  /// Queries as [step][pair of elements][row][2].
  void PackQueries(int64_t group) const {
    const int64_t rows = RowsOf(group);
    // First in tiles of rows, where that of all steps will be the last to be overwritten.
    BFloat16* to = queries_ + group * steps_ * kTile;
    RoundToTiles(block_.q + group * kTileRows, rows, block_.own_width, to);
    for (int64_t step = steps_ - 1; step >= 0; --step) {
      Rows16 pairs = {};
      for (int64_t r = 0; r < rows; ++r) {
        pairs[r] = _mm512_loadu_si512(to + (step * rows + r) * kTileCols);
      }
      Transpose(pairs);
      for (int64_t i = 0; i < 16; ++i) {
        _mm512_store_si512(to + step * kTile + i * kTileCols, pairs[i]);
      }
    }
  }

  /// Sixteen entries from one on.
  struct Keys {
    const std::byte* const* entries;
    int64_t count;   // may be less than 1
    int64_t stride;  // bytes from one to the next, or 0: they do not lie like that
  };

  Keys KeysAt(int64_t t) const {
    Keys keys = {block_.entries + t, Least(kTileRows, block_.num_keys - t), 0};
    if (keys.count < kTileRows) return keys;
    const int64_t stride = keys.entries[1] - keys.entries[0];
    for (int64_t i = 2; i < kTileRows; ++i) {
      if (keys.entries[i] - keys.entries[i - 1] != stride) return keys;
    }
    keys.stride = stride;
    return keys;
  }

  template <int kNumber>
  static __attribute__((always_inline)) void LoadKeys(const Keys& keys, int64_t byte) {
    if (keys.stride != 0) {
      LoadTile<kNumber>(keys.entries[0] + byte, keys.stride);
      return;
    }
    alignas(64) std::byte copy[kTileRows][64] = {};
    for (int64_t i = 0; i < keys.count; ++i) std::memcpy(copy[i], keys.entries[i] + byte, 64);
    LoadTile<kNumber>(copy);
  }

  /// Scores, not yet scaled: of 32 keys from t on and two groups of rows, or of 64 and one.
  template <int kGroups>
  void Scores(int64_t t, int64_t group) {
    ZeroTile<0>();
    ZeroTile<1>();
    ZeroTile<2>();
    ZeroTile<3>();
    const BFloat16* query = queries_ + group * steps_ * kTile;
    float* to = scores_ + (group * padded_keys_ + t) * kTileRows;
    const Keys first = KeysAt(t);
    const Keys second = KeysAt(t + kTileRows);
    int64_t byte = block_.groups[0].key * 2;
    if constexpr (kGroups == 2) {
      const BFloat16* other = query + steps_ * kTile;
      for (int64_t step = 0; step < steps_; ++step, byte += 64) {
        LoadTile<6>(query + step * kTile);
        LoadKeys<4>(first, byte);
        MultiplyTiles<0, 4, 6>();
        LoadTile<7>(other + step * kTile);
        MultiplyTiles<2, 4, 7>();
        LoadKeys<5>(second, byte);
        MultiplyTiles<1, 5, 6>();
        MultiplyTiles<3, 5, 7>();
        fetcher_.Fetch(lines_);
      }
      StoreTile<2>(to + padded_keys_ * kTileRows);
      StoreTile<3>(to + (padded_keys_ + kTileRows) * kTileRows);
    } else {
      const Keys third = KeysAt(t + 2 * kTileRows);
      const Keys fourth = KeysAt(t + 3 * kTileRows);
      for (int64_t step = 0; step < steps_; ++step, byte += 64) {
        LoadTile<6>(query + step * kTile);
        LoadKeys<4>(first, byte);
        MultiplyTiles<0, 4, 6>();
        LoadKeys<5>(second, byte);
        MultiplyTiles<1, 5, 6>();
        LoadKeys<7>(third, byte);
        MultiplyTiles<2, 7, 6>();
        LoadKeys<4>(fourth, byte);
        MultiplyTiles<3, 4, 6>();
        fetcher_.Fetch(2 * lines_);
      }
      StoreTile<2>(to + 2 * kTileRows * kTileRows);
      StoreTile<3>(to + 3 * kTileRows * kTileRows);
    }
    StoreTile<0>(to);
    StoreTile<1>(to + kTileRows * kTileRows);
  }

  /// Whether all scores of the first group of rows are finite.
  bool HasFiniteScores() const {
    const __m512 zero = _mm512_setzero_ps();
    __m512 zeros[4] = {zero, zero, zero, zero};
    for (int64_t t = 0; t < key_tiles_ * kTileCols; t += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        zeros[j] = _mm512_fmadd_ps(_mm512_load_ps(scores_ + (t + j) * kTileRows), zero, zeros[j]);
      }
    }
    const __m512 sum =
        _mm512_add_ps(_mm512_add_ps(zeros[0], zeros[1]), _mm512_add_ps(zeros[2], zeros[3]));
    return _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) == 0;
  }

  /// The softmax of a group of rows, one per lane: maximum, sum, and weights as
  /// [tile of keys][part][row][32 keys], zero past a row's keys. A sum is four chains, one per
  /// key % 4, added in a tree.
  void Weights(int64_t group) const {
    const auto exist = static_cast<__mmask16>(0xffffU >> (16 - RowsOf(group)));
    const __m512i visible = _mm512_maskz_loadu_epi32(exist, block_.visible + group * kTileRows);
    const float* scores = scores_ + group * padded_keys_ * kTileRows;
    const __m512 scale = _mm512_set1_ps(block_.scale);
    const auto sees = [&](int64_t t) {
      return _mm512_cmpgt_epi32_mask(visible, _mm512_set1_epi32(static_cast<int>(t)));
    };
    const auto score = [&](int64_t t) {
      return _mm512_mul_ps(_mm512_load_ps(scores + t * kTileRows), scale);
    };
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 most[4] = {lowest, lowest, lowest, lowest};
    for (int64_t t = 0; t < key_tiles_ * kTileCols; t += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        most[j] = _mm512_mask_max_ps(most[j], sees(t + j), most[j], score(t + j));
      }
    }
    const __m512 max =
        _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
    __m512 sums[4] = {};
    BFloat16* to = weights_ + group * key_tiles_ * kParts * kTile;
    for (int64_t t = 0; t < key_tiles_ * kTileCols; t += kTileCols, to += kParts * kTile) {
      Rows16 high;
      Rows16 low;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const int64_t even = t + 2 * i;
        const __m512 a = Weight(_mm512_sub_ps(score(even), max), sees(even));
        const __m512 b = Weight(_mm512_sub_ps(score(even + 1), max), sees(even + 1));
        const __m512 a_high = RoundToUpper(a);
        const __m512 b_high = RoundToUpper(b);
        const __m512 a_low = RoundToUpper(_mm512_sub_ps(a, a_high));
        const __m512 b_low = RoundToUpper(_mm512_sub_ps(b, b_high));
        __m512& even_sum = sums[i % 2 * 2];
        __m512& odd_sum = sums[i % 2 * 2 + 1];
        even_sum = _mm512_add_ps(even_sum, _mm512_add_ps(a_high, a_low));
        odd_sum = _mm512_add_ps(odd_sum, _mm512_add_ps(b_high, b_low));
        high[i] = Pairs(a_high, b_high);
        low[i] = Pairs(a_low, b_low);
      }
      Transpose(high);
      Transpose(low);
      for (int64_t r = 0; r < kTileRows; ++r) {
        _mm512_store_si512(to + r * kTileCols, high[r]);
        _mm512_store_si512(to + kTile + r * kTileCols, low[r]);
      }
    }
    const __m512 sum =
        _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    _mm512_mask_storeu_ps(block_.max + group * kTileRows, exist, max);
    _mm512_mask_storeu_ps(block_.sum + group * kTileRows, exist, sum);
  }

  /// Of keys t and t + 1 the 32 values from c on, as pairs: see Outputs.
  template <bool kAllFinite>
  void PackPair(int64_t t, int64_t c, BFloat16* to) const {
    const auto load = [&](int64_t key) {
      if (key >= block_.num_keys) return _mm512_setzero_si512();
      const __m512i x = _mm512_loadu_si512(block_.entries[key] + (block_.groups[0].value + c) * 2);
      if constexpr (kAllFinite) return x;
      const __m512i infinity = _mm512_set1_epi16(0x7f80);
      const __m512i exponent = _mm512_and_si512(x, infinity);
      return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(exponent, infinity), x);
    };
    const __m512i even = load(t);
    const __m512i odd = load(t + 1);
    to += t / kTileCols * 2 * kTile + t % kTileCols * 16;
    _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(to + kTile, _mm512_unpackhi_epi16(even, odd));
  }

  /// Outputs, 32 columns at a time. Their values are packed in L1, as [tile of keys][2][pair of
  /// keys][16 columns][2], while the unit multiplies the 32 columns before. Of these the first tile
  /// has those that unpacking the lower halves of vectors gives: fours 0, 2, 4, 6.
  template <bool kAllFinite>
  void Outputs() {
    const int64_t keys = key_tiles_ * kTileCols;
    const int64_t steps = groups_ * key_tiles_;
    const int64_t keys_per_step = (keys / 2 + steps - 1) / steps * 2;
    BFloat16* values = values_;
    BFloat16* next_values = values_ + keys * kTileCols;
    for (int64_t t = 0; t < keys; t += 2) PackPair<kAllFinite>(t, 0, values);
    for (int64_t c = 0; c < block_.value_width; c += kTileCols) {
      int64_t packed = c + kTileCols < block_.value_width ? 0 : keys;
      for (int64_t g = 0; g < groups_; ++g) {
        ZeroTile<0>();
        ZeroTile<1>();
        ZeroTile<2>();
        ZeroTile<3>();
        const BFloat16* weights = weights_ + g * key_tiles_ * kParts * kTile;
        for (int64_t i = 0; i < key_tiles_; ++i) {
          LoadTile<4>(weights + 2 * i * kTile);
          LoadTile<6>(values + 2 * i * kTile);
          MultiplyTiles<0, 4, 6>();
          LoadTile<7>(values + (2 * i + 1) * kTile);
          MultiplyTiles<1, 4, 7>();
          LoadTile<5>(weights + (2 * i + 1) * kTile);
          MultiplyTiles<2, 5, 6>();
          MultiplyTiles<3, 5, 7>();
          for (const int64_t end = Least(keys, packed + keys_per_step); packed < end; packed += 2) {
            PackPair<kAllFinite>(packed, c + kTileCols, next_values);
          }
        }
        StoreOutputs(c, g);
      }
      std::swap(values, next_values);
    }
  }

  /// The sums of a pair of column tiles, two parts each, in the order of columns.
  void StoreOutputs(int64_t c, int64_t group) const {
    alignas(64) float sums[4][256];
    StoreTile<0>(sums[0]);
    StoreTile<1>(sums[1]);
    StoreTile<2>(sums[2]);
    StoreTile<3>(sums[3]);
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    float* out = block_.out + group * kTileRows * block_.out_stride + c;
    for (int64_t r = 0; r < RowsOf(group); ++r, out += block_.out_stride) {
      const int64_t at = r * 16;
      const __m512 a = _mm512_add_ps(_mm512_load_ps(sums[0] + at), _mm512_load_ps(sums[2] + at));
      const __m512 b = _mm512_add_ps(_mm512_load_ps(sums[1] + at), _mm512_load_ps(sums[3] + at));
      _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
      _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
    }
  }

  static constexpr int64_t kScoreKeys = 64;  // that one group of rows takes at a time

  const EntryBlock& block_;
  int64_t groups_;  // of rows
  int64_t steps_;   // of 32 elements of a key
  int64_t key_tiles_;
  int64_t padded_keys_;
  BFloat16* queries_;
  float* scores_;
  BFloat16* weights_;
  BFloat16* values_;
  EntryFetcher fetcher_;
  int64_t lines_ = 0;  // to fetch with a step of scores
  TileShapes shapes_;
};

}  // namespace

void AttendEntriesInTiles(const EntryBlock& block) { TileAttention(block).Run(); }

}  // namespace outrider::cpu::amx
