#include "outrider/parallel/thread_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/parallel/ended_rank.h"
#include "outrider/parallel/patience.h"

namespace outrider {

namespace {

void CopyRows(MatrixView<const std::byte> from, MatrixView<std::byte> to) {
  OUTRIDER_CHECK(from.rows == to.rows && from.cols == to.cols);
  if (from.cols == 0) return;
  for (int64_t r = 0; r < from.rows; ++r) {
    std::memcpy(to.row(r), from.row(r), static_cast<size_t>(from.cols));
  }
}

/// Memory that grows and is not cleared.
class PostedBytes {
 public:
  std::byte* Resize(size_t bytes) {
    if (bytes > capacity_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    size_ = bytes;
    return memory_.get();
  }
  std::byte* data() { return memory_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

/// What the ranks share.
class Group {
 public:
  /// What one rank stores. Call n uses memory n % 2: before a rank writes it, all have read what
  /// call n - 2 left there.
  struct Post {
    std::array<PostedBytes, 2> memory;
    alignas(64) std::atomic<uint64_t> calls{0};  // in which it has stored its part
    std::function<uint64_t()> progress;          // of the rank; empty: it shows none
  };

  Group(int32_t ranks, double seconds) : posts_(static_cast<size_t>(ranks)), seconds_(seconds) {}

  int32_t ranks() const { return static_cast<int32_t>(posts_.size()); }
  Post& post(int32_t rank) { return posts_[static_cast<size_t>(rank)]; }

  void End(int32_t rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (ended_.load()) return;
    reason_ = EndedRankText({rank, ranks()}, reason);
    ended_.store(true);
  }

  /// Until `rank` has stored its part in call `call`.
  void WaitFor(int32_t rank, uint64_t call) {
    Patience patience(seconds_, ranks());
    const Post& awaited = post(rank);
    while (awaited.calls.load(std::memory_order_acquire) < call) {
      ThrowIfEnded();
      if (!patience.WaitWhileMoves(awaited.progress)) {
        End(rank, fmt::format("it has not answered for {} s", seconds_));
      }
    }
    ThrowIfEnded();
  }

  void ThrowIfEnded() {
    if (!ended_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    throw Error(ErrorCode::kUnavailable, reason_);
  }

 private:
  std::vector<Post> posts_;
  double seconds_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::string reason_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int32_t rank)
      : group_(std::move(group)), rank_(rank) {}

  RankPlace place() const override { return {rank_, group_->ranks()}; }

  void Store(std::span<const GatheredRows> rows) override {
    OUTRIDER_CHECK(!stored_, "Collect is to follow Store");
    stored_ = true;
    size_t bytes = 0;
    for (const GatheredRows& g : rows) bytes += Bytes(g, rank_);
    std::byte* next = BeginPost(bytes);
    for (const GatheredRows& g : rows) {
      CopyRows(g.mine, PostedRows(next, g, rank_));
      next += Bytes(g, rank_);
    }
    Raise();
  }

  void Collect(std::span<const GatheredRows> rows) override {
    OUTRIDER_CHECK(std::exchange(stored_, false), "Collect without Store");
    const auto wants = [](const GatheredRows& g) { return g.all.data != nullptr; };
    if (std::none_of(rows.begin(), rows.end(), wants)) return;
    for (const GatheredRows& g : rows) {
      if (!wants(g)) continue;
      const Share own = g.columns[static_cast<size_t>(rank_)];
      const MatrixView<std::byte> to = g.all.Columns(own.first, own.count);
      if (to.data != g.mine.data) CopyRows(g.mine, to);
    }
    for (int32_t i = 1; i < group_->ranks(); ++i) {
      const int32_t rank = (rank_ + i) % group_->ranks();
      group_->WaitFor(rank, call_);
      std::byte* next = Posted(rank).data();
      for (const GatheredRows& g : rows) {
        const Share columns = g.columns[static_cast<size_t>(rank)];
        if (wants(g)) {
          CopyRows(PostedRows(next, g, rank), g.all.Columns(columns.first, columns.count));
        }
        next += Bytes(g, rank);
      }
    }
  }

  void Broadcast(int32_t root, std::span<std::byte> bytes) override {
    OUTRIDER_CHECK(!stored_, "Collect is to follow Store");
    std::byte* mine = BeginPost(rank_ == root ? bytes.size() : 0);
    if (rank_ == root) std::memcpy(mine, bytes.data(), bytes.size());
    Raise();
    if (rank_ == root) return;
    group_->WaitFor(root, call_);
    OUTRIDER_CHECK(Posted(root).size() == bytes.size());
    std::memcpy(bytes.data(), Posted(root).data(), bytes.size());
  }

  void ShowProgress(std::function<uint64_t()> progress) override {
    group_->post(rank_).progress = std::move(progress);
  }
  void End(const std::string& reason) override { group_->End(rank_, reason); }
  void ThrowIfEnded() override { group_->ThrowIfEnded(); }

 private:
  static size_t Bytes(const GatheredRows& g, int32_t rank) {
    return static_cast<size_t>(g.all.rows * g.columns[static_cast<size_t>(rank)].count);
  }
  static MatrixView<std::byte> PostedRows(std::byte* data, const GatheredRows& g, int32_t rank) {
    return {data, g.all.rows, g.columns[static_cast<size_t>(rank)].count};
  }

  PostedBytes& Posted(int32_t rank) { return group_->post(rank).memory[call_ % 2]; }

  /// Begins a call: memory of `bytes` for what this rank stores in it.
  std::byte* BeginPost(size_t bytes) {
    group_->ThrowIfEnded();
    // Who has stored its part of the call before has read all of the one before that.
    for (int32_t rank = 0; rank < group_->ranks(); ++rank) {
      if (rank != rank_) group_->WaitFor(rank, call_);
    }
    ++call_;
    return Posted(rank_).Resize(bytes);
  }
  void Raise() { group_->post(rank_).calls.store(call_, std::memory_order_release); }

  std::shared_ptr<Group> group_;
  int32_t rank_;
  uint64_t call_ = 0;
  bool stored_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int32_t ranks, double seconds) {
  OUTRIDER_CHECK(ranks >= 1);
  const auto group = std::make_shared<Group>(ranks, seconds);
  std::vector<std::unique_ptr<Communicator>> result;
  result.reserve(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    result.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return result;
}

}  // namespace outrider
