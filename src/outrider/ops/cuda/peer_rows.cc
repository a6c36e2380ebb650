#include "outrider/ops/cuda/peer_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "outrider/checkpoint/rank_config.h"
#include "outrider/ops/cuda/device_communicator.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/ops.h"

namespace outrider::cuda {

namespace {

MatrixView<std::byte> AsBytes(const Tensor& x) {
  const auto size = static_cast<int64_t>(DTypeSize(x.dtype));
  return {static_cast<std::byte*>(x.data), x.rows, x.cols * size, x.stride * size};
}

/// Rows as communicators want them.
class Described {
 public:
  Described(const RankPlace& place, std::span<const SharedTensor> rows) : count_(rows.size()) {
    OUTRIDER_CHECK(rows.size() <= columns_.size() && place.ranks <= kMostRanks);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SharedTensor& r = rows[i];
      OUTRIDER_CHECK(r.mine.dtype == r.all.dtype && r.mine.rows == r.all.rows);
      const auto size = static_cast<int64_t>(DTypeSize(r.all.dtype));
      for (int32_t rank = 0; rank < place.ranks; ++rank) {
        const Share share = ShareOf(r.cut, r.all.cols, {rank, place.ranks});
        columns_[i][static_cast<size_t>(rank)] = {share.first * size, share.count * size};
      }
      gathered_[i] = {AsBytes(r.mine), AsBytes(r.all),
                      std::span(columns_[i]).first(static_cast<size_t>(place.ranks))};
    }
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  std::span<const GatheredRows> rows() const { return std::span(gathered_).first(count_); }

 private:
  std::array<std::array<Share, kMostRanks>, 2> columns_;
  std::array<GatheredRows, 2> gathered_;
  size_t count_;
};

/// Contexts of CudaOps that share a model have these.
DeviceCommunicator& RanksOf(const Context& context) {
  return static_cast<DeviceCommunicator&>(*context.ranks);
}

}  // namespace

void Gather(const Context& context, std::span<const SharedTensor> rows) {
  const RankPlace place = context.place();
  if (place.ranks == 1) return;
  RanksOf(context).GatherOnDevice(Described(place, rows).rows());
}

RowChunks ChunksOf(const Context& context, const SharedTensor& rows, int64_t unit, int64_t most) {
  const RankPlace place = context.place();
  if (place.ranks == 1) return {};
  const ChunkedGathers* const gathers = RanksOf(context).chunked_gathers();
  if (gathers == nullptr) return {};
  const int64_t others = rows.all.cols - ShareOf(rows.cut, rows.all.cols, {0, place.ranks}).count;
  const int64_t bytes = rows.all.rows * others * static_cast<int64_t>(DTypeSize(rows.all.dtype));
  return gathers->Cut(rows.all.rows, bytes, unit, most);
}

ChunkedGathers& ChunkedGathersOf(const Context& context) {
  return *RanksOf(context).chunked_gathers();
}

void BeginGather(const Context& context, std::span<const SharedTensor> rows,
                 const RowChunks& chunks) {
  ChunkedGathersOf(context).Begin(Described(context.place(), rows).rows(), chunks);
}

void GatherInPlace(const Context& context, Tensor all, Cut cut) {
  const Share own = OwnShare(context, cut, all.cols);
  Gather(context, std::array{SharedTensor{all.Columns(own.first, own.count), all, cut}});
}

// Rows are packed by rank first, in their order.
void GatherRuns(const Context& context, Tensor x, std::span<const RankRun> runs) {
  const RankPlace place = context.place();
  OUTRIDER_CHECK(place.ranks > 1 && place.ranks <= kMostRanks);
  std::array<Share, kMostRanks> packed_rows = {};  // by rank
  for (const RankRun& run : runs) packed_rows[static_cast<size_t>(run.rank)].count += run.count;
  for (size_t rank = 1; rank < packed_rows.size(); ++rank) {
    packed_rows[rank].first = packed_rows[rank - 1].end();
  }
  const int64_t rows = packed_rows.back().end();
  if (rows == 0) return;
  RowCopies pack;
  RowCopies unpack;
  std::array<int64_t, kMostRanks> next;
  for (size_t rank = 0; rank < next.size(); ++rank) next[rank] = packed_rows[rank].first;
  for (const RankRun& run : runs) {
    for (int32_t row = run.first; row < run.first + run.count; ++row) {
      const int64_t at = next[static_cast<size_t>(run.rank)]++;
      if (run.rank == place.rank) {
        pack.Add(row, at);
      } else {
        unpack.Add(at, row);
      }
    }
  }
  const Scratch::Frame frame(context.arena);
  const Tensor packed = TakeRows(context, x.dtype, rows, x.cols);
  context.ops.CopyRows(context, x, packed, pack);
  const MatrixView<std::byte> bytes = AsBytes(packed);
  const auto ranks = static_cast<size_t>(place.ranks);
  std::array<std::array<Share, kMostRanks>, kMostRanks> columns = {};
  std::array<GatheredRows, kMostRanks> gathered;
  for (size_t rank = 0; rank < ranks; ++rank) {
    // All columns of a rank's rows are that rank's.
    columns[rank][rank].count = bytes.cols;
    const MatrixView<std::byte> all = bytes.Rows(packed_rows[rank].first, packed_rows[rank].count);
    gathered[rank] = {all.Columns(0, std::cmp_equal(rank, place.rank) ? all.cols : 0), all,
                      std::span(columns[rank]).first(ranks)};
  }
  RanksOf(context).GatherOnDevice(std::span(gathered).first(ranks));
  context.ops.CopyRows(context, packed, x, unpack);
}

Tensor GatheredSideBySide(const Context& context, Tensor mine, int64_t places) {
  const RankPlace place = context.place();
  OUTRIDER_CHECK(place.ranks > 1 && place.ranks <= kMostRanks);
  OUTRIDER_CHECK(mine.rows == 0 || mine.rows == places);
  if (mine.rows == 0) mine = TakeRows(context, mine.dtype, places, mine.cols);
  const auto size = static_cast<int64_t>(DTypeSize(mine.dtype));
  const int64_t stride = (mine.cols + 7) / 8 * 8;
  const Tensor all = TakeRows(context, mine.dtype, places, stride * place.ranks);
  std::array<Share, kMostRanks> columns = {};
  for (int32_t rank = 0; rank < place.ranks; ++rank) {
    columns[static_cast<size_t>(rank)] = {rank * stride * size, mine.cols * size};
  }
  RanksOf(context).GatherOnDevice(std::array{GatheredRows{
      AsBytes(mine), AsBytes(all), std::span(columns).first(static_cast<size_t>(place.ranks))}});
  return {all.data, all.dtype, places * place.ranks, mine.cols, stride};
}

Tensor Gathered(const Context& context, Tensor mine, Cut cut, int64_t cols) {
  if (context.place().ranks == 1 || cut == Cut::kNone) return mine;
  const Tensor all = TakeRows(context, mine.dtype, mine.rows, cols);
  Gather(context, std::array{SharedTensor{mine, all, cut}});
  return all;
}

}  // namespace outrider::cuda
