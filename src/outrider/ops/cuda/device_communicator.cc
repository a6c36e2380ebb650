#include "outrider/ops/cuda/device_communicator.h"

#include <algorithm>
#include <array>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"

namespace outrider::cuda {

namespace {

constexpr int64_t kPostAlignment = 16;
constexpr size_t kLeastRecordedBytes = size_t{1} << 20;

/// Bytes from one stored row to the next.
int64_t PostStride(const GatheredRows& g, size_t rank) {
  return (g.columns[rank].count + kPostAlignment - 1) / kPostAlignment * kPostAlignment;
}
int64_t PostBytes(const GatheredRows& g, size_t rank) { return g.all.rows * PostStride(g, rank); }

/// The part of rank `of`, where it has stored it.
MatrixView<std::byte> PostedPart(const GatheredRows& g, size_t of, std::byte* data) {
  return {data, g.all.rows, g.columns[of].count, PostStride(g, of)};
}

void Append(std::vector<ColumnCopy>& copies, MatrixView<const std::byte> from,
            MatrixView<std::byte> to) {
  OUTRIDER_CHECK(from.rows == to.rows && from.cols == to.cols);
  if (from.rows == 0 || from.cols == 0) return;
  copies.push_back({.from = from.data,
                    .to = to.data,
                    .from_stride = from.stride,
                    .to_stride = to.stride,
                    .width = from.cols,
                    .rows = from.rows});
}

}  // namespace

void DeviceCommunicator::TellBytes(std::span<std::byte> all) {
  const RankPlace place = this->place();
  const int64_t each = std::ssize(all) / place.ranks;
  std::array<Share, kMostRanks> columns;
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = {static_cast<int64_t>(i) * each, each};
  const MatrixView<std::byte> row(all.data(), 1, std::ssize(all));
  ThrowIfEnded();
  Gather(std::array{GatheredRows{row.Columns(place.rank * each, each), row,
                                 std::span(columns).first(static_cast<size_t>(place.ranks))}});
}

int32_t DeviceCommunicator::LeastOf(int32_t number) {
  std::array<int32_t, kMostRanks> numbers = {};
  const auto used = std::span(numbers).first(static_cast<size_t>(place().ranks));
  used[static_cast<size_t>(place().rank)] = number;
  Tell(used);
  return *std::ranges::min_element(used);
}

void DeviceCommunicator::EndMeasuring() {
  measures_ = false;
  if (measured_ <= reserved_) return;
  reserved_ = std::max(2 * measured_, kLeastRecordedBytes);
  ReserveRecorded(reserved_);
  ++recorded_version_;
}

void DeviceCommunicator::Measure(std::span<const GatheredRows> rows) {
  if (measures_) measured_ = std::max(measured_, MostBytes(rows));
}

size_t DeviceCommunicator::BytesOf(std::span<const GatheredRows> rows, size_t rank) {
  size_t bytes = 0;
  for (const GatheredRows& g : rows) bytes += static_cast<size_t>(PostBytes(g, rank));
  return bytes;
}

size_t DeviceCommunicator::MostBytes(std::span<const GatheredRows> rows) const {
  size_t most = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(place().ranks); ++rank) {
    most = std::max(most, BytesOf(rows, rank));
  }
  return most;
}

void DeviceCommunicator::ListStores(std::span<const GatheredRows> rows, std::byte* post,
                                    std::vector<ColumnCopy>& copies) const {
  const auto rank = static_cast<size_t>(place().rank);
  for (const GatheredRows& g : rows) {
    Append(copies, g.mine, PostedPart(g, rank, post));
    post += PostBytes(g, rank);
  }
}

void DeviceCommunicator::ListReads(std::span<const GatheredRows> rows,
                                   std::span<std::byte* const> posted, std::vector<ColumnCopy>& own,
                                   std::vector<ColumnCopy>& others) const {
  const auto rank = static_cast<size_t>(place().rank);
  for (size_t from = 0; from < posted.size(); ++from) {
    std::byte* next = posted[from];
    for (const GatheredRows& g : rows) {
      const MatrixView<std::byte> stored = PostedPart(g, from, next);
      next += PostBytes(g, from);
      if (g.all.data == nullptr) continue;
      const Share columns = g.columns[from];
      const MatrixView<std::byte> to = g.all.Columns(columns.first, columns.count);
      if (from != rank) {
        Append(others, stored, to);
      } else if (to.data != g.mine.data) {
        Append(own, g.mine, to);
      }
    }
  }
}

}  // namespace outrider::cuda
