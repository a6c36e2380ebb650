// Attention over one split of latent entries in AMX tiles. Longer than most files: all phases share
// one set of tiles and scratch.
//
// Sixteen rows are a group, two groups a pair. Scores are computed as S^T = C Q^T: sixteen entries
// are a tile just as they lie in the cache, and queries are packed once for all splits that a
// thread takes one after the other. Scores lie as [group of rows][key][row], so that the softmax
// runs down the keys with a row per lane; its weights leave it as tiles of rows. Then out = P V
// with V packed by pairs of keys. A row's bits depend on no other row of its tile, nor on which
// tile it is in. Elements of values that are no finite
// numbers are taken for zero: a tile multiplies them by the zero weight of rows that do not see
// them, and rows that see them have them in their scores.
//
// The unit multiplies while the vectors work: the softmax of a pair is taken in steps between the
// products of another's scores or outputs, and values are packed a few products before they are
// needed. All the while the next split's entries are fetched, a few lines with every product: many
// at once would hold up the loads of tiles, which wait for the same buffers. A thread's first split
// is fetched while its own scores are computed.

#include <immintrin.h>

#include <cstring>

#include "outrider/kernels/cpu/amx/entry_vectors.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/pair_softmax.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/amx/value_tiles.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/leaves.h"

namespace outrider::cpu::amx {

namespace {

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
        values_(weights_ + groups_ * key_tiles_ * kTile),
        outputs_(reinterpret_cast<float*>(values_ + kPackedValues)),
        fetcher_(block, Least(block.num_keys, block.is_prefetched ? block.num_keys : kScoreKeys)) {}

  void Run() {
    shapes_.UseTwoGroups(kTileRows, kTileRows);
    if (block_.packs_queries) {
      for (int64_t g = 0; g < groups_; ++g) PackQueries(g);
    }
    PlanFetching();
    PairSoftmax first = Softmax(0);
    Scores(0, first, nullptr);
    if (groups_ <= 2) {
      first.Finish();
      Outputs(0, nullptr);
      FinishRows(0);
      return;
    }
    // Pairs of groups are two at most.
    static_assert(kMostEntryRowsInTiles == 4 * kTileRows);
    PairSoftmax second = Softmax(2);
    Scores(2, second, &first);
    first.Finish();
    Outputs(0, &second);
    second.Finish();
    FinishRows(0);
    Outputs(2, nullptr);
    FinishRows(2);
  }

 private:
  static constexpr int64_t kScoreKeys = 64;  // that one group of rows takes at a time
  // Floats from four tiles of outputs to the next: not those of a page, or the lines of a row would
  // compete for one set of L1.
  static constexpr int64_t kOutputTiles = 4 * kTileRows * 16 + 32;

  int64_t RowsOf(int64_t group) const { return Least(kTileRows, block_.rows - group * kTileRows); }
  int64_t GroupsOf(int64_t group) const { return Least(2, groups_ - group); }

  PairSoftmax Softmax(int64_t group) {
    const int64_t scores_stride = padded_keys_ * kTileRows;
    const int64_t weights_stride = key_tiles_ * kTile;
    return {block_,
            group,
            GroupsOf(group),
            scores_ + group * scores_stride,
            scores_stride,
            weights_ + group * weights_stride,
            weights_stride,
            max_ + group * kTileRows,
            sum_ + group * kTileRows};
  }

  /// Spreads the next split's lines over all products.
  void PlanFetching() {
    const int64_t score_steps = (groups_ + 1) / 2 * key_tiles_ * steps_;
    const int64_t output_steps = groups_ * key_tiles_ * (block_.value_width / kTileCols);
    next_lines_ = fetcher_.LinesOf(block_.num_next) / (4 * (score_steps + output_steps)) + 1;
  }

  /// Queries as [step][pair of elements][row][2].
  void PackQueries(int64_t group) const {
    const int64_t rows = RowsOf(group);
    // First in tiles of rows, where that of all steps will be the last to be overwritten.
    BFloat16* to = queries_ + group * steps_ * kTile;
    avx512::RoundToTiles(block_.q + group * kTileRows, rows, block_.own_width, to);
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
      // Queries are to stay in L1.
      LoadTileOnce<kNumber>(keys.entries[0] + byte, keys.stride);
      return;
    }
    alignas(64) std::byte copy[kTileRows][64] = {};
    for (int64_t i = 0; i < keys.count; ++i) std::memcpy(copy[i], keys.entries[i] + byte, 64);
    LoadTile<kNumber>(copy);
  }

  /// Scores, not yet scaled, of a pair from a group on, with their maxima. Steps of another pair's
  /// softmax, if there is one, are taken between the products.
  void Scores(int64_t group, PairSoftmax& softmax, PairSoftmax* other) {
    // In the first pass over the entries those not fetched yet keep ahead of it.
    lines_ = next_lines_;
    if (group == 0 && !block_.is_prefetched) {
      lines_ += fetcher_.LinesOf(kTileCols) / (4 * steps_) + 1;
    }
    if (GroupsOf(group) == 2) {
      ScoreAll<2>(group, softmax, other);
    } else {
      ScoreAll<1>(group, softmax, other);
    }
  }

  template <int kGroups>
  void ScoreAll(int64_t group, PairSoftmax& softmax, PairSoftmax* other) {
    constexpr int64_t kKeys = kScoreKeys / kGroups;
    constexpr int64_t kMaxima = 16;  // calls for one block of keys
    const auto take_maximum = [&](int64_t t, int64_t n) {
      if constexpr (kGroups == 2) {
        softmax.TakeMaxima(0, t + 2 * n);
        softmax.TakeMaxima(1, t + 2 * n);
      } else {
        softmax.TakeMaxima(0, t + 4 * n);
        softmax.TakeMaxima(0, t + 4 * n + 2);
      }
    };
    const int64_t per_step = (kMaxima + steps_ - 1) / steps_;
    const int64_t lines = lines_ * 2 / kGroups;
    for (int64_t t = 0; t < block_.num_keys; t += kKeys) {
      // Meanwhile the maxima of the keys before.
      int64_t taken = t == 0 ? kMaxima : 0;
      ScoreBlock<kGroups>(t, group, [&](int product) __attribute__((always_inline)) {
        fetcher_.Fetch(lines);
        if (product < 3) return;
        for (const int64_t end = Least(kMaxima, taken + per_step); taken < end; ++taken) {
          take_maximum(t - kKeys, taken);
        }
        if (other != nullptr) other->Step();
      });
    }
    const int64_t last = (block_.num_keys - 1) / kKeys * kKeys;
    for (int64_t n = 0; n < kMaxima; ++n) take_maximum(last, n);
  }

  /// Scores of 32 keys from t on and two groups of rows, or of 64 and one. between(n) is called
  /// after product n of every four.
  template <int kGroups, typename Between>
  __attribute__((always_inline)) void ScoreBlock(int64_t t, int64_t group, Between&& between) {
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
        between(0);
        LoadTile<7>(other + step * kTile);
        MultiplyTiles<2, 4, 7>();
        between(1);
        LoadKeys<5>(second, byte);
        MultiplyTiles<1, 5, 6>();
        between(2);
        MultiplyTiles<3, 5, 7>();
        between(3);
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
        between(0);
        LoadKeys<5>(second, byte);
        MultiplyTiles<1, 5, 6>();
        between(1);
        LoadKeys<7>(third, byte);
        MultiplyTiles<2, 7, 6>();
        between(2);
        LoadKeys<4>(fourth, byte);
        MultiplyTiles<3, 4, 6>();
        between(3);
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

  /// Outputs of a pair from a group on, with steps of another's softmax as in Scores.
  void Outputs(int64_t group, PairSoftmax* other) {
    // Values are elements of keys, so those that are no finite numbers are in the scores of any
    // row.
    if (HasFiniteScores()) {
      OutputAny<true>(group, other);
    } else {
      OutputAny<false>(group, other);
    }
  }

  template <bool kAllFinite>
  void OutputAny(int64_t group, PairSoftmax* other) {
    if (GroupsOf(group) == 2) {
      OutputAll<2, kAllFinite>(group, other);
    } else {
      OutputAll<1, kAllFinite>(group, other);
    }
  }

  /// 32 columns at a time of two groups, or 64 of one.
  template <int kGroups, bool kAllFinite>
  void OutputAll(int64_t group, PairSoftmax* other) {
    constexpr int64_t kColumns = 2 * kTileCols / kGroups;
    const int64_t lines = 2 * next_lines_;
    ValueTiles<kGroups, kAllFinite> packed(block_, values_);
    // After product n of every four.
    const auto between = [&](int product) __attribute__((always_inline)) {
      packed.PackQuarter(product);
      fetcher_.Fetch(lines);
      if (product % 2 == 1 && other != nullptr) other->Step();
    };
    const BFloat16* weights = weights_ + group * key_tiles_ * kTile;
    const BFloat16* weights_of_second = weights + key_tiles_ * kTile;
    for (int64_t c = 0; c < block_.value_width; c += kColumns) {
      ZeroTile<0>();
      ZeroTile<1>();
      ZeroTile<2>();
      ZeroTile<3>();
      for (int64_t i = 0; i < key_tiles_; ++i) {
        const BFloat16* values = packed.First();
        LoadTile<4>(weights + i * kTile);
        LoadTile<6>(values);
        MultiplyTiles<0, 4, 6>();
        between(0);
        LoadTile<7>(values + kTile);
        MultiplyTiles<1, 4, 7>();
        between(1);
        if constexpr (kGroups == 2) {
          LoadTile<5>(weights_of_second + i * kTile);
          MultiplyTiles<2, 5, 6>();
          between(2);
          MultiplyTiles<3, 5, 7>();
          between(3);
        } else {
          LoadTile<6>(values + 2 * kTile);
          MultiplyTiles<2, 4, 6>();
          between(2);
          LoadTile<7>(values + 3 * kTile);
          MultiplyTiles<3, 4, 7>();
          between(3);
        }
        packed.Next();
      }
      float* to = outputs_ + c / kColumns * kOutputTiles;
      StoreTile<0>(to);
      StoreTile<1>(to + 256);
      StoreTile<2>(to + 512);
      StoreTile<3>(to + 768);
    }
  }

  /// The rows of a pair, from tiles, or merged into what is there.
  void FinishRows(int64_t group) {
    // Tiles of a row that lie in one four.
    const int64_t tiles = 4 / GroupsOf(group);
    const int64_t end = Least(block_.rows, (group + 2) * kTileRows);
    for (int64_t row = group * kTileRows; row < end; ++row) {
      const int64_t second = row / kTileRows - group;
      const float* from = outputs_ + second * 2 * kTileRows * 16 + row % kTileRows * 16;
      float* out = block_.out + row * block_.out_stride;
      const float* out_end = out + block_.value_width;
      avx2::MergeFactors factors = {};
      if (block_.merges) {
        factors = avx2::MergeSums(max_[row], sum_[row], block_.max[row], block_.sum[row]);
      } else {
        block_.max[row] = max_[row];
        block_.sum[row] = sum_[row];
      }
      for (; out < out_end; from += kOutputTiles) {
        for (int64_t i = 0; i < tiles && out < out_end; i += 2, out += 32) {
          FinishColumns(from + i * kTileRows * 16, factors, out);
        }
      }
    }
  }

  /// 32 columns of a row.
  __attribute__((always_inline)) void FinishColumns(const float* from,
                                                    const avx2::MergeFactors& factors,
                                                    float* out) const {
    __m512 first = _mm512_load_ps(from);
    __m512 second = _mm512_load_ps(from + kTileRows * 16);
    InOrder(first, second);
    if (block_.merges) {
      const __m512 keep = _mm512_set1_ps(factors.keep);
      const __m512 take = _mm512_set1_ps(factors.take);
      const auto merge = [&](const float* into, __m512 sums) {
        return _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(into), keep), _mm512_mul_ps(sums, take));
      };
      first = merge(out, first);
      second = merge(out + 16, second);
    }
    _mm512_storeu_ps(out, first);
    _mm512_storeu_ps(out + 16, second);
  }

  const EntryBlock& block_;
  int64_t groups_;  // of rows
  int64_t steps_;   // of 32 elements of a key
  int64_t key_tiles_;
  int64_t padded_keys_;
  BFloat16* queries_;
  float* scores_;
  BFloat16* weights_;
  BFloat16* values_;
  float* outputs_;  // of a pair, in fours of tiles
  EntryFetcher fetcher_;
  // To fetch with every product, of the next entries, and altogether in this pass.
  int64_t next_lines_ = 0;
  int64_t lines_ = 0;
  TileShapes shapes_;
  // What the softmax of this block alone has.
  alignas(64) float max_[kMostEntryRowsInTiles] = {};
  alignas(64) float sum_[kMostEntryRowsInTiles] = {};
};

}  // namespace

void AttendEntriesInTiles(const EntryBlock& block) { TileAttention(block).Run(); }

}  // namespace outrider::cpu::amx
