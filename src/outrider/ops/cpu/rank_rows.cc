#include "outrider/ops/cpu/rank_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "outrider/ops/ops.h"

namespace outrider::cpu {

namespace {

constexpr int64_t kFloat = sizeof(float);

MatrixView<std::byte> AsBytes(MatrixView<float> rows) {
  return {reinterpret_cast<std::byte*>(rows.data), rows.rows, rows.cols * kFloat,
          rows.stride * kFloat};
}

enum class HeadCallKind : int32_t { kEnd, kLogits, kChoice };

/// What rank 0 asks of the others.
struct HeadCall {
  HeadCallKind kind = HeadCallKind::kEnd;
  int32_t num_rows = 0;
  int64_t num_tokens = 0;
};

template <typename T>
void Broadcast(const Context& context, std::span<T> values) {
  context.ranks->Broadcast(0, std::as_writable_bytes(values));
}

}  // namespace

void Gather(const Context& context, std::span<const SharedRows> rows) {
  const RankPlace place = context.place();
  if (place.ranks == 1) return;
  const Scratch::Frame frame(context.arena);
  auto* gathered = context.arena.Take<GatheredRows>(static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    auto* columns = context.arena.Take<Share>(place.ranks);
    for (int32_t rank = 0; rank < place.ranks; ++rank) {
      const Share share = ShareOf(rows[i].cut, rows[i].all.cols, {rank, place.ranks});
      columns[rank] = {share.first * kFloat, share.count * kFloat};
    }
    gathered[i] = {
        AsBytes(rows[i].mine), AsBytes(rows[i].all), {columns, static_cast<size_t>(place.ranks)}};
  }
  context.ranks->Gather({gathered, rows.size()});
}

void GatherInPlace(const Context& context, MatrixView<float> all, Cut cut) {
  const Share own = OwnShare(context, cut, all.cols);
  Gather(context, std::array{SharedRows{all.Columns(own.first, own.count), all, cut}});
}

MatrixView<float> Gathered(const Context& context, MatrixView<float> mine, Cut cut, int64_t cols) {
  if (context.place().ranks == 1 || cut == Cut::kNone) return mine;
  const MatrixView<float> all = context.arena.Matrix(mine.rows, cols);
  Gather(context, std::array{SharedRows{mine, all, cut}});
  return all;
}

void GatherRuns(const Context& context, MatrixView<float> x, std::span<const RankRun> runs) {
  const RankPlace place = context.place();
  OUTRIDER_CHECK(place.ranks > 1);
  if (runs.empty()) return;
  const Scratch::Frame frame(context.arena);
  const auto ranks = static_cast<size_t>(place.ranks);
  const MatrixView<std::byte> bytes = AsBytes(x);
  // Of rows of rank r, the columns by rank: all are r's.
  auto* columns = context.arena.Take<Share>(int64_t{place.ranks} * place.ranks);
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < ranks; ++i) columns[r * ranks + i] = {0, i == r ? bytes.cols : 0};
  }
  auto* gathered = context.arena.Take<GatheredRows>(static_cast<int64_t>(runs.size()));
  for (size_t i = 0; i < runs.size(); ++i) {
    const RankRun& run = runs[i];
    const MatrixView<std::byte> rows = bytes.Rows(run.first, run.count);
    gathered[i] = {rows.Columns(0, run.rank == place.rank ? rows.cols : 0),
                   rows,
                   {columns + static_cast<size_t>(run.rank) * ranks, ranks}};
  }
  context.ranks->Gather({gathered, runs.size()});
}

std::span<const Share> HeadShares(const Context& context, int64_t size, int64_t num_tokens) {
  const RankPlace place = context.place();
  auto* shares = context.arena.Take<Share>(place.ranks);
  for (int32_t rank = 0; rank < place.ranks; ++rank) {
    const Share whole = ShareOf(Cut::kRows, size, {rank, place.ranks});
    shares[rank] = {std::min(whole.first, num_tokens),
                    std::clamp<int64_t>(num_tokens - whole.first, 0, whole.count)};
  }
  return {shares, static_cast<size_t>(place.ranks)};
}

void GatherLogits(const Context& context, MatrixView<float> part, MatrixView<float> logits,
                  std::span<const Share> shares) {
  if (context.place().ranks == 1) return;
  auto* columns = context.arena.Take<Share>(static_cast<int64_t>(shares.size()));
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    columns[rank] = {shares[rank].first * kFloat, shares[rank].count * kFloat};
  }
  context.ranks->Gather(
      std::array{GatheredRows{AsBytes(part), AsBytes(logits), {columns, shares.size()}}});
}

void ChooseAmongRanks(const Context& context, std::span<const Share> shares,
                      std::span<const float> values, std::span<int32_t> tokens) {
  struct Choice {
    float value = 0;
    int32_t token = 0;
  };
  const size_t rows = values.size();
  const auto bytes = static_cast<int64_t>(rows * sizeof(Choice));
  auto* all = context.arena.Take<Choice>(static_cast<int64_t>(shares.size() * rows));
  auto* columns = context.arena.Take<Share>(static_cast<int64_t>(shares.size()));
  const auto rank = static_cast<size_t>(context.place().rank);
  for (size_t r = 0; r < rows; ++r) {
    all[rank * rows + r] = {values[r], static_cast<int32_t>(shares[rank].first) + tokens[r]};
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    columns[i] = {static_cast<int64_t>(i) * bytes, bytes};
  }
  const MatrixView<std::byte> row(reinterpret_cast<std::byte*>(all), 1,
                                  bytes * static_cast<int64_t>(shares.size()));
  context.ranks->Gather(std::array{
      GatheredRows{row.Columns(columns[rank].first, bytes), row, {columns, shares.size()}}});
  for (size_t r = 0; r < rows; ++r) {
    // The first of equal values, as shares are in order of tokens. NaN came as infinity.
    Choice best = all[r];
    for (size_t i = 1; i < shares.size(); ++i) {
      if (all[i * rows + r].value > best.value) best = all[i * rows + r];
    }
    tokens[r] = std::isinf(best.value) ? -1 : best.token;
  }
}

void LeadHead(const Context& context, bool choice, std::span<const int32_t> rows,
              int64_t num_tokens) {
  if (context.place().ranks == 1) return;
  HeadCall call = {choice ? HeadCallKind::kChoice : HeadCallKind::kLogits,
                   static_cast<int32_t>(rows.size()), num_tokens};
  Broadcast(context, std::span(&call, 1));
  std::vector<int32_t> numbers(rows.begin(), rows.end());
  Broadcast(context, std::span(numbers));
}

void EndHead(const Context& context) {
  if (context.place().ranks == 1) return;
  HeadCall call;
  Broadcast(context, std::span(&call, 1));
}

void ShareTokens(const Context& context, std::span<TokenRef> tokens) {
  if (context.place().ranks > 1) Broadcast(context, tokens);
}

void FollowHead(const Context& context, Tensor x, const Weight& head) {
  OUTRIDER_CHECK(context.place().rank > 0);
  std::vector<int32_t> rows;
  std::vector<int32_t> tokens;
  for (;;) {
    HeadCall call;
    Broadcast(context, std::span(&call, 1));
    if (call.kind == HeadCallKind::kEnd) return;
    rows.resize(static_cast<size_t>(call.num_rows));
    Broadcast(context, std::span(rows));
    const Scratch::Frame frame(context.arena);
    if (call.kind == HeadCallKind::kLogits) {
      context.ops.Head(context, x, rows, head, Tensor(nullptr, call.num_rows, call.num_tokens));
    } else {
      tokens.resize(rows.size());
      context.ops.HeadChoice(context, x, rows, head, static_cast<int32_t>(call.num_tokens), tokens);
    }
  }
}

}  // namespace outrider::cpu
