#include "outrider/ops/cuda/chunked_gathers.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

/// Its kernels come before those of a usual stream where a multiprocessor has room for either.
cudaStream_t MakeUrgentStream() {
  int least = 0;
  int most = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &most), "priorities of streams");
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "a stream");
  return stream;
}

}  // namespace

ChunkedGathers::ChunkedGathers(DeviceCommunicator& ranks,
                               std::span<const std::unique_ptr<Marks>> marks, cudaStream_t stream,
                               const ChunkOptions& options)
    : ranks_(ranks),
      marks_(marks),
      stream_(stream),
      options_(options),
      beside_(MakeUrgentStream(), cudaStreamDestroy) {}

ChunkedGathers::~ChunkedGathers() {
  cudaStreamSynchronize(beside_.get());  // it may still read what the others have
}

void ChunkedGathers::Give(int chunk) {
  OUTRIDER_CHECK(chunk == given_ && chunk < RowChunks::kMost);
  const auto rank = static_cast<size_t>(ranks_.place().rank);
  marks_[rank]->given[gathers_ % 2][static_cast<size_t>(given_++)].Record(stream_);
}

void ChunkedGathers::Begin(std::span<const GatheredRows> rows, const RowChunks& chunks) {
  const auto rank = static_cast<size_t>(ranks_.place().rank);
  const auto ranks = static_cast<size_t>(ranks_.place().ranks);
  OUTRIDER_CHECK(!rows.empty() && rows.size() <= kMostRanks);
  OUTRIDER_CHECK(given_ == 1 || given_ == chunks.count(), "{} of {} chunks are given", given_,
                 chunks.count());
  OUTRIDER_CHECK(chunks.end(chunks.count() - 1) == rows.front().all.rows);
  const size_t turn = gathers_++ % 2;
  Told& own = told_[rank];
  own.chunks = chunks;
  for (size_t g = 0; g < rows.size(); ++g) {
    own.data[g] = rows[g].mine.data;
    own.stride[g] = rows[g].mine.stride;
  }
  ranks_.Tell(std::span(told_).first(ranks));
  for (size_t i = 0; i < ranks; ++i) OUTRIDER_CHECK(told_[i].chunks == chunks, "rank {}", i);
  const RowCarrier carrier = chunks.count() > 1 ? options_.carrier : RowCarrier::kKernels;
  for (int chunk = 0; chunk < chunks.count(); ++chunk) {
    if (chunk < given_) {
      for (size_t i = 0; i < ranks; ++i) {
        marks_[i]->given[turn][static_cast<size_t>(chunk)].Hold(beside_.get());
      }
    }
    copies_.clear();
    List(rows.front(), 0, chunks.first(chunk), chunks.end(chunk));
    if (chunk + 1 == chunks.count()) {
      for (size_t g = 1; g < rows.size(); ++g) List(rows[g], g, 0, rows[g].all.rows);
    }
    Carry(carrier);
    arrived_[turn][static_cast<size_t>(chunk)].Record(beside_.get());
  }
  marks_[rank]->read[turn].Record(beside_.get());
  given_ = 0;
}

void ChunkedGathers::List(const GatheredRows& rows, size_t number, int64_t first, int64_t end) {
  if (rows.all.data == nullptr || first == end) return;
  const int32_t ranks = ranks_.place().ranks;
  for (int32_t i = 0; i < ranks; ++i) {
    // Each rank begins with another one.
    const auto from = static_cast<size_t>((ranks_.place().rank + i) % ranks);
    const Share columns = rows.columns[from];
    const Told& told = told_[from];
    if (columns.count == 0) continue;
    const MatrixView<std::byte> to =
        rows.all.Columns(columns.first, columns.count).Rows(first, end - first);
    const std::byte* const data = told.data[number] + first * told.stride[number];
    if (to.data == data) continue;
    copies_.push_back({.from = data,
                       .to = to.data,
                       .from_stride = told.stride[number],
                       .to_stride = to.stride,
                       .width = columns.count,
                       .rows = to.rows});
  }
}

void ChunkedGathers::Carry(RowCarrier carrier) {
  constexpr const char* kWhat = "reading rows of other ranks";
  if (carrier == RowCarrier::kKernels) {
    CheckCuda(CopyColumns(copies_, beside_.get()), kWhat);
    return;
  }
  for (const ColumnCopy& copy : copies_) {
    CheckCuda(
        cudaMemcpy2DAsync(copy.to, static_cast<size_t>(copy.to_stride), copy.from,
                          static_cast<size_t>(copy.from_stride), static_cast<size_t>(copy.width),
                          static_cast<size_t>(copy.rows), cudaMemcpyDefault, beside_.get()),
        kWhat);
  }
}

void ChunkedGathers::Await(int chunk) {
  arrived_[(gathers_ + 1) % 2][static_cast<size_t>(chunk)].Hold(stream_);
}

void ChunkedGathers::End() {
  ranks_.Meet();
  for (size_t i = 0; i < static_cast<size_t>(ranks_.place().ranks); ++i) {
    if (std::cmp_not_equal(i, ranks_.place().rank)) {
      marks_[i]->read[(gathers_ + 1) % 2].Hold(stream_);
    }
  }
}

}  // namespace outrider::cuda
