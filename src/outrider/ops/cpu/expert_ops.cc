// CpuOps: mixtures of experts. Routed and shared products run as one task list.
#include <algorithm>
#include <array>
#include <utility>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "outrider/ops/cpu/rank_rows.h"
#include "outrider/ops/cpu/router.h"

namespace outrider::cpu {

namespace {

/// The routed pairs (row, choice) of a step, grouped by expert.
struct CpuRouting : Routing {
  int64_t rows = 0;
  int64_t top_k = 0;
  int64_t experts = 0;
  const int32_t* ids = nullptr;     // [rows, top_k]
  const float* weights = nullptr;   // [rows, top_k]
  int32_t* expert_begin = nullptr;  // [experts + 1] into the arrays below
  int32_t* source_row = nullptr;    // [pairs] row of the step
  int32_t* place = nullptr;         // [rows * top_k] where the pair (row, choice) stands

  int64_t pairs() const { return rows * top_k; }
};

const CpuRouting& Cast(const Routing& routing) { return static_cast<const CpuRouting&>(routing); }

void GroupByExpert(Scratch& arena, const int32_t* expert_ids, CpuRouting& r) {
  const int64_t pairs = r.pairs();
  r.expert_begin = arena.Take<int32_t>(r.experts + 1);
  r.source_row = arena.Take<int32_t>(pairs);
  r.place = arena.Take<int32_t>(pairs);
  std::fill_n(r.expert_begin, r.experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++r.expert_begin[expert_ids[i] + 1];
  for (int64_t e = 0; e < r.experts; ++e) r.expert_begin[e + 1] += r.expert_begin[e];
  auto* next = arena.Take<int32_t>(r.experts);
  std::copy_n(r.expert_begin, r.experts, next);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t place = next[expert_ids[i]]++;
    r.place[i] = place;
    r.source_row[place] = static_cast<int32_t>(i / r.top_k);
  }
}

/// Rows [0, pairs) for the experts, [pairs, pairs + rows) for the shared MLP.
ExpertRows OutputRows(Scratch& arena, const CpuRouting& r, bool shared, int64_t cols) {
  const Tensor all = arena.Matrix(r.pairs() + (shared ? r.rows : 0), cols);
  return {all.Rows(0, r.pairs()), all.Rows(r.pairs(), shared ? r.rows : 0)};
}

/// One task list of the experts that have rows, behind `shared_job` if there is a shared MLP: it is
/// the largest.
template <typename MakeJob>
void RunExperts(const Compute& compute, const ExpertWeights& w, const CpuRouting& r,
                const MatMulJob& shared_job, MakeJob make_job) {
  const Scratch::Frame frame(compute.scratch);
  auto* jobs = compute.scratch.Take<MatMulJob>(r.experts + 1);
  size_t n = 0;
  if (w.shared_width > 0) jobs[n++] = shared_job;
  for (int64_t e = 0; e < r.experts; ++e) {
    const int32_t begin = r.expert_begin[e];
    const int32_t count = r.expert_begin[e + 1] - begin;
    if (count > 0) jobs[n++] = make_job(Packed(w).experts[static_cast<size_t>(e)], begin, count);
  }
  compute.kernels.matmul(compute.pool, {jobs, n}, compute.operand_dtype);
}

/// The pairs that choose(expert ids, weights), of [rows, top_k] each, says.
template <typename Choose>
const CpuRouting& MakeRouting(Scratch& arena, const RouterSpec& spec, int64_t rows, Choose choose) {
  auto* routing = arena.Take<CpuRouting>(1);
  *routing = CpuRouting{};
  routing->rows = rows;
  routing->top_k = spec.top_k;
  routing->experts = spec.experts;
  auto* ids = arena.Take<int32_t>(routing->pairs());
  auto* weights = arena.Take<float>(routing->pairs());
  choose(ids, weights);
  routing->ids = ids;
  routing->weights = weights;
  GroupByExpert(arena, ids, *routing);
  return *routing;
}

/// silu_mul, with gates cut first where the limits say so.
void Activate(const KernelTable& kernels, ThreadPool& pool, MatrixView<float> gate_up, float limit,
              bool limits_gate, MatrixView<float> inner) {
  if (limits_gate && limit != kNoLimit) {
    pool.ParallelFor(gate_up.rows, [&](int64_t r, int /*thread*/) {
      float* gates = gate_up.row(r);
      // NaN goes through.
      for (int64_t i = 0; i < inner.cols; ++i) gates[i] = gates[i] > limit ? limit : gates[i];
    });
  }
  kernels.silu_mul(pool, gate_up, limit, inner);
}

}  // namespace

const Routing& CpuOps::Route(const Context& context, const RouterSpec& spec,
                             const StepInputs& /*inputs*/, int32_t /*first_row*/,
                             const ExpertWeights& /*w*/, Tensor logits, const float* bias) const {
  return MakeRouting(context.arena, spec, logits.rows, [&](int32_t* ids, float* weights) {
    cpu::RouteRows(spec, logits.floats(), bias, ids, weights);
  });
}

const Routing& CpuOps::RouteByToken(const Context& context, const RouterSpec& spec,
                                    const StepInputs& inputs, int32_t first_row,
                                    const ExpertWeights& /*w*/, Tensor logits,
                                    const int32_t* table) const {
  OUTRIDER_CHECK(first_row + logits.rows <= inputs.num_rows());
  const std::span<const TokenRef> tokens = cpu::Cast(inputs).tokens().subspan(
      static_cast<size_t>(first_row), static_cast<size_t>(logits.rows));
  return RouteTokens(context, spec, tokens, logits, table);
}

const Routing& CpuOps::RouteTokens(const Context& context, const RouterSpec& spec,
                                   std::span<const TokenRef> tokens, Tensor logits,
                                   const int32_t* table) {
  return MakeRouting(context.arena, spec, logits.rows, [&](int32_t* ids, float* weights) {
    for (size_t r = 0; r < tokens.size(); ++r) {
      std::copy_n(table + tokens[r].token() * spec.top_k, spec.top_k,
                  ids + static_cast<int64_t>(r) * spec.top_k);
    }
    WeighRows(spec, logits.floats(), ids, weights);
  });
}

void CpuOps::ReadChosen(const Routing& routing, ChosenExperts chosen) const {
  const CpuRouting& r = Cast(routing);
  for (int64_t row = 0; row < r.rows; ++row) {
    std::transform(r.ids + row * r.top_k, r.ids + (row + 1) * r.top_k, chosen.From(row).ids,
                   [](int32_t id) { return static_cast<int16_t>(id); });
  }
}

ExpertRows CpuOps::ExpertGateUp(const Context& context, const ExpertWeights& w,
                                const ExpertLimits& limits, const Routing& routing,
                                Tensor x) const {
  const CpuRouting& r = Cast(routing);
  const Compute compute = ComputeOf(context);
  Scratch& arena = context.arena;
  const bool shared = w.shared_width > 0;
  const int64_t shared_rows = shared ? r.rows : 0;
  const MatrixView<float> inner = arena.Matrix(r.pairs(), w.width);
  const MatrixView<float> shared_inner = arena.Matrix(shared_rows, w.shared_width);
  const Scratch::Frame frame(arena);
  const MatrixView<float> gate_up = arena.Matrix(r.pairs(), 2 * w.width);
  const MatrixView<float> shared_gate_up = arena.Matrix(shared_rows, 2 * w.shared_width);
  RunExperts(compute, w, r, {.x = x.floats(), .w = &Packed(w).shared.gate_up, .y = shared_gate_up},
             [&](const PackedMlp& expert, int64_t begin, int64_t count) {
               return MatMulJob{.x = x.floats(),
                                .x_rows = r.source_row + begin,
                                .w = &expert.gate_up,
                                .y = gate_up.Rows(begin, count)};
             });
  Activate(kernels_, *context.pool, gate_up, limits.routed, limits.limits_gate, inner);
  if (shared) {
    Activate(kernels_, *context.pool, shared_gate_up, limits.shared, limits.limits_gate,
             shared_inner);
  }
  return {inner, shared_inner};
}

ExpertRows CpuOps::ExpertDown(const Context& context, const ExpertWeights& w,
                              const Routing& routing, const ExpertRows& inner) const {
  const CpuRouting& r = Cast(routing);
  const bool shared = w.shared_width > 0;
  const PackedMatrix& down = Packed(w).experts.front().down;
  const ExpertRows out = OutputRows(context.arena, r, shared, down.rows);
  const Scratch::Frame frame(context.arena);
  MatrixView<float> routed_inner = inner.routed.floats();
  MatrixView<float> shared_inner = inner.shared.floats();
  if (context.place().ranks > 1) {
    const auto whole = [&](MatrixView<float>& mine, int64_t width) {
      const MatrixView<float> all = context.arena.Matrix(mine.rows, width);
      return SharedRows{std::exchange(mine, all), all, Cut::kInner};
    };
    const std::array rows = {whole(routed_inner, down.cols),
                             whole(shared_inner, Packed(w).shared.down.cols)};
    Gather(context, std::span(rows).first(shared ? 2 : 1));
  }
  const MatrixView<float> routed_out = out.routed.floats();
  RunExperts(ComputeOf(context), w, r,
             {.x = shared_inner, .w = &Packed(w).shared.down, .y = out.shared.floats()},
             [&](const PackedMlp& expert, int64_t begin, int64_t count) {
               return MatMulJob{.x = routed_inner.Rows(begin, count),
                                .w = &expert.down,
                                .y = routed_out.Rows(begin, count)};
             });
  return out;
}

void CpuOps::CombineExperts(const Context& context, const ExpertWeights& w, const Routing& routing,
                            const ExpertRows& outputs, Tensor x, const NormOut& norm) const {
  const CpuRouting& r = Cast(routing);
  const Scratch::Frame frame(context.arena);
  const bool shared = w.shared_width > 0;
  const int64_t top_k = r.top_k;
  const int64_t terms = top_k + (shared ? 1 : 0);
  auto* term_rows = context.arena.Take<int32_t>(r.rows * terms);
  auto* term_weights = context.arena.Take<float>(r.rows * terms);
  for (int64_t row = 0; row < r.rows; ++row) {
    std::copy_n(r.place + row * top_k, top_k, term_rows + row * terms);
    std::copy_n(r.weights + row * top_k, top_k, term_weights + row * terms);
    if (shared) {
      term_rows[row * terms + top_k] = static_cast<int32_t>(r.pairs() + row);
      term_weights[row * terms + top_k] = 1.0F;
    }
  }
  // The shared rows follow the routed ones (OutputRows).
  MatrixView<float> all = outputs.routed.floats();
  all.rows += outputs.shared.rows;
  const Share own = OwnShare(context, Cut::kRows, x.cols);
  kernels_.combine_experts(*context.pool, all, term_rows, term_weights, static_cast<int32_t>(terms),
                           x.floats().Columns(own.first, own.count));
  GatherInPlace(context, x.floats(), Cut::kRows);
  if (norm.weight != nullptr) Norm(context, x, norm.weight, norm.eps, norm.out);
}

}  // namespace outrider::cpu
