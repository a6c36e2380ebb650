#include "outrider/model/decoder_layer.h"

#include <algorithm>
#include <array>

#include "outrider/model/router.h"

namespace outrider {

namespace {

// The MLP's intermediate values are wide: rows go through in tiles of this many to bound memory.
constexpr int64_t kMlpTile = 512;

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

/// x += sum of the chosen experts, weighted, in order of choice, then the shared expert. Routed and
/// shared products run as one task list.
void MixtureOfExperts(const Compute& compute, const ModelConfig& config, const LayerWeights& w,
                      MatrixView<const float> h, MatrixView<float> x) {
  const Scratch::Frame frame(compute.scratch);
  Scratch& scratch = compute.scratch;
  const int64_t rows = h.rows;
  const int64_t experts = config.n_routed_experts;
  const int64_t top_k = config.num_experts_per_tok;
  const int64_t width = config.moe_intermediate_size;
  const int64_t shared_width = config.n_shared_experts * width;
  const bool shared = shared_width > 0;

  const MatrixView<float> scores = scratch.Matrix(rows, experts);
  compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = h, .w = &w.router, .y = scores}},
                         DType::kF32);
  auto* ids = scratch.Take<int32_t>(rows * top_k);
  auto* weights = scratch.Take<float>(rows * top_k);
  RouteRows(config, scores, w.router_bias, ids, weights);
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
      {.x = h, .w = &w.mlp.gate_up, .y = shared_gate_up});
  compute.kernels.silu_mul(compute.pool, gate_up, inner);
  if (shared) compute.kernels.silu_mul(compute.pool, shared_gate_up, shared_inner);
  run(
      [&](const MlpWeights& expert, int64_t begin, int64_t count) {
        return MatMulJob{
            .x = inner.Rows(begin, count), .w = &expert.down, .y = out.Rows(begin, count)};
      },
      {.x = shared_inner, .w = &w.mlp.down, .y = shared ? out.Rows(pairs, rows) : out});

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

}  // namespace

void DecoderLayerForward(const Compute& compute, const ModelConfig& config, const MlaShape& shape,
                         const LayerWeights& weights, const BatchLayout& layout,
                         const AttentionPlan& plan, const RotaryRows& rotary, LayerCache cache,
                         MatrixView<float> x) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> h = compute.scratch.Matrix(x.rows, x.cols);
  const auto eps = static_cast<float>(config.rms_norm_eps);
  compute.kernels.rms_norm(compute.pool, x, weights.input_norm, eps, h);
  MlaForward(compute, shape, weights.attention, layout, plan, rotary, cache, h, x);
  compute.kernels.rms_norm(compute.pool, x, weights.post_attention_norm, eps, h);
  for (int64_t first = 0; first < x.rows; first += kMlpTile) {
    const int64_t count = std::min(kMlpTile, x.rows - first);
    if (weights.is_moe) {
      MixtureOfExperts(compute, config, weights, h.Rows(first, count), x.Rows(first, count));
    } else {
      DenseMlp(compute, weights.mlp, h.Rows(first, count), x.Rows(first, count));
    }
  }
}

void WriteLayerEntries(const Compute& compute, const ModelConfig& config, const MlaShape& shape,
                       const LayerWeights& weights, const BatchLayout& layout, KvCacheForm form,
                       const RotaryRows& rotary, LayerCache cache, MatrixView<const float> x) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> h = compute.scratch.Matrix(x.rows, x.cols);
  compute.kernels.rms_norm(compute.pool, x, weights.input_norm,
                           static_cast<float>(config.rms_norm_eps), h);
  WriteMlaEntries(compute, shape, weights.attention, layout, form, rotary, cache, h);
}

}  // namespace outrider
