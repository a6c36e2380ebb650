// Gathers rows whose columns are shared out among ranks, for CudaOps. With one rank nothing is
// done.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/batch/rows_of_rank.h"
#include "outrider/ops/context.h"
#include "outrider/ops/cuda/chunked_gathers.h"
#include "outrider/ops/cuda/row_chunks.h"
#include "outrider/parallel/share.h"

namespace outrider::cuda {

/// The part of `size` columns that the context's rank has.
inline Share OwnShare(const Context& context, Cut cut, int64_t size) {
  return ShareOf(cut, size, context.place());
}

/// Rows whose columns are shared out by `cut`: `mine` are this rank's, `all` those of all ranks,
/// of the same type; without data where this rank does not want them.
struct SharedTensor {
  Tensor mine;  // it may be a part of `all`
  Tensor all;
  Cut cut = Cut::kRows;
};

/// Fills `all` of every one of `rows`, two at most, on every rank that wants it, in one exchange.
void Gather(const Context& context, std::span<const SharedTensor> rows);

/// The chunks, `most` at most, in which a gather of these rows goes beside the operations that make
/// or read them, of `unit` rows at a time: the same on all ranks, which all want the rows. One or
/// none: it is too small for that, or nothing carries it so, and Gather does it at once.
RowChunks ChunksOf(const Context& context, const SharedTensor& rows, int64_t unit, int64_t most);

/// What carries chunks, where ChunksOf gives several.
ChunkedGathers& ChunkedGathersOf(const Context& context);

/// Its Begin. `rows`: two at most, of which the first goes in chunks.
void BeginGather(const Context& context, std::span<const SharedTensor> rows,
                 const RowChunks& chunks);

/// Gathers rows that have this rank's columns at their place.
void GatherInPlace(const Context& context, Tensor all, Cut cut);

/// Every row of `x` in `runs` becomes that of the rank that has it, on all ranks, in one exchange.
void GatherRuns(const Context& context, Tensor x, std::span<const RankRun> runs);

/// Rows [places * ranks, cols] in the arena: row i of rank r is number i * ranks + r. `mine`: this
/// rank's `places` rows; without rows where nobody reads them.
Tensor GatheredSideBySide(const Context& context, Tensor mine, int64_t places);

/// Rows [mine.rows, cols] in the arena with the columns of all ranks; `mine` with one rank.
Tensor Gathered(const Context& context, Tensor mine, Cut cut, int64_t cols);

}  // namespace outrider::cuda
