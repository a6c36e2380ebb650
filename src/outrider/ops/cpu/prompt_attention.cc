// CpuOps: attention of prompts, in the expanded (MHA) form of multi-head latent attention. Keys and
// values per head are made from the latent cache, in rounds of blocks that bound the memory for
// them (DeepSeek-V2, arXiv:2405.04434 §2.1.1).
//
// A prompt row runs one softmax over all its keys in blocks at absolute positions, so its bits do
// not depend on how the prompt was cut. A left-over row runs one over the cached context and one
// over the step's new tokens, merged by log-sum-exp.
#include <algorithm>
#include <limits>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/latent_products.h"
#include "outrider/ops/cpu/merge_attention.h"

namespace outrider::cpu {

namespace {

// Expanded keys and values are made in rounds of at most this many bytes.
constexpr int64_t kExpansionBytes = int64_t{16} << 20;

/// Keys that a request's rows attend to in one softmax: `num_keys` positions of the cache from
/// first_position on. rows.context_length counts from first_position too.
struct KeyRange {
  AttentionSpan rows;
  int32_t first_position = 0;
  int32_t num_keys = 0;
};

/// A running softmax per (row, head).
struct SoftmaxState {
  MatrixView<float> out;  // [rows, heads * V], unnormalised
  MatrixView<float> max;  // [rows, heads]
  MatrixView<float> sum;  // [rows, heads]
};

SoftmaxState StateFor(Scratch& scratch, const MlaShape& s, MatrixView<float> out) {
  return {out, scratch.Matrix(out.rows, s.heads), scratch.Matrix(out.rows, s.heads)};
}

/// Attends to ranges of keys, expanded in rounds of blocks; the state of a row is carried from
/// round to round.
class ExpandedRounds {
 public:
  ExpandedRounds(const Compute& compute, const MlaShape& shape, const PackedKvUp& weights,
                 LayerCache cache, MatrixView<const float> q)
      : compute_(compute), s_(shape), w_(weights), cache_(cache), q_(q) {
    const int64_t row_bytes = int64_t{s_.heads} * (s_.nope + s_.value) * int64_t{sizeof(float)};
    max_blocks_ = std::max<int64_t>(1, kExpansionBytes / (row_bytes * kExpandedBlock));
    const int64_t keys = max_blocks_ * kExpandedBlock;
    latent_ = compute.scratch.Matrix(keys, s_.latent);
    k_rope_ = compute.scratch.Matrix(keys, s_.rope);
    kv_ = compute.scratch.Matrix(keys, int64_t{s_.heads} * (s_.nope + s_.value));
    blocks_ = compute.scratch.Take<ExpandedBlock>(max_blocks_);
  }

  /// Fills `state` for the rows of `ranges`; rows of a range without keys are left as they are.
  void Run(std::span<const KeyRange> ranges, const SoftmaxState& state) {
    for (const KeyRange& range : ranges) {
      for (int32_t key = 0; key < range.num_keys; key += kExpandedBlock) {
        if (num_blocks_ == max_blocks_) Flush(state);
        AddBlock(range, key, std::min(kExpandedBlock, range.num_keys - key));
      }
    }
    if (num_blocks_ > 0) Flush(state);
  }

 private:
  void AddBlock(const KeyRange& range, int32_t first_key, int32_t num_keys) {
    compute_.kernels.gather_latent(
        compute_.pool, cache_, range.rows.block_table, range.first_position + first_key,
        latent_.Rows(num_keys_, num_keys), k_rope_.Rows(num_keys_, num_keys));
    blocks_[num_blocks_++] = {range.rows, first_key, num_keys, num_keys_};
    num_keys_ += num_keys;
  }

  void Flush(const SoftmaxState& state) {
    const MatrixView<const float> latent = latent_.Rows(0, num_keys_);
    const MatrixView<float> kv = kv_.Rows(0, num_keys_);
    const int64_t head = s_.nope + s_.value;
    ExpandLatents(compute_, s_, w_, latent,
                  {.key_step = head, .value = s_.nope, .value_step = head}, kv);
    compute_.kernels.expanded_attention(compute_.pool,
                                        {.q = q_,
                                         .heads = s_.heads,
                                         .nope = s_.nope,
                                         .rope = s_.rope,
                                         .value = s_.value,
                                         .scale = s_.softmax_scale,
                                         .kv = kv,
                                         .k_rope = k_rope_.Rows(0, num_keys_),
                                         .blocks = {blocks_, static_cast<size_t>(num_blocks_)},
                                         .out = state.out,
                                         .running_max = state.max,
                                         .running_sum = state.sum});
    num_blocks_ = 0;
    num_keys_ = 0;
  }

  const Compute& compute_;
  const MlaShape& s_;
  const PackedKvUp& w_;
  LayerCache cache_;
  MatrixView<const float> q_;
  int64_t max_blocks_ = 0;
  int64_t num_blocks_ = 0;
  int64_t num_keys_ = 0;
  MatrixView<float> latent_;  // [keys, L]
  MatrixView<float> k_rope_;  // [keys, R]
  MatrixView<float> kv_;      // [keys, heads * (P + V)]
  ExpandedBlock* blocks_ = nullptr;
};

/// Divides by the running sums.
void Normalise(const MlaShape& s, const AttentionSpan& request, const SoftmaxState& state) {
  for (int64_t r = request.first_row; r < request.first_row + request.query_length; ++r) {
    for (int32_t h = 0; h < s.heads; ++h) {
      const float factor = 1.0F / state.sum.row(r)[h];
      float* o = state.out.row(r) + int64_t{h} * s.value;
      for (int32_t i = 0; i < s.value; ++i) o[i] *= factor;
    }
  }
}

/// The request's rows of a state as a partial softmax.
PartialAttention Finish(ThreadPool& pool, const AttentionSpan& request, const SoftmaxState& state) {
  const PartialAttention partial = {state.out.Rows(request.first_row, request.query_length),
                                    state.max.Rows(request.first_row, request.query_length)};
  FinishPartial(pool, state.sum.Rows(request.first_row, request.query_length), partial);
  return partial;
}

/// What the rows of a request hold before they have seen a key.
void Clear(const AttentionSpan& request, const SoftmaxState& state) {
  for (int64_t r = request.first_row; r < request.first_row + request.query_length; ++r) {
    std::fill_n(state.out.row(r), state.out.cols, 0.0F);
    std::fill_n(state.max.row(r), state.max.cols, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum.row(r), state.sum.cols, 0.0F);
  }
}

}  // namespace

void CpuOps::PromptAttention(const Context& context, const MlaShape& s, const KvUpWeight& w,
                             const StepInputs& inputs, const AttentionArgs& args) const {
  const std::span<const AttentionSpan> prompts = Cast(inputs).prompts(args.cache.group);
  const std::span<const AttentionSpan> left_over = Cast(inputs).left_over(args.cache.group);
  const Compute compute = ComputeOf(context);
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> out = args.out.floats();
  ExpandedRounds rounds(compute, s, Packed(w), args.cache, args.q.floats());
  const SoftmaxState state = StateFor(compute.scratch, s, out);

  // Prompts, and the cached context of left-overs.
  const size_t num_ranges = prompts.size() + left_over.size();
  auto* ranges = compute.scratch.Take<KeyRange>(static_cast<int64_t>(num_ranges));
  size_t n = 0;
  for (const AttentionSpan& r : prompts) {
    ranges[n++] = {r, 0, r.context_length + r.query_length};
  }
  for (const AttentionSpan& r : left_over) {
    Clear(r, state);
    ranges[n++] = {r, 0, r.context_length};
  }
  rounds.Run({ranges, num_ranges}, state);
  for (const AttentionSpan& request : prompts) Normalise(s, request, state);
  if (left_over.empty()) return;

  // The new tokens of left-overs: positions count from the end of the context.
  const AttentionSpan& last = left_over.back();
  const SoftmaxState new_state =
      StateFor(compute.scratch, s,
               compute.scratch.Matrix(int64_t{last.first_row} + last.query_length, out.cols));
  n = 0;
  for (const AttentionSpan& r : left_over) {
    ranges[n++] = {
        {r.first_row, r.query_length, 0, r.block_table}, r.context_length, r.query_length};
  }
  rounds.Run({ranges, n}, new_state);
  for (const AttentionSpan& request : left_over) {
    const PartialAttention context_part = Finish(compute.pool, request, state);
    const PartialAttention new_tokens = Finish(compute.pool, request, new_state);
    MergeAttention(compute.pool, new_tokens, context_part);
  }
}

}  // namespace outrider::cpu
