// Attention over a block of keys with a running softmax, written once for vectors of any width
// (include in leaves only).
//
// Scores: a tile of rows and keys keeps a sum of one vector per row and key; lane l takes the
// elements i % kLanes = l in rising order, then the lanes are added in a tree. Scores lie as
// [key][row], so that the softmax runs down the keys with one row per lane: its maximum and its sum
// are chains in order of the keys. Output: a tile of rows and columns adds p_t v_t in order of the
// keys, from the value of the block before. None of these orders depends on the other rows, so
// neither do a row's bits.
//
// What an instruction set brings is a class `Isa`, local to its leaf file:
//   Vector, kLanes         float32 lanes
//   kTileKeys              keys of a score tile of kKeyTileRows rows
//   kTileVectors           vectors of columns of an output tile
//   Zero, Load and Store (aligned), Broadcast, MultiplyAdd(a, b, sum), SumsOfLanes (of four
//   vectors)
#pragma once

#include <immintrin.h>

#include <array>
#include <utility>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu {
// One copy per leaf file: these must not become symbols shared between instruction sets.
namespace {  // NOLINT(google-build-namespaces)

using avx2::Least;
using avx2::Most;

constexpr int64_t kKeyTileRows = 4;

/// scores[t * stride + r] = scale * dot(q[r], keys[t]) for R rows and T keys. Writes kKeyTileRows
/// scores per key also where R is less: only the last tile has fewer rows, and behind it is
/// padding.
template <typename Isa, int R, int T>
void KeyScoreTile(const float* q, const float* keys, int64_t width, float scale, float* scores,
                  int64_t stride) {
  typename Isa::Vector acc[T][kKeyTileRows];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < kKeyTileRows; ++r) acc[t][r] = Isa::Zero();
  }
  for (int64_t i = 0; i < width; i += Isa::kLanes) {
    typename Isa::Vector k[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) k[t] = Isa::Load(keys + t * width + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Isa::Vector qr = Isa::Load(q + r * width + i);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) Isa::MultiplyAdd(qr, k[t], acc[t][r]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const __m128 dots = Isa::SumsOfLanes(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
    _mm_store_ps(scores + t * stride, _mm_mul_ps(dots, _mm_set1_ps(scale)));
  }
}

using KeyScores = void (*)(const float*, const float*, int64_t, float, float*, int64_t);

/// Score tiles of R rows by the number of keys - 1.
template <typename Isa, int R, int... kKeys>
constexpr std::array<KeyScores, sizeof...(kKeys)> KeyScoreTiles(
    std::integer_sequence<int, kKeys...> /*keys*/) {
  return {KeyScoreTile<Isa, R, kKeys + 1>...};
}

/// Fetches the entries of the next block in as many steps as there are tiles, so that memory and
/// arithmetic keep busy side by side.
class KeyReadAhead {
 public:
  KeyReadAhead(const KeyBlock& block, int64_t steps)
      : block_(block),
        lines_per_entry_((block.entry_bytes + 63) / 64),
        per_step_((lines_per_entry_ * block.num_next + steps - 1) / steps) {}

  void Step() {
    for (int64_t i = 0; i < per_step_ && entry_ < block_.num_next; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(block_.next_entries[entry_]) + line_ * 64,
                   _MM_HINT_T1);
      if (++line_ == lines_per_entry_) {
        line_ = 0;
        ++entry_;
      }
    }
  }

 private:
  const KeyBlock& block_;
  int64_t lines_per_entry_;
  int64_t per_step_;
  int64_t entry_ = 0;
  int64_t line_ = 0;
};

template <typename Isa>
void KeyScoresOf(const KeyBlock& block, int64_t stride) {
  constexpr auto kKeys = std::make_integer_sequence<int, Isa::kTileKeys>();
  constexpr std::array kTiles = {KeyScoreTiles<Isa, 1>(kKeys), KeyScoreTiles<Isa, 2>(kKeys),
                                 KeyScoreTiles<Isa, 3>(kKeys), KeyScoreTiles<Isa, 4>(kKeys)};
  const int64_t row_tiles = (block.rows + kKeyTileRows - 1) / kKeyTileRows;
  const int64_t key_tiles = (block.num_keys + Isa::kTileKeys - 1) / Isa::kTileKeys;
  KeyReadAhead ahead(block, row_tiles * key_tiles);
  for (int64_t r = 0; r < block.rows; r += kKeyTileRows) {
    const int64_t rows = Least(kKeyTileRows, block.rows - r);
    int64_t keys = 0;
    for (int64_t i = r; i < r + rows; ++i) keys = Most(keys, block.visible[i]);
    for (int64_t t = 0; t < keys; t += Isa::kTileKeys) {
      const int64_t count = Least(Isa::kTileKeys, keys - t);
      kTiles[rows - 1][count - 1](block.q + r * block.width, block.keys + t * block.width,
                                  block.width, block.scale, block.scores + t * stride + r, stride);
      ahead.Step();
    }
  }
}

/// Eight rows from r on: new maximum, probabilities in place of the scores, sum; returns in `keep`
/// the factor exp(m - m') for what the rows have summed so far.
inline void RunningSoftmax(const KeyBlock& block, int64_t r, int64_t stride, float* keep) {
  const __m256i lanes = avx2::TailMask(block.rows - r < 8 ? block.rows - r : 8);
  const __m256i visible = _mm256_maskload_epi32(block.visible + r, lanes);
  const __m256 old_max = _mm256_maskload_ps(block.max + r, lanes);
  float* scores = block.scores + r;
  int64_t keys = 0;
  for (int64_t i = r; i < Least(r + 8, block.rows); ++i) keys = Most(keys, block.visible[i]);

  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 max = old_max;
  for (int64_t t = 0; t < keys; ++t) {
    const __m256i sees = _mm256_cmpgt_epi32(visible, _mm256_set1_epi32(static_cast<int>(t)));
    const __m256 s = _mm256_load_ps(scores + t * stride);
    max = _mm256_max_ps(max, _mm256_blendv_ps(lowest, s, _mm256_castsi256_ps(sees)));
  }
  // A row without keys so far has m = m' = -infinity: its factor is 1, not exp(NaN).
  const __m256 unchanged = _mm256_cmp_ps(old_max, max, _CMP_EQ_OQ);
  const __m256 factor =
      _mm256_blendv_ps(avx2::Weight(_mm256_sub_ps(old_max, max)), _mm256_set1_ps(1.0f), unchanged);
  __m256 sum = _mm256_mul_ps(_mm256_maskload_ps(block.sum + r, lanes), factor);
  for (int64_t t = 0; t < keys; ++t) {
    const __m256i sees = _mm256_cmpgt_epi32(visible, _mm256_set1_epi32(static_cast<int>(t)));
    const __m256 p = avx2::Weight(_mm256_sub_ps(_mm256_load_ps(scores + t * stride), max));
    const __m256 seen = _mm256_and_ps(p, _mm256_castsi256_ps(sees));
    _mm256_store_ps(scores + t * stride, seen);
    sum = _mm256_add_ps(sum, seen);
  }
  _mm256_maskstore_ps(block.max + r, lanes, max);
  _mm256_maskstore_ps(block.sum + r, lanes, sum);
  _mm256_store_ps(keep, factor);
}

/// out[r] += sum over t in [first, last) of p[t][r] * values[t], for R rows and V vectors of
/// columns.
template <typename Isa, int R, int V>
void KeyOutputTile(const float* p, int64_t stride, const float* values, int64_t value_stride,
                   int64_t first, int64_t last, float* out, int64_t out_stride) {
  typename Isa::Vector acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = Isa::Load(out + r * out_stride + v * Isa::kLanes);
  }
  for (int64_t t = first; t < last; ++t) {
    typename Isa::Vector value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) value[v] = Isa::Load(values + t * value_stride + v * Isa::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Isa::Vector pr = Isa::Broadcast(p + t * stride + r);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) Isa::MultiplyAdd(pr, value[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) Isa::Store(out + r * out_stride + v * Isa::kLanes, acc[r][v]);
  }
}

using KeyOutputs = void (*)(const float*, int64_t, const float*, int64_t, int64_t, int64_t, float*,
                            int64_t);

/// Output tiles of R rows by the number of vectors - 1.
template <typename Isa, int R, int... kVectors>
constexpr std::array<KeyOutputs, sizeof...(kVectors)> KeyOutputTiles(
    std::integer_sequence<int, kVectors...> /*vectors*/) {
  return {KeyOutputTile<Isa, R, kVectors + 1>...};
}

template <typename Isa>
void KeyOutput(const KeyBlock& block, int64_t stride) {
  constexpr auto kVectors = std::make_integer_sequence<int, Isa::kTileVectors>();
  constexpr std::array kTiles = {KeyOutputTiles<Isa, 1>(kVectors), KeyOutputTiles<Isa, 2>(kVectors),
                                 KeyOutputTiles<Isa, 3>(kVectors),
                                 KeyOutputTiles<Isa, 4>(kVectors)};
  int64_t vectors = 0;
  for (int64_t c = 0; c < block.value_width; c += vectors * Isa::kLanes) {
    // Two tiles of about the same size instead of a full one and one of too few chains.
    const int64_t left = (block.value_width - c) / Isa::kLanes;
    vectors = left == Isa::kTileVectors + 1 ? (left + 1) / 2 : Least(Isa::kTileVectors, left);
    for (int64_t r = 0; r < block.rows; r += kKeyTileRows) {
      const int64_t rows = Least(kKeyTileRows, block.rows - r);
      int64_t shared = block.num_keys;
      for (int64_t i = r; i < r + rows; ++i) shared = Least(shared, block.visible[i]);
      float* out = block.out + r * block.value_width + c;
      kTiles[rows - 1][vectors - 1](block.scores + r, stride, block.values + c, block.value_stride,
                                    0, shared, out, block.value_width);
      // Keys that only some of the rows see must not touch the others, not even times zero.
      for (int64_t i = 0; i < rows; ++i) {
        if (block.visible[r + i] == shared) continue;
        kTiles[0][vectors - 1](block.scores + r + i, stride, block.values + c, block.value_stride,
                               shared, block.visible[r + i], out + i * block.value_width,
                               block.value_width);
      }
    }
  }
}

inline void ScaleRow(float factor, int64_t n, float* x) {
  const __m256 f = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < n; i += 8) {
    _mm256_store_ps(x + i, _mm256_mul_ps(_mm256_load_ps(x + i), f));
  }
}

/// LeafKernels::attend_keys with the vectors of `Isa`.
template <typename Isa>
void AttendKeysWith(const KeyBlock& block) {
  const int64_t stride = (block.rows + kRowLanes - 1) / kRowLanes * kRowLanes;
  KeyScoresOf<Isa>(block, stride);
  for (int64_t r = 0; r < block.rows; r += kRowLanes) {
    alignas(32) float keep[kRowLanes];
    RunningSoftmax(block, r, stride, keep);
    for (int64_t i = 0; i < Least(kRowLanes, block.rows - r); ++i) {
      if (keep[i] == 1.0f) continue;
      ScaleRow(keep[i], block.value_width, block.out + (r + i) * block.value_width);
    }
  }
  KeyOutput<Isa>(block, stride);
}

}  // namespace
}  // namespace outrider::cpu
