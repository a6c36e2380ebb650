// What the leaves over cache entries share in all vector widths: how rows are tiled, entries
// fetched ahead, and the softmax of eight rows, one per lane (include in leaves only).
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx2 {
// One copy per leaf file: these must not become shared symbols with AVX2 code.
namespace {  // NOLINT(google-build-namespaces)

/// Rows in even tiles of at most `most`.
struct RowTiles {
  RowTiles(int64_t all_rows, int64_t most) : rows(all_rows), count((all_rows + most - 1) / most) {}
  int64_t First(int64_t tile) const { return rows * tile / count; }

  int64_t rows;
  int64_t count;
};

/// Fetches the keys of `count` entries to come in as many steps as there are tiles of the present
/// ones, so that memory and arithmetic keep busy side by side.
class ReadAhead {
 public:
  ReadAhead(const EntryBlock& block, const std::byte* const* entries, int64_t count,
            int64_t element_bytes, int64_t steps)
      : entry_(entries), end_(entries + count) {
    const EntryGroup& last = block.groups[block.num_groups - 1];
    own_begin_ = block.groups[0].key * element_bytes;
    own_end_ = (last.key + block.own_width) * element_bytes;
    shared_begin_ = block.shared * element_bytes;
    shared_end_ = (block.shared + block.shared_width) * element_bytes;
    byte_ = own_begin_;
    const int64_t lines = (own_end_ - own_begin_ + shared_end_ - shared_begin_ + 63) / 64;
    per_step_ = (lines * count + steps - 1) / Most(1, steps);
  }

  void Step() {
    for (int64_t i = 0; i < per_step_ && entry_ < end_; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(*entry_) + byte_, _MM_HINT_T1);
      byte_ += 64;
      if (!in_shared_ && byte_ >= own_end_) {
        in_shared_ = true;
        byte_ = shared_begin_;
      }
      if (in_shared_ && byte_ >= shared_end_) {
        in_shared_ = false;
        byte_ = own_begin_;
        ++entry_;
      }
    }
  }

 private:
  const std::byte* const* entry_;
  const std::byte* const* end_;
  int64_t own_begin_;  // bytes of an entry: the own parts of the groups lie side by side
  int64_t own_end_;
  int64_t shared_begin_;
  int64_t shared_end_;
  int64_t per_step_;
  int64_t byte_;
  bool in_shared_ = false;
};

/// A weight (or NaN) as it is multiplied: rounded where entries are bfloat16. RoundToBFloat16
/// without its care for NaN: those that come here have a lower half of zero, as products of
/// bfloat16 numbers have, so that the addition cannot carry beyond them.
template <bool kIsBFloat16>
inline __m256 WeightFactor(__m256 weight) {
  if constexpr (!kIsBFloat16) return weight;
  const __m256i bits = _mm256_castps_si256(weight);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_castsi256_ps(
      _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

/// Eight rows from r on: their maximum, weights in place of the scores, their sum: four
/// chains, one per key % 4, added in a tree.
template <bool kIsBFloat16>
inline void Softmax(const EntryBlock& block, int64_t r, int64_t stride) {
  const __m256i lanes = TailMask(Least(8, block.rows - r));
  const __m256i visible = _mm256_maskload_epi32(block.visible + r, lanes);
  float* scores = block.scores + r;
  int64_t shared = block.num_keys;  // keys that all of the rows see
  int64_t keys = 0;
  for (int64_t i = r; i < Least(r + 8, block.rows); ++i) {
    shared = Least(shared, block.visible[i]);
    keys = Most(keys, block.visible[i]);
  }
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 max4[4] = {lowest, lowest, lowest, lowest};
  int64_t t = 0;
  for (; t + 4 <= shared; t += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      max4[j] = _mm256_max_ps(max4[j], _mm256_load_ps(scores + (t + j) * stride));
    }
  }
  __m256 max = _mm256_max_ps(_mm256_max_ps(max4[0], max4[1]), _mm256_max_ps(max4[2], max4[3]));
  for (; t < keys; ++t) {
    const __m256i sees = _mm256_cmpgt_epi32(visible, _mm256_set1_epi32(static_cast<int>(t)));
    const __m256 s = _mm256_load_ps(scores + t * stride);
    max = _mm256_max_ps(max, _mm256_blendv_ps(lowest, s, _mm256_castsi256_ps(sees)));
  }
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                    _mm256_setzero_ps()};
  const auto weight = [&](int64_t key) __attribute__((always_inline)) {
    return WeightFactor<kIsBFloat16>(
        Weight(_mm256_sub_ps(_mm256_load_ps(scores + key * stride), max)));
  };
  const __m256i steps = _mm256_set1_epi32(1);
  for (t = 0; t + 4 <= shared; t += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256 p = weight(t + j);
      _mm256_store_ps(scores + (t + j) * stride, p);
      sums[j] = _mm256_add_ps(sums[j], p);
    }
  }
  __m256i position = _mm256_set1_epi32(static_cast<int>(t));
  for (; t < keys; t += 4) {
    const int64_t count = Least(4, keys - t);
    for (int64_t j = 0; j < count; ++j) {
      const __m256i sees = _mm256_cmpgt_epi32(visible, position);
      const __m256 seen = _mm256_and_ps(weight(t + j), _mm256_castsi256_ps(sees));
      _mm256_store_ps(scores + (t + j) * stride, seen);
      sums[j] = _mm256_add_ps(sums[j], seen);
      position = _mm256_add_epi32(position, steps);
    }
  }
  const __m256 sum =
      _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
  _mm256_maskstore_ps(block.max + r, lanes, max);
  _mm256_maskstore_ps(block.sum + r, lanes, sum);
}

}  // namespace
}  // namespace outrider::cpu::avx2
