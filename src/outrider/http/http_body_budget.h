// The memory that bodies of requests take, all connections together: while they arrive, and until
// the application has read them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace outrider {

/// Thread-safe.
class HttpBodyBudget {
 public:
  explicit HttpBodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// False when there would be more than the budget: then nothing is taken.
  bool TryTake(size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= max_bytes_) return true;
    used_ -= bytes;
    return false;
  }
  void Give(size_t bytes) { used_ -= bytes; }
  size_t used() const { return used_; }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> used_{0};
};

/// One body's share, given back at the end. One thread at a time.
class HttpBodyShare {
 public:
  /// Bodies of up to `free_bytes` take nothing: they are taken whatever others do.
  HttpBodyShare(std::shared_ptr<HttpBodyBudget> budget, size_t free_bytes)
      : budget_(std::move(budget)), free_bytes_(free_bytes) {}
  ~HttpBodyShare() { budget_->Give(taken_); }
  HttpBodyShare(const HttpBodyShare&) = delete;
  HttpBodyShare& operator=(const HttpBodyShare&) = delete;

  /// The body has `bytes` now, no fewer than before. False when the budget has no room for it.
  bool GrowTo(size_t bytes) {
    const size_t wanted = bytes > free_bytes_ ? bytes : 0;
    if (wanted <= taken_) return true;
    if (!budget_->TryTake(wanted - taken_)) return false;
    taken_ = wanted;
    return true;
  }

 private:
  const std::shared_ptr<HttpBodyBudget> budget_;
  const size_t free_bytes_;
  size_t taken_ = 0;
};

}  // namespace outrider
