#include "outrider/layers/mlp.h"

#include <algorithm>
#include <array>

#include "outrider/layers/router.h"

namespace outrider {

namespace {

/// The routed pairs (row, choice) of a tile, grouped by expert.
struct Routes {
  int32_t* expert_begin;  // [experts + 1] into the arrays below
  int32_t* source_row;    // [pairs] row of the tile
  int32_t* place;         // [rows * top_k] where the pair (row, choice) stands
};

Routes GroupByExpert(Scratch& scratch, const int32_t* expert_ids, int64_t rows, int64_t top_k,
                     int64_t experts) {
  const int64_t pairs = rows * top_k;
  const Routes routes{scratch.Take<int32_t>(experts + 1), scratch.Take<int32_t>(pairs),
                      scratch.Take<int32_t>(pairs)};
  std::fill_n(routes.expert_begin, experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++routes.expert_begin[expert_ids[i] + 1];
  for (int64_t e = 0; e < experts; ++e) routes.expert_begin[e + 1] += routes.expert_begin[e];
  auto* next = scratch.Take<int32_t>(experts);
  std::copy_n(routes.expert_begin, experts, next);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t place = next[expert_ids[i]]++;
    routes.place[i] = place;
    routes.source_row[place] = static_cast<int32_t>(i / top_k);
  }
  return routes;
}

}  // namespace

void DenseMlp(const Compute& compute, const MlpWeights& w, MatrixView<const float> h,
              MatrixView<float> x) {
  const Scratch::Frame frame(compute.scratch);
  const int64_t width = w.down.cols;
  const MatrixView<float> gate_up = compute.scratch.Matrix(h.rows, 2 * width);
  const MatrixView<float> inner = compute.scratch.Matrix(h.rows, width);
  compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = h, .w = &w.gate_up, .y = gate_up}},
                         compute.operand_dtype);
  compute.kernels.silu_mul(compute.pool, gate_up, inner);
  compute.kernels.matmul(
      compute.pool, std::array{MatMulJob{.x = inner, .w = &w.down, .y = x, .accumulate = true}},
      compute.operand_dtype);
}

// Routed and shared products run as one task list.
void MixtureOfExperts(const Compute& compute, const MoeSpec& spec, const MoeWeights& w,
                      MatrixView<const float> h, MatrixView<float> x) {
  const Scratch::Frame frame(compute.scratch);
  Scratch& scratch = compute.scratch;
  const int64_t rows = h.rows;
  const int64_t experts = spec.router.experts;
  const int64_t top_k = spec.router.top_k;
  const int64_t width = spec.width;
  const int64_t shared_width = spec.shared_width;
  const bool shared = shared_width > 0;

  const MatrixView<float> scores = scratch.Matrix(rows, experts);
  compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = h, .w = &w.router, .y = scores}},
                         DType::kF32);
  auto* ids = scratch.Take<int32_t>(rows * top_k);
  auto* weights = scratch.Take<float>(rows * top_k);
  RouteRows(spec.router, scores, w.router_bias, ids, weights);
  const Routes routes = GroupByExpert(scratch, ids, rows, top_k, experts);

  const int64_t pairs = rows * top_k;
  const MatrixView<float> gate_up = scratch.Matrix(pairs, 2 * width);
  const MatrixView<float> inner = scratch.Matrix(pairs, width);
  const MatrixView<float> shared_gate_up = scratch.Matrix(rows, 2 * shared_width);
  const MatrixView<float> shared_inner = scratch.Matrix(rows, shared_width);
  // Rows [0, pairs) are the routed outputs, [pairs, pairs + rows) the shared expert's.
  const MatrixView<float> out = scratch.Matrix(pairs + (shared ? rows : 0), h.cols);

  auto* jobs = scratch.Take<MatMulJob>(experts + 1);
  const auto run = [&](auto make_routed, const MatMulJob& shared_job) {
    size_t n = 0;
    if (shared) jobs[n++] = shared_job;  // the largest first
    for (int64_t e = 0; e < experts; ++e) {
      const int32_t begin = routes.expert_begin[e];
      const int32_t count = routes.expert_begin[e + 1] - begin;
      if (count > 0) jobs[n++] = make_routed(w.experts[static_cast<size_t>(e)], begin, count);
    }
    compute.kernels.matmul(compute.pool, {jobs, n}, compute.operand_dtype);
  };
  run(
      [&](const MlpWeights& expert, int64_t begin, int64_t count) {
        return MatMulJob{.x = h,
                         .x_rows = routes.source_row + begin,
                         .w = &expert.gate_up,
                         .y = gate_up.Rows(begin, count)};
      },
      {.x = h, .w = &w.shared.gate_up, .y = shared_gate_up});
  compute.kernels.silu_mul(compute.pool, gate_up, inner);
  if (shared) compute.kernels.silu_mul(compute.pool, shared_gate_up, shared_inner);
  run(
      [&](const MlpWeights& expert, int64_t begin, int64_t count) {
        return MatMulJob{
            .x = inner.Rows(begin, count), .w = &expert.down, .y = out.Rows(begin, count)};
      },
      {.x = shared_inner, .w = &w.shared.down, .y = shared ? out.Rows(pairs, rows) : out});

  const int64_t terms = top_k + (shared ? 1 : 0);
  auto* term_rows = scratch.Take<int32_t>(rows * terms);
  auto* term_weights = scratch.Take<float>(rows * terms);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(routes.place + r * top_k, top_k, term_rows + r * terms);
    std::copy_n(weights + r * top_k, top_k, term_weights + r * terms);
    if (shared) {
      term_rows[r * terms + top_k] = static_cast<int32_t>(pairs + r);
      term_weights[r * terms + top_k] = 1.0F;
    }
  }
  compute.kernels.combine_experts(compute.pool, out, term_rows, term_weights,
                                  static_cast<int32_t>(terms), x);
}

}  // namespace outrider
