// Attention over listed entries: parts of the list are partial softmaxes, which are merged in
// order. Products and sums within a part are in double.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

namespace {

void AttendList(const ListedAttentionArgs& args, int64_t row, int64_t head) {
  std::vector<const std::byte*> entries(static_cast<size_t>(args.most_entries));
  entries.resize(static_cast<size_t>(args.list(row, entries.data())));
  const bool narrow = args.dtype == DType::kBF16;
  const auto factor = [&](float x) { return narrow ? RoundToBFloat16(x) : x; };
  const auto value = [&](size_t t, int64_t i) {
    return narrow ? ToFloat(reinterpret_cast<const BFloat16*>(entries[t])[i])
                  : reinterpret_cast<const float*>(entries[t])[i];
  };
  const float* q = args.q.row(row) + head * args.width;
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(args.value_width));
  for (size_t first = 0; first < entries.size(); first += kListedSplit) {
    const size_t end = std::min(entries.size(), first + kListedSplit);
    std::vector<float> scores;
    float part_max = -std::numeric_limits<float>::infinity();
    for (size_t t = first; t < end; ++t) {
      double dot = 0;
      for (int64_t i = 0; i < args.width; ++i) dot += double{factor(q[i])} * value(t, i);
      scores.push_back(args.scale * static_cast<float>(dot));
      part_max = std::max(part_max, scores.back());
    }
    const float larger = std::max(max, part_max);
    const double keep = std::exp(max - larger);
    const double take = std::exp(part_max - larger);
    max = larger;
    sum *= keep;
    for (double& x : out) x *= keep;
    for (size_t t = first; t < end; ++t) {
      const double p = take * factor(std::exp(scores[t - first] - part_max));
      sum += p;
      for (int64_t i = 0; i < args.value_width; ++i) out[static_cast<size_t>(i)] += p * value(t, i);
    }
  }
  const float sink =
      args.sinks == nullptr ? -std::numeric_limits<float>::infinity() : args.sinks[head];
  const float larger = std::max(max, sink);
  const double keep = std::exp(max - larger);
  const double all = sum * keep + std::exp(sink - larger);
  float* to = args.out.row(row) + head * args.value_width;
  for (size_t i = 0; i < out.size(); ++i) to[i] = static_cast<float>(out[i] * keep / all);
}

}  // namespace

void ListedAttention(ThreadPool& pool, const ListedAttentionArgs& args) {
  CheckListed(args);
  pool.ParallelFor(args.q.rows * args.heads, [&](int64_t i, int /*thread*/) {
    AttendList(args, i / args.heads, i % args.heads);
  });
}

}  // namespace outrider::reference
