// Expanded attention, one block of keys after the other with a running softmax (Milakov and
// Gimelshein 2018). With m the running maximum, l the running sum and o the unnormalised output:
//   m' = max(m, max s_t),  l = l exp(m - m') + sum exp(s_t - m'),  o likewise with v_t.
// Products and sums within a block are in double; the state between blocks is float32.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

namespace {

void AttendBlock(const ExpandedAttentionArgs& args, const ExpandedBlock& block, int64_t j,
                 int64_t h) {
  const int64_t row = block.request.first_row + j;
  const int64_t position = block.request.context_length + j;
  if (position < block.first_key) return;
  const int64_t keys = std::min<int64_t>(block.num_keys, position - block.first_key + 1);
  const float* q = args.q.row(row) + h * (args.nope + args.rope);
  float* out = args.out.row(row) + h * args.value;
  float& running_max = args.running_max.row(row)[h];
  float& running_sum = args.running_sum.row(row)[h];
  if (block.first_key == 0) {
    running_max = -std::numeric_limits<float>::infinity();
    running_sum = 0;
    std::fill(out, out + args.value, 0.0f);
  }

  const int64_t head_column = h * (args.nope + args.value);
  std::vector<float> scores;
  float max = running_max;
  for (int64_t t = 0; t < keys; ++t) {
    const float* k_nope = args.kv.row(block.kv_row + t) + head_column;
    const float* k_rope = args.k_rope.row(block.kv_row + t);
    double dot = 0;
    for (int64_t i = 0; i < args.nope; ++i) dot += double{q[i]} * k_nope[i];
    for (int64_t i = 0; i < args.rope; ++i) dot += double{q[args.nope + i]} * k_rope[i];
    scores.push_back(args.scale * static_cast<float>(dot));
    max = std::max(max, scores.back());
  }

  const float keep = std::exp(running_max - max);
  double sum = running_sum * keep;
  std::vector<double> sums(static_cast<size_t>(args.value));
  for (int64_t i = 0; i < args.value; ++i) sums[static_cast<size_t>(i)] = out[i] * keep;
  for (int64_t t = 0; t < keys; ++t) {
    const float p = std::exp(scores[static_cast<size_t>(t)] - max);
    const float* value = args.kv.row(block.kv_row + t) + head_column + args.nope;
    sum += p;
    for (int64_t i = 0; i < args.value; ++i) sums[static_cast<size_t>(i)] += double{p} * value[i];
  }
  running_max = max;
  running_sum = static_cast<float>(sum);
  for (int64_t i = 0; i < args.value; ++i) {
    out[i] = static_cast<float>(sums[static_cast<size_t>(i)]);
  }
}

}  // namespace

void ExpandedAttention(ThreadPool& pool, const ExpandedAttentionArgs& args) {
  CheckExpanded(args);
  for (const ExpandedBlock& block : args.blocks) {
    pool.ParallelFor(int64_t{block.request.query_length} * args.heads,
                     [&](int64_t i, int /*thread*/) {
                       AttendBlock(args, block, i / args.heads, i % args.heads);
                     });
  }
}

}  // namespace outrider::reference
