// Attention over a block of keys with AVX2 and FMA.
//
// Scores: a tile of up to 4 rows x 3 keys keeps 12 sums of 8 lanes; lane l takes the elements
// i % 8 = l in rising order, then the lanes are added in a tree. Scores lie as [key][row], so that
// the softmax runs down the keys with one row per lane: its maximum and its sum are chains in order
// of the keys. Output: a tile of up to 4 rows x 24 columns adds p_t v_t in order of the keys, from
// the value of the block before. None of these orders depends on the other rows, so neither do a
// row's bits.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kTileRows = 4;
constexpr int64_t kTileKeys = 3;
constexpr int64_t kTileVectors = 3;

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

/// scores[t * stride + r] = scale * dot(q[r], keys[t]) for R rows and T keys. Writes kTileRows
/// scores per key also where R is less: only the last tile has fewer rows, and behind it is
/// padding.
template <int R, int T>
void ScoreTile(const float* q, const float* keys, int64_t width, float scale, float* scores,
               int64_t stride) {
  __m256 acc[T][kTileRows];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < width; i += 8) {
    __m256 k[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) k[t] = _mm256_load_ps(keys + t * width + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 qr = _mm256_load_ps(q + r * width + i);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) MultiplyAdd(qr, k[t], acc[t][r]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const __m128 dots = SumsOfLanes(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
    _mm_store_ps(scores + t * stride, _mm_mul_ps(dots, _mm_set1_ps(scale)));
  }
}

using ScoreFunction = void (*)(const float*, const float*, int64_t, float, float*, int64_t);
constexpr ScoreFunction kScoreTiles[kTileRows][kTileKeys] = {
    {ScoreTile<1, 1>, ScoreTile<1, 2>, ScoreTile<1, 3>},
    {ScoreTile<2, 1>, ScoreTile<2, 2>, ScoreTile<2, 3>},
    {ScoreTile<3, 1>, ScoreTile<3, 2>, ScoreTile<3, 3>},
    {ScoreTile<4, 1>, ScoreTile<4, 2>, ScoreTile<4, 3>}};

/// Fetches the entries of the next block in as many steps as there are tiles, so that memory and
/// arithmetic keep busy side by side.
class ReadAhead {
 public:
  ReadAhead(const KeyBlock& block, int64_t steps)
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

void Scores(const KeyBlock& block, int64_t stride) {
  const int64_t row_tiles = (block.rows + kTileRows - 1) / kTileRows;
  const int64_t key_tiles = (block.num_keys + kTileKeys - 1) / kTileKeys;
  ReadAhead ahead(block, row_tiles * key_tiles);
  for (int64_t r = 0; r < block.rows; r += kTileRows) {
    const int64_t rows = Least(kTileRows, block.rows - r);
    int64_t keys = 0;
    for (int64_t i = r; i < r + rows; ++i) keys = Most(keys, block.visible[i]);
    for (int64_t t = 0; t < keys; t += kTileKeys) {
      const int64_t count = Least(kTileKeys, keys - t);
      kScoreTiles[rows - 1][count - 1](block.q + r * block.width, block.keys + t * block.width,
                                       block.width, block.scale, block.scores + t * stride + r,
                                       stride);
      ahead.Step();
    }
  }
}

/// Eight rows from r on: new maximum, probabilities in place of the scores, sum; returns in `keep`
/// the factor exp(m - m') for what the rows have summed so far.
void Softmax(const KeyBlock& block, int64_t r, int64_t stride, float* keep) {
  const __m256i lanes = TailMask(block.rows - r < 8 ? block.rows - r : 8);
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
      _mm256_blendv_ps(Weight(_mm256_sub_ps(old_max, max)), _mm256_set1_ps(1.0f), unchanged);
  __m256 sum = _mm256_mul_ps(_mm256_maskload_ps(block.sum + r, lanes), factor);
  for (int64_t t = 0; t < keys; ++t) {
    const __m256i sees = _mm256_cmpgt_epi32(visible, _mm256_set1_epi32(static_cast<int>(t)));
    const __m256 p = Weight(_mm256_sub_ps(_mm256_load_ps(scores + t * stride), max));
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
template <int R, int V>
void OutputTile(const float* p, int64_t stride, const float* values, int64_t value_stride,
                int64_t first, int64_t last, float* out, int64_t out_stride) {
  __m256 acc[R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = _mm256_load_ps(out + r * out_stride + v * 8);
  }
  for (int64_t t = first; t < last; ++t) {
    __m256 value[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) value[v] = _mm256_load_ps(values + t * value_stride + v * 8);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 pr = _mm256_broadcast_ss(p + t * stride + r);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) MultiplyAdd(pr, value[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) _mm256_store_ps(out + r * out_stride + v * 8, acc[r][v]);
  }
}

using OutputFunction = void (*)(const float*, int64_t, const float*, int64_t, int64_t, int64_t,
                                float*, int64_t);
constexpr OutputFunction kOutputTiles[kTileRows][kTileVectors] = {
    {OutputTile<1, 1>, OutputTile<1, 2>, OutputTile<1, 3>},
    {OutputTile<2, 1>, OutputTile<2, 2>, OutputTile<2, 3>},
    {OutputTile<3, 1>, OutputTile<3, 2>, OutputTile<3, 3>},
    {OutputTile<4, 1>, OutputTile<4, 2>, OutputTile<4, 3>}};

void Output(const KeyBlock& block, int64_t stride) {
  int64_t vectors = 0;
  for (int64_t c = 0; c < block.value_width; c += vectors * 8) {
    // Two tiles of two vectors instead of three and one, which would have too few chains.
    const int64_t left = (block.value_width - c) / 8;
    vectors = left == 4 ? 2 : Least(kTileVectors, left);
    for (int64_t r = 0; r < block.rows; r += kTileRows) {
      const int64_t rows = Least(kTileRows, block.rows - r);
      int64_t shared = block.num_keys;
      for (int64_t i = r; i < r + rows; ++i) shared = Least(shared, block.visible[i]);
      float* out = block.out + r * block.value_width + c;
      kOutputTiles[rows - 1][vectors - 1](block.scores + r, stride, block.values + c,
                                          block.value_stride, 0, shared, out, block.value_width);
      // Keys that only some of the rows see must not touch the others, not even times zero.
      for (int64_t i = 0; i < rows; ++i) {
        if (block.visible[r + i] == shared) continue;
        kOutputTiles[0][vectors - 1](block.scores + r + i, stride, block.values + c,
                                     block.value_stride, shared, block.visible[r + i],
                                     out + i * block.value_width, block.value_width);
      }
    }
  }
}

void ScaleRow(float factor, int64_t n, float* x) {
  const __m256 f = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < n; i += 8) {
    _mm256_store_ps(x + i, _mm256_mul_ps(_mm256_load_ps(x + i), f));
  }
}

float WeightOf(float x) { return _mm256_cvtss_f32(Weight(_mm256_set1_ps(x))); }

}  // namespace

void AttendKeys(const KeyBlock& block) {
  const int64_t stride = (block.rows + kRowLanes - 1) / kRowLanes * kRowLanes;
  Scores(block, stride);
  for (int64_t r = 0; r < block.rows; r += kRowLanes) {
    alignas(32) float keep[kRowLanes];
    Softmax(block, r, stride, keep);
    for (int64_t i = 0; i < Least(kRowLanes, block.rows - r); ++i) {
      if (keep[i] == 1.0f) continue;
      ScaleRow(keep[i], block.value_width, block.out + (r + i) * block.value_width);
    }
  }
  Output(block, stride);
}

void MergePartial(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                  float& max, float& sum, float* out) {
  const float new_max = partial_max > max ? partial_max : max;
  const float keep = WeightOf(max - new_max);
  const float take = WeightOf(partial_max - new_max);
  max = new_max;
  sum = sum * keep + partial_sum * take;
  const __m256 keep8 = _mm256_set1_ps(keep);
  const __m256 take8 = _mm256_set1_ps(take);
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    const __m256 kept = _mm256_mul_ps(at.Load(out + i), keep8);
    at.Store(out + i, _mm256_add_ps(kept, _mm256_mul_ps(at.Load(partial_out + i), take8)));
  }
}

void DivideRow(float divisor, int64_t n, float* x) {
  const __m256 d = _mm256_set1_ps(divisor);
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    at.Store(x + i, _mm256_div_ps(at.Load(x + i), d));
  }
}

}  // namespace outrider::cpu::avx2
