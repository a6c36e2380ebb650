// CpuOps: attention over per-head entries.
#include <algorithm>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/entry_codec.h"

namespace outrider::cpu {

void CpuOps::PerHeadAttention(const Context& context, const PerHeadShape& s,
                              const StepInputs& inputs, const AttentionArgs& args) const {
  kernels_.per_head_attention(*context.pool, {.q = args.q.floats(),
                                              .heads = s.heads,
                                              .kv_heads = s.kv_heads,
                                              .window = s.window,
                                              .nope = s.nope,
                                              .rope = s.rope,
                                              .value = s.value,
                                              .scale = s.softmax_scale,
                                              .cache = args.cache,
                                              .requests = Cast(inputs).one_path(args.cache.group),
                                              .out = args.out.floats()});
  if (args.gates.cols > 0) {
    kernels_.gate_heads(*context.pool, args.gates.floats(), args.out.floats());
  }
}

void CpuOps::NormHeads(const Context& context, Tensor x, int32_t heads, const float* weight,
                       float eps) const {
  OUTRIDER_CHECK(heads > 0 && x.cols % heads == 0);
  const int64_t width = x.cols / heads;
  const Scratch::Frame frame(context.arena);
  if (weight == nullptr) {
    auto* const ones = context.arena.Take<float>(width);
    std::fill_n(ones, width, 1.0F);
    weight = ones;
  }
  if (x.stride == x.cols) {
    const MatrixView<float> by_head(x.floats().data, x.rows * heads, width);
    kernels_.rms_norm(*context.pool, by_head, weight, eps, by_head);
    return;
  }
  if (x.rows < heads) {
    for (int64_t r = 0; r < x.rows; ++r) {
      const MatrixView<float> row(x.floats().row(r), heads, width);
      kernels_.rms_norm(*context.pool, row, weight, eps, row);
    }
    return;
  }
  for (int32_t h = 0; h < heads; ++h) {
    const MatrixView<float> head = x.floats().Columns(h * width, width);
    kernels_.rms_norm(*context.pool, head, weight, eps, head);
  }
}

void CpuOps::WriteEntries(const Context& context, const StepInputs& inputs, Tensor entries,
                          LayerCache cache) const {
  const int64_t* slots = Cast(inputs).slots(cache.group);
  const MatrixView<float> rows = entries.floats();
  if (!HoldsCodes(cache)) {
    kernels_.write_entries(*context.pool, rows, slots, cache);
    return;
  }
  OUTRIDER_CHECK(rows.cols == cache.width);
  context.pool->ParallelFor(rows.rows, [&](int64_t r, int /*thread*/) {
    if (slots[r] >= 0) StoreEntry(cache, slots[r], rows.row(r));
  });
}

void CpuOps::WriteHeadEntries(const Context& context, const PerHeadShape& s,
                              const StepInputs& inputs, const HeadEntryArgs& args) const {
  const auto finish = [&](Tensor x, int32_t heads, const float* norm) {
    if (norm != nullptr) NormHeads(context, x, heads, norm, args.norm_eps);
    Rotate(context, x, heads, 0, args.rotary);
  };
  finish(args.k, s.kv_heads, args.k_norm);
  OUTRIDER_CHECK(args.v.floats().data == args.k.floats().data + args.k.cols &&
                 args.v.stride == args.k.stride);
  const Tensor entries(args.k.data, args.k.dtype, args.k.rows, args.k.cols + args.v.cols,
                       args.k.stride);
  WriteEntries(context, inputs, entries, args.cache);
  if (args.q.cols > 0) finish(args.q, s.heads, args.q_norm);
}

}  // namespace outrider::cpu
