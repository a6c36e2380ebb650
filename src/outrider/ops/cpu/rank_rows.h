// CpuOps of several ranks: what brings rows together whose columns the ranks have parts of. With
// one rank nothing is done. What is said here of heads holds for all devices' samplers.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/batch/rows_of_rank.h"
#include "outrider/ops/context.h"
#include "outrider/ops/weights.h"
#include "outrider/parallel/share.h"

namespace outrider::cpu {

/// The part of `size` columns that the context's rank has.
inline Share OwnShare(const Context& context, Cut cut, int64_t size) {
  return ShareOf(cut, size, context.place());
}

/// Rows whose columns are shared out by `cut`: `mine` are this rank's, `all` those of all ranks.
struct SharedRows {
  MatrixView<float> mine;  // it may be a part of `all`
  MatrixView<float> all;
  Cut cut = Cut::kRows;
};

/// Fills `all` of every one of `rows` on every rank, in one exchange.
void Gather(const Context& context, std::span<const SharedRows> rows);

/// Gathers rows that have this rank's columns at their place.
void GatherInPlace(const Context& context, MatrixView<float> all, Cut cut);

/// Rows [mine.rows, cols] in the arena with the columns of all ranks; `mine` with one rank.
MatrixView<float> Gathered(const Context& context, MatrixView<float> mine, Cut cut, int64_t cols);

/// Rows of `x` become those of the ranks that have them, on every rank, in one exchange.
void GatherRuns(const Context& context, MatrixView<float> x, std::span<const RankRun> runs);

// Heads, whose rows of the weight are shared out by Cut::kRows. Rank 0 draws tokens; while it does,
// the others make their parts of the logits that it asks for.

/// Rank 0 is about to call Ops::Head, or HeadChoice with `choice`, for the first num_tokens tokens.
void LeadHead(const Context& context, bool choice, std::span<const int32_t> rows,
              int64_t num_tokens);
/// Rank 0 asks for no more.
void EndHead(const Context& context);
/// On other ranks: takes part in the calls until rank 0 ends. x: what the head reads.
void FollowHead(const Context& context, Tensor x, const Weight& head);

/// The tokens that rank 0 drew, which all ranks go on with.
void ShareTokens(const Context& context, std::span<TokenRef> tokens);

/// The parts of the first num_tokens of a head's `size` rows, by rank.
std::span<const Share> HeadShares(const Context& context, int64_t size, int64_t num_tokens);

/// logits [rows, tokens] of a head on the ranks that want them (logits.data): `part` has the
/// columns of this rank's share.
void GatherLogits(const Context& context, MatrixView<float> part, MatrixView<float> logits,
                  std::span<const Share> shares);

/// Chooses every row's largest value of all ranks' shares, and its token: values as ArgMaxJob gives
/// them, tokens counted from the start of the share. Afterwards tokens are as HeadChoice gives
/// them.
void ChooseAmongRanks(const Context& context, std::span<const Share> shares,
                      std::span<const float> values, std::span<int32_t> tokens);

}  // namespace outrider::cpu
