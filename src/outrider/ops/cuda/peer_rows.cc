#include "outrider/ops/cuda/peer_rows.h"

#include <array>

#include "outrider/checkpoint/rank_config.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/peer_communicator.h"

namespace outrider::cuda {

namespace {

MatrixView<std::byte> AsBytes(const Tensor& x) {
  const auto size = static_cast<int64_t>(DTypeSize(x.dtype));
  return {static_cast<std::byte*>(x.data), x.rows, x.cols * size, x.stride * size};
}

}  // namespace

void Gather(const Context& context, std::span<const SharedTensor> rows) {
  const RankPlace place = context.place();
  if (place.ranks == 1) return;
  OUTRIDER_CHECK(rows.size() <= 2 && place.ranks <= kMostRanks);
  std::array<std::array<Share, kMostRanks>, 2> columns;
  std::array<GatheredRows, 2> gathered;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SharedTensor& r = rows[i];
    OUTRIDER_CHECK(r.mine.dtype == r.all.dtype && r.mine.rows == r.all.rows);
    const auto size = static_cast<int64_t>(DTypeSize(r.all.dtype));
    for (int32_t rank = 0; rank < place.ranks; ++rank) {
      const Share share = ShareOf(r.cut, r.all.cols, {rank, place.ranks});
      columns[i][static_cast<size_t>(rank)] = {share.first * size, share.count * size};
    }
    gathered[i] = {AsBytes(r.mine), AsBytes(r.all),
                   std::span(columns[i]).first(static_cast<size_t>(place.ranks))};
  }
  // Contexts of CudaOps that share a model have these.
  static_cast<PeerCommunicator&>(*context.ranks)
      .GatherOnDevice(std::span(gathered).first(rows.size()));
}

void GatherInPlace(const Context& context, Tensor all, Cut cut) {
  const Share own = OwnShare(context, cut, all.cols);
  Gather(context, std::array{SharedTensor{all.Columns(own.first, own.count), all, cut}});
}

Tensor Gathered(const Context& context, Tensor mine, Cut cut, int64_t cols) {
  if (context.place().ranks == 1 || cut == Cut::kNone) return mine;
  const Tensor all = TakeRows(context, mine.dtype, mine.rows, cols);
  Gather(context, std::array{SharedTensor{mine, all, cut}});
  return all;
}

}  // namespace outrider::cuda
