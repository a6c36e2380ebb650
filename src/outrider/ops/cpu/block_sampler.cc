#include "outrider/ops/cpu/block_sampler.h"

#include <algorithm>
#include <utility>

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/ops/cpu/cpu_ops.h"

namespace outrider::cpu {

void DrawDrafts(const Context& context, std::span<Sampler> samplers, MatrixView<const float> logits,
                std::span<const DrawRequest> requests, std::span<TokenRef> tokens) {
  OUTRIDER_CHECK(std::cmp_equal(logits.rows, requests.size()) && requests.size() == tokens.size());
  if (context.place().rank == 0) {
    context.pool->ParallelFor(logits.rows, [&](int64_t row, int thread) {
      const DrawRequest& request = requests[static_cast<size_t>(row)];
      const std::span<const float> of_row = {logits.row(row), static_cast<size_t>(logits.cols)};
      tokens[static_cast<size_t>(row)] = request.sampling == nullptr
                                             ? static_cast<int32_t>(ArgMax(of_row))
                                             : DrawDraft(samplers[static_cast<size_t>(thread)],
                                                         *request.sampling, request.draw, of_row);
    });
  }
  if (context.place().ranks > 1) context.ranks->Broadcast(0, std::as_writable_bytes(tokens));
}

void CpuBlockSampler::Assign(const BlockDraws& draws) {
  draws_ = draws;
  tokens_.assign(draws.rows.size(), 0);
  steps_.clear();
  RowRange next;
  for (const int32_t count : draws.steps) {
    next.count = count;
    steps_.push_back(next);
    next.first += count;
  }
  OUTRIDER_CHECK(std::cmp_equal(next.first, draws.rows.size()) &&
                 draws.before.size() == draws.rows.size() &&
                 draws.requests.size() == draws.rows.size() && draws.moved_places.empty());
}

void CpuBlockSampler::ReadRows(const Context& /*context*/, Tensor hidden, Tensor x) const {
  const MatrixView<float> from = hidden.floats();
  const MatrixView<float> to = x.floats();
  OUTRIDER_CHECK(to.rows == num_rows() && to.cols == from.cols);
  for (int64_t r = 0; r < to.rows; ++r) {
    const int32_t row = draws_.rows[static_cast<size_t>(r)];
    OUTRIDER_CHECK(row >= 0 && row < from.rows);
    std::copy_n(from.row(row), from.cols, to.row(r));
  }
}

void CpuBlockSampler::EmbedBefore(const Context& /*context*/, const TokenTable& table, size_t step,
                                  Tensor x) const {
  const RowRange rows = rows_of(step);
  OUTRIDER_CHECK(x.rows == rows.count);
  for (int32_t i = 0; i < rows.count; ++i) {
    const int32_t draw = rows.first + i;
    const TokenBefore& before = draws_.before[static_cast<size_t>(draw)];
    OUTRIDER_CHECK(before.draw < rows.first, "a token of its own step");
    const TokenRef& token =
        before.draw < 0 ? before.token : tokens_[static_cast<size_t>(before.draw)];
    CpuOps::EmbedTokens(table, {&token, 1}, x.Rows(i, 1));
  }
}

void CpuBlockSampler::Draw(const Context& context, size_t step, Tensor logits) {
  const auto first = static_cast<size_t>(rows_of(step).first);
  const auto count = static_cast<size_t>(rows_of(step).count);
  DrawDrafts(context, samplers_, logits.floats(), draws_.requests.subspan(first, count),
             std::span(tokens_).subspan(first, count));
}

void CpuBlockSampler::TakeTokens(std::span<TokenRef> tokens) {
  OUTRIDER_CHECK(tokens.size() == tokens_.size());
  std::ranges::copy(tokens_, tokens.begin());
}

}  // namespace outrider::cpu
