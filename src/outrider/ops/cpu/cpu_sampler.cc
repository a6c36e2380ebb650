#include "outrider/ops/cpu/cpu_sampler.h"

#include <algorithm>
#include <limits>

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/ops/cpu/rank_rows.h"
#include "outrider/ops/ops.h"

namespace outrider::cpu {

namespace {

// Logits are made for about this many rows at a time, which bounds their memory.
constexpr size_t kLogitsTile = 64;

/// On all ranks but the first: takes part in its calls. False on the first.
bool Follows(const Context& context, const HeadRows& rows) {
  if (context.place().rank == 0) return false;
  FollowHead(context, rows.x, rows.head);
  return true;
}

}  // namespace

MatrixView<float> CpuSampler::Logits(const Context& context, const HeadRows& rows, size_t first,
                                     size_t count, int64_t num_tokens) {
  const Stopwatch watch(head_seconds_);
  logits_.resize(count * static_cast<size_t>(num_tokens));
  const MatrixView<float> logits(logits_.data(), static_cast<int64_t>(count), num_tokens);
  LeadHead(context, /*choice=*/false, rows.rows.subspan(first, count), num_tokens);
  MakeLogits(context, {rows.head, rows.x, rows.rows.subspan(first, count)}, logits);
  return logits;
}

void CpuSampler::MakeLogits(const Context& context, const HeadRows& rows,
                            MatrixView<float> logits) {
  context.ops.Head(context, rows.x, rows.rows, rows.head, logits);
}

void CpuSampler::Choose(const Context& context, const HeadRows& rows, int32_t num_tokens,
                        std::span<int32_t> tokens) {
  const Stopwatch watch(head_seconds_);
  LeadHead(context, /*choice=*/true, rows.rows, num_tokens);
  context.ops.HeadChoice(context, rows.x, rows.rows, rows.head, num_tokens, tokens);
}

void CpuSampler::Verify(const Context& context, const HeadRows& rows,
                        std::span<const VerifyRequest> requests) {
  if (Follows(context, rows)) return;
  if (requests.empty()) return EndHead(context);
  const bool needs_logits = std::ranges::any_of(requests, [&](const VerifyRequest& r) {
    const bool processed = r.input.processors != nullptr || r.input.masks.data != nullptr;
    return verifiers_.front().NeedsLogits(*r.input.params, false) ||
           !Verifier::DrawsLikeliest(*r.input.params, processed);
  });
  if (!needs_logits) return VerifyLikeliest(context, rows, requests);
  size_t first = 0;
  while (first < requests.size()) {
    size_t end = first;
    size_t num_rows = 0;
    while (end < requests.size() &&
           (num_rows == 0 ||
            num_rows + static_cast<size_t>(requests[end].num_rows()) <= kLogitsTile)) {
      num_rows += static_cast<size_t>(requests[end++].num_rows());
    }
    const int32_t first_row = requests[first].first_row;
    const MatrixView<float> logits =
        Logits(context, rows, static_cast<size_t>(first_row), num_rows, rows.head.rows);
    context.pool->ParallelFor(static_cast<int64_t>(end - first), [&](int64_t i, int thread) {
      const VerifyRequest& request = requests[first + static_cast<size_t>(i)];
      VerifyInput input = request.input;
      input.logits = logits.Rows(request.first_row - first_row, request.num_rows());
      verifiers_[static_cast<size_t>(thread)].Verify(input, request.result);
    });
    first = end;
  }
  EndHead(context);
}

void CpuSampler::VerifyLikeliest(const Context& context, const HeadRows& rows,
                                 std::span<const VerifyRequest> requests) {
  likeliest_.resize(rows.rows.size());
  Choose(context, rows, static_cast<int32_t>(rows.head.rows), likeliest_);
  for (int32_t& token : likeliest_) token = token < 0 ? kOverflownRow : token;
  for (const VerifyRequest& request : requests) {  // a comparison each
    VerifyInput input = request.input;
    input.drawn = std::span(likeliest_)
                      .subspan(static_cast<size_t>(request.first_row),
                               static_cast<size_t>(request.num_rows()));
    verifiers_.front().Verify(input, request.result);
  }
  EndHead(context);
}

void CpuSampler::Draw(const Context& context, const HeadRows& rows,
                      std::span<const DrawRequest> requests, const DraftTokens& among,
                      std::span<TokenRef> tokens) {
  if (!Follows(context, rows)) {
    DrawFirst(context, rows, requests, among, tokens);
    EndHead(context);
  }
  ShareTokens(context, tokens);
}

void CpuSampler::DrawFirst(const Context& context, const HeadRows& rows,
                           std::span<const DrawRequest> requests, const DraftTokens& among,
                           std::span<TokenRef> tokens) {
  const auto gather = [&](bool drawn) -> HeadRows {
    group_.clear();
    group_rows_.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
      if ((requests[i].sampling != nullptr) != drawn) continue;
      group_.push_back(i);
      group_rows_.push_back(rows.rows[i]);
    }
    return {rows.head, rows.x, group_rows_};
  };
  const HeadRows likeliest = gather(false);
  likeliest_.resize(group_.size());
  Choose(context, likeliest, among.rows, likeliest_);
  for (size_t i = 0; i < group_.size(); ++i) {
    const int32_t row = std::max(likeliest_[i], 0);
    tokens[group_[i]] = among.ids.empty() ? row : among.ids[static_cast<size_t>(row)];
  }

  const HeadRows drawn = gather(true);
  for (size_t first = 0; first < group_.size(); first += kLogitsTile) {
    const size_t count = std::min(kLogitsTile, group_.size() - first);
    const MatrixView<float> logits = Logits(context, drawn, first, count, among.rows);
    context.pool->ParallelFor(logits.rows, [&](int64_t row, int thread) {
      const size_t i = group_[first + static_cast<size_t>(row)];
      tokens[i] = DrawDraft(samplers_[static_cast<size_t>(thread)], *requests[i].sampling,
                            requests[i].draw, ByToken(among, logits.row(row), thread));
    });
  }
}

std::span<const float> CpuSampler::ByToken(const DraftTokens& among, const float* logits,
                                           int thread) {
  if (among.ids.empty()) return {logits, static_cast<size_t>(among.rows)};
  std::vector<float>& row = by_token_[static_cast<size_t>(thread)];
  row.assign(static_cast<size_t>(among.vocab_size), -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < among.ids.size(); ++i) row[static_cast<size_t>(among.ids[i])] = logits[i];
  return row;
}

void CpuSampler::Score(const Context& context, const HeadRows& rows,
                       std::span<const ScoreRequest> requests) {
  if (Follows(context, rows)) return;
  for (size_t first = 0; first < requests.size(); first += kLogitsTile) {
    const size_t count = std::min(kLogitsTile, requests.size() - first);
    const MatrixView<float> logits = Logits(context, rows, first, count, rows.head.rows);
    context.pool->ParallelFor(logits.rows, [&](int64_t row, int /*thread*/) {
      const ScoreRequest& request = requests[first + static_cast<size_t>(row)];
      *request.result = ComputeLogprobs({logits.row(row), static_cast<size_t>(logits.cols)},
                                        request.token, request.num_top);
    });
  }
  EndHead(context);
}

}  // namespace outrider::cpu
