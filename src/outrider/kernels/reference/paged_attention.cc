// Attention over the paged cache, absorbed and per head: every row attends to the cache in partial
// softmaxes over [256 i, 256 (i + 1)) of absolute positions (or other splits, see
// AbsorbedAttentionArgs) that are merged in order:
//   partial i:  m_i = max s_t,  p_t = exp(s_t - m_i),  l_i = sum p_t,  o_i = sum p_t v_t
//   merge:      m' = max(m, m_i),  l = l exp(m - m') + l_i exp(m_i - m'),  o likewise.
// The first partial starts the merge as it is. Products and sums within a partial are in double;
// over a bfloat16 cache both factors of a product are bfloat16 numbers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

namespace {

/// Consecutive elements of an entry.
struct Part {
  int64_t first = 0;
  int64_t width = 0;
};

/// One head of one row: its query, and which elements of an entry are its key and its value.
struct HeadRow {
  const float* q;
  float scale;
  Part key[2];  // the query's first key[0].width elements meet the first part
  Part value;
  int64_t first_key;  // keys [first_key, num_keys) are seen
  int64_t num_keys;
  int64_t split;
  const LayerCache& cache;
  const int32_t* block_table;

  /// A query's element, or a weight, as it is multiplied.
  float Factor(float x) const { return cache.dtype == DType::kBF16 ? RoundToBFloat16(x) : x; }

  int64_t EntryOffset(int64_t position) const {
    const int64_t block = block_table[position / cache.block_size];
    return cache.SlotOffset(block * cache.block_size + position % cache.block_size);
  }
};

struct Partial {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::vector<float> out;  // [value.width], unnormalised
};

Partial AttendSplit(const HeadRow& row, int64_t begin, int64_t end) {
  Partial partial;
  std::vector<float> scores;
  for (int64_t t = begin; t < end; ++t) {
    double dot = 0;
    const float* q = row.q;
    for (const Part& part : row.key) {
      for (int64_t i = 0; i < part.width; ++i) {
        dot +=
            double{row.Factor(*q++)} * CacheValue(row.cache, row.EntryOffset(t) + part.first + i);
      }
    }
    scores.push_back(row.scale * static_cast<float>(dot));
    partial.max = std::max(partial.max, scores.back());
  }
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(row.value.width));
  for (int64_t t = begin; t < end; ++t) {
    const float p = row.Factor(std::exp(scores[static_cast<size_t>(t - begin)] - partial.max));
    sum += p;
    const int64_t value = row.EntryOffset(t) + row.value.first;
    for (int64_t i = 0; i < row.value.width; ++i) {
      out[static_cast<size_t>(i)] += double{p} * CacheValue(row.cache, value + i);
    }
  }
  partial.sum = static_cast<float>(sum);
  partial.out.assign(out.begin(), out.end());
  return partial;
}

void Merge(Partial& into, const Partial& next) {
  const float max = std::max(into.max, next.max);
  const float keep = std::exp(into.max - max);
  const float take = std::exp(next.max - max);
  into.max = max;
  into.sum = into.sum * keep + next.sum * take;
  for (size_t i = 0; i < into.out.size(); ++i) {
    into.out[i] = into.out[i] * keep + next.out[i] * take;
  }
}

void Attend(const HeadRow& row, float* out) {
  const int64_t second = (row.first_key / row.split + 1) * row.split;
  Partial total = AttendSplit(row, row.first_key, std::min(second, row.num_keys));
  for (int64_t begin = second; begin < row.num_keys; begin += row.split) {
    Merge(total, AttendSplit(row, begin, std::min(begin + row.split, row.num_keys)));
  }
  for (size_t i = 0; i < total.out.size(); ++i) out[i] = total.out[i] / total.sum;
}

}  // namespace

void AbsorbedAttention(ThreadPool& pool, const AbsorbedAttentionArgs& args) {
  CheckAbsorbed(args);
  for (const AttentionSpan& span : args.requests) {
    pool.ParallelFor(int64_t{span.query_length} * args.heads, [&](int64_t i, int /*thread*/) {
      const int64_t j = i / args.heads;
      const int64_t h = i % args.heads;
      Attend({.q = args.q.row(span.first_row + j) + h * args.cache.width,
              .scale = args.scale,
              .key = {{0, args.cache.width}, {}},
              .value = {0, args.latent},
              .first_key = 0,
              .num_keys = span.context_length + j + 1,
              .split = args.split,
              .cache = args.cache,
              .block_table = span.block_table},
             args.out.row(span.first_row + j) + h * args.latent);
    });
  }
}

void PerHeadAttention(ThreadPool& pool, const PerHeadAttentionArgs& args) {
  CheckPerHead(args);
  const int64_t rotated = int64_t{args.kv_heads} * args.nope;
  const int64_t values = rotated + args.rope;
  for (const AttentionSpan& span : args.requests) {
    pool.ParallelFor(int64_t{span.query_length} * args.heads, [&](int64_t i, int /*thread*/) {
      const int64_t j = i / args.heads;
      const int64_t h = i % args.heads;
      const int64_t g = h / (args.heads / args.kv_heads);
      const int64_t num_keys = span.context_length + j + 1;
      Attend({.q = args.q.row(span.first_row + j) + h * (args.nope + args.rope),
              .scale = args.scale,
              .key = {{g * args.nope, args.nope}, {rotated, args.rope}},
              .value = {values + g * args.value, args.value},
              .first_key = args.window > 0 ? std::max<int64_t>(0, num_keys - args.window) : 0,
              .num_keys = num_keys,
              .split = kPagedSplit,
              .cache = args.cache,
              .block_table = span.block_table},
             args.out.row(span.first_row + j) + h * args.value);
    });
  }
}

}  // namespace outrider::reference
