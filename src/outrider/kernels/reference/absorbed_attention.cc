// Absorbed attention: every row attends to the paged latent cache, in partial softmaxes over
// [256 i, 256 (i + 1)) of absolute positions that are merged in order:
//   partial i:  m_i = max s_t,  l_i = sum exp(s_t - m_i),  o_i = sum exp(s_t - m_i) c_t
//   merge:      m' = max(m, m_i),  l = l exp(m - m') + l_i exp(m_i - m'),  o likewise.
// The first partial starts the merge as it is. Products and sums within a partial are in double.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

namespace {

struct Partial {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::vector<float> out;  // [L], unnormalised
};

Partial AttendSplit(const AbsorbedAttentionArgs& args, const AttentionSpan& span, const float* q,
                    int64_t begin, int64_t end) {
  const LatentCache& cache = args.cache;
  const auto entry_offset = [&](int64_t position) {
    const int64_t block = span.block_table[position / cache.block_size];
    return cache.SlotOffset(block * cache.block_size + position % cache.block_size);
  };
  Partial partial;
  std::vector<float> scores;
  for (int64_t t = begin; t < end; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < cache.width; ++i) {
      dot += double{q[i]} * CacheValue(cache, entry_offset(t) + i);
    }
    scores.push_back(args.scale * static_cast<float>(dot));
    partial.max = std::max(partial.max, scores.back());
  }
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(args.latent));
  for (int64_t t = begin; t < end; ++t) {
    const float p = std::exp(scores[static_cast<size_t>(t - begin)] - partial.max);
    sum += p;
    for (int64_t i = 0; i < args.latent; ++i) {
      out[static_cast<size_t>(i)] += double{p} * CacheValue(cache, entry_offset(t) + i);
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

void AttendHead(const AbsorbedAttentionArgs& args, const AttentionSpan& span, int64_t j,
                int64_t h) {
  const int64_t row = span.first_row + j;
  const float* q = args.q.row(row) + h * args.cache.width;
  const int64_t keys = span.context_length + j + 1;
  Partial total = AttendSplit(args, span, q, 0, std::min<int64_t>(kAbsorbedSplit, keys));
  for (int64_t begin = kAbsorbedSplit; begin < keys; begin += kAbsorbedSplit) {
    Merge(total, AttendSplit(args, span, q, begin, std::min(begin + kAbsorbedSplit, keys)));
  }
  float* out = args.out.row(row) + h * args.latent;
  for (int64_t i = 0; i < args.latent; ++i) out[i] = total.out[static_cast<size_t>(i)] / total.sum;
}

}  // namespace

void AbsorbedAttention(ThreadPool& pool, const AbsorbedAttentionArgs& args) {
  CheckAbsorbed(args);
  for (const AttentionSpan& span : args.requests) {
    pool.ParallelFor(int64_t{span.query_length} * args.heads, [&](int64_t i, int /*thread*/) {
      AttendHead(args, span, i / args.heads, i % args.heads);
    });
  }
}

}  // namespace outrider::reference
