// Attention over one split of latent entries in AMX tiles.
//
// A float is the sum of three bfloat16 numbers, each with the next 8 bits of it. So queries and the
// weights of the softmax, in three parts, times bfloat16 entries lose nothing that float32 would
// keep; and since the unit is many times as fast as FMAs, three products are still cheap. The first
// parts have a sum of their own, the other two another.
//
// Scores are computed as S^T = C Q^T: sixteen entries are a tile just as they lie in the cache, and
// the queries of sixteen rows are packed once per call. The softmax runs down the keys as with
// vectors (avx2/entry_softmax.h). Then out = P V with P packed by rows and V by pairs of keys. A
// row's bits depend on no other row of its tile, nor on which tile it is in. Elements of values
// that are no finite numbers are taken for zero: a tile multiplies them by the zero weight of rows
// that do not see them, and rows that see them have them in their scores.

#include <immintrin.h>

#include <cstring>

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/avx2/entry_softmax.h"

namespace outrider::cpu::amx {

namespace {

constexpr int64_t kTile = kTileRows * kTileCols;  // elements
constexpr int kParts = 3;

using Rows16 = __m512i[16];

/// Rows of 16 numbers of 32 bits become columns.
inline __attribute__((always_inline)) void Transpose(Rows16& rows) {
  Rows16 pairs;
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  Rows16 fours;
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

/// The bfloat16 number of the upper half of each float; x keeps the rest.
inline __attribute__((always_inline)) __m256i TakePart(__m512& x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i upper = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(upper));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

inline __attribute__((always_inline)) __m512i TakePart(__m512& low, __m512& high) {
  const __m256i first = TakePart(low);
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), TakePart(high), 1);
}

class TileAttention {
 public:
  explicit TileAttention(const EntryBlock& block)
      : block_(block),
        groups_((block.rows + kTileRows - 1) / kTileRows),
        steps_(PaddedPart(block.own_width) / kTileCols),
        key_tiles_((block.num_keys + kTileCols - 1) / kTileCols),
        stride_(ScoreStride(block.rows)),
        queries_(block.tiles),
        weights_(queries_ + groups_ * steps_ * kParts * kTile),
        values_(weights_ + groups_ * key_tiles_ * kParts * kTile) {}

  void Run() {
    shapes_.UseTwoGroups(kTileRows, kTileRows);
    for (int64_t g = 0; g < groups_; ++g) PackQueries(g);
    for (int64_t t = 0; t < block_.num_keys; t += kTileCols) {
      const Keys keys[2] = {KeysAt(t), KeysAt(t + kTileRows)};
      for (int64_t g = 0; g < groups_; ++g) Scores(t, keys, g, g == 0);
    }
    for (int64_t r = 0; r < block_.rows; r += kRowLanes) avx2::Softmax(block_, r, stride_);
    for (int64_t g = 0; g < groups_; ++g) PackWeights(g);
    PackValues();
    for (int64_t c = 0; c < block_.value_width; c += kTileCols) {
      for (int64_t g = 0; g < groups_; ++g) Outputs(c, g);
    }
  }

 private:
  int64_t RowsOf(int64_t group) const {
    return avx2::Least(kTileRows, block_.rows - group * kTileRows);
  }

  /// Queries times scale as [step][part][pair of elements][row][2].
  void PackQueries(int64_t group) const {
    const __m512 scale = _mm512_set1_ps(block_.scale);
    BFloat16* to = queries_ + group * steps_ * kParts * kTile;
    for (int64_t step = 0; step < steps_; ++step) {
      const int64_t first = step * kTileCols;
      const int64_t count = avx2::Least(kTileCols, block_.own_width - first);
      const uint32_t exist = count == kTileCols ? ~0U : (1U << count) - 1;
      Rows16 parts[kParts] = {};
      for (int64_t r = 0; r < RowsOf(group); ++r) {
        const float* q = block_.q[group * kTileRows + r] + first;
        __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(exist), q);
        __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(exist >> 16), q + 16);
        low = _mm512_mul_ps(low, scale);
        high = _mm512_mul_ps(high, scale);
        for (Rows16& part : parts) part[r] = TakePart(low, high);
      }
      for (Rows16& part : parts) {
        Transpose(part);
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * kTileCols, part[i]);
        to += kTile;
      }
    }
  }

  /// Sixteen entries from one on.
  struct Keys {
    const std::byte* const* entries;
    int64_t count;
    int64_t stride;  // bytes from one to the next, or 0: they do not lie like that
  };

  Keys KeysAt(int64_t t) const {
    Keys keys = {block_.entries + t, avx2::Least(kTileRows, block_.num_keys - t), 0};
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

  /// Scores of 32 keys from t on and a group of rows.
  void Scores(int64_t t, const Keys (&keys)[2], int64_t group, bool fetches) const {
    ZeroTile<0>();
    ZeroTile<1>();
    ZeroTile<2>();
    ZeroTile<3>();
    const BFloat16* query = queries_ + group * steps_ * kParts * kTile;
    for (int64_t step = 0; step < steps_; ++step, query += kParts * kTile) {
      const int64_t byte = block_.groups[0].key * 2 + step * 64;
      LoadKeys<4>(keys[0], byte);
      LoadTile<6>(query);
      MultiplyTiles<0, 4, 6>();
      LoadTile<7>(query + kTile);
      MultiplyTiles<2, 4, 7>();
      LoadKeys<5>(keys[1], byte);
      MultiplyTiles<1, 5, 6>();
      MultiplyTiles<3, 5, 7>();
      LoadTile<6>(query + 2 * kTile);
      MultiplyTiles<2, 4, 6>();
      MultiplyTiles<3, 5, 6>();
      if (fetches) Fetch(t + kTileCols, byte);
    }
    alignas(64) float sums[4][256];
    StoreTile<0>(sums[0]);
    StoreTile<1>(sums[1]);
    StoreTile<2>(sums[2]);
    StoreTile<3>(sums[3]);
    const auto mask = static_cast<__mmask16>(0xffffU >> (16 - RowsOf(group)));
    for (int64_t i = 0; i < avx2::Least(kTileCols, block_.num_keys - t); ++i) {
      const int64_t at = i % 16 * 16;
      const __m512 sum =
          _mm512_add_ps(_mm512_load_ps(sums[i / 16] + at), _mm512_load_ps(sums[2 + i / 16] + at));
      _mm512_mask_storeu_ps(block_.scores + (t + i) * stride_ + group * kTileRows, mask, sum);
    }
  }

  /// A line of each of the 32 entries from t on.
  void Fetch(int64_t t, int64_t byte) const {
    for (const int64_t end = avx2::Least(t + kTileCols, block_.num_keys); t < end; ++t) {
      _mm_prefetch(reinterpret_cast<const char*>(block_.entries[t] + byte), _MM_HINT_T1);
    }
  }

  /// Weights as [tile of keys][part][row][32 keys], zero past a row's keys.
  void PackWeights(int64_t group) const {
    BFloat16* to = weights_ + group * key_tiles_ * kParts * kTile;
    const int64_t rows = RowsOf(group);
    const auto exist = static_cast<__mmask16>(0xffffU >> (16 - rows));
    const __m512i visible = _mm512_maskz_loadu_epi32(exist, block_.visible + group * kTileRows);
    for (int64_t t = 0; t < block_.num_keys; t += kTileCols, to += kParts * kTile) {
      Rows16 halves[2];
      for (int64_t i = 0; i < kTileCols; ++i) {
        __m512i weights = _mm512_setzero_si512();
        if (t + i < block_.num_keys) {
          const __mmask16 sees =
              _mm512_cmpgt_epi32_mask(visible, _mm512_set1_epi32(static_cast<int>(t + i)));
          weights =
              _mm512_maskz_loadu_epi32(sees, block_.scores + (t + i) * stride_ + group * kTileRows);
        }
        halves[i / 16][i % 16] = weights;
      }
      Transpose(halves[0]);
      Transpose(halves[1]);
      for (int64_t r = 0; r < kTileRows; ++r) {
        __m512 low = _mm512_castsi512_ps(halves[0][r]);
        __m512 high = _mm512_castsi512_ps(halves[1][r]);
        for (int64_t part = 0; part < kParts; ++part) {
          _mm512_store_si512(to + part * kTile + r * kTileCols, TakePart(low, high));
        }
      }
    }
  }

  /// Values as [pair of column tiles][tile of keys][2][pair of keys][16 columns][2]. Of 32 columns
  /// the first tile has those that unpacking the lower halves of vectors gives: fours 0, 2, 4, 6.
  void PackValues() const {
    const __m512i infinity = _mm512_set1_epi16(0x7f80);
    const auto load = [&](int64_t t, int64_t c) {
      if (t >= block_.num_keys) return _mm512_setzero_si512();
      const std::byte* from = block_.entries[t] + (block_.groups[0].value + c) * 2;
      const __m512i x = _mm512_loadu_si512(from);
      const __mmask32 is_finite = _mm512_cmpneq_epi16_mask(_mm512_and_si512(x, infinity), infinity);
      return _mm512_maskz_mov_epi16(is_finite, x);
    };
    const int64_t column_tiles = 2 * key_tiles_ * kTile;
    for (int64_t t = 0; t < key_tiles_ * kTileCols; t += 2) {
      BFloat16* to = values_ + t / kTileCols * 2 * kTile + t % kTileCols * 16;
      for (int64_t c = 0; c < block_.value_width; c += kTileCols, to += column_tiles) {
        const __m512i even = load(t, c);
        const __m512i odd = load(t + 1, c);
        _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(to + kTile, _mm512_unpackhi_epi16(even, odd));
      }
    }
  }

  /// 32 columns from c on of a group of rows.
  void Outputs(int64_t c, int64_t group) const {
    ZeroTile<0>();
    ZeroTile<1>();
    ZeroTile<2>();
    ZeroTile<3>();
    const BFloat16* values = values_ + c / kTileCols * 2 * key_tiles_ * kTile;
    const BFloat16* weights = weights_ + group * key_tiles_ * kParts * kTile;
    for (int64_t i = 0; i < key_tiles_; ++i, values += 2 * kTile, weights += kParts * kTile) {
      LoadTile<6>(values);
      LoadTile<4>(weights);
      MultiplyTiles<0, 4, 6>();
      LoadTile<5>(weights + kTile);
      MultiplyTiles<2, 5, 6>();
      LoadTile<7>(values + kTile);
      MultiplyTiles<1, 4, 7>();
      MultiplyTiles<3, 5, 7>();
      LoadTile<4>(weights + 2 * kTile);
      MultiplyTiles<2, 4, 6>();
      MultiplyTiles<3, 4, 7>();
    }
    alignas(64) float sums[4][256];
    StoreTile<0>(sums[0]);
    StoreTile<1>(sums[1]);
    StoreTile<2>(sums[2]);
    StoreTile<3>(sums[3]);
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t r = 0; r < RowsOf(group); ++r) {
      const int64_t at = r * 16;
      const __m512 a = _mm512_add_ps(_mm512_load_ps(sums[0] + at), _mm512_load_ps(sums[2] + at));
      const __m512 b = _mm512_add_ps(_mm512_load_ps(sums[1] + at), _mm512_load_ps(sums[3] + at));
      float* out = block_.out + (group * kTileRows + r) * block_.out_stride + c;
      _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
      _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
    }
  }

  const EntryBlock& block_;
  int64_t groups_;  // of rows
  int64_t steps_;   // of 32 elements of a key
  int64_t key_tiles_;
  int64_t stride_;  // of scores
  BFloat16* queries_;
  BFloat16* weights_;
  BFloat16* values_;
  TileShapes shapes_;
};

}  // namespace

void AttendEntriesInTiles(const EntryBlock& block) { TileAttention(block).Run(); }

}  // namespace outrider::cpu::amx
