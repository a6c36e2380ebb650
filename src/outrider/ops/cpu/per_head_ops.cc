// CpuOps: attention over per-head entries.
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
                                              .requests = Cast(inputs).per_head(args.cache.group),
                                              .out = args.out.floats()});
}

void CpuOps::NormHeads(const Context& context, Tensor x, int32_t heads, const float* weight,
                       float eps) const {
  OUTRIDER_CHECK(heads > 0 && x.cols % heads == 0);
  const int64_t width = x.cols / heads;
  if (x.stride == x.cols) {
    const MatrixView<float> by_head(x.floats().data, x.rows * heads, width);
    kernels_.rms_norm(*context.pool, by_head, weight, eps, by_head);
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
  if (cache.code_bytes == 0) {
    kernels_.write_entries(*context.pool, rows, slots, cache);
    return;
  }
  OUTRIDER_CHECK(rows.cols == cache.width);
  context.pool->ParallelFor(rows.rows, [&](int64_t r, int /*thread*/) {
    if (slots[r] >= 0) StoreEntry(cache, slots[r], rows.row(r));
  });
}

void CpuOps::GateHeads(const Context& context, Tensor gates, Tensor x) const {
  kernels_.gate_heads(*context.pool, gates.floats(), x.floats());
}

}  // namespace outrider::cpu
