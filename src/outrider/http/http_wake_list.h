// The connections whose producers have something to send, gathered from any thread and handed to
// the I/O thread in one go: an engine step that feeds 256 streams wakes it once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace outrider {

class HttpConnection;

class HttpWakeList {
 public:
  /// `notify` is called, from any thread, when the list stops being empty.
  explicit HttpWakeList(std::function<void()> notify) : notify_(std::move(notify)) {}

  void Add(const std::weak_ptr<HttpConnection>& connection) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!notify_) return;
    waiting_.push_back(connection);
    if (waiting_.size() > 1) return;
    try {
      notify_();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // The I/O thread looks at the list with every tick, too.
    }
  }

  std::vector<std::weak_ptr<HttpConnection>> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(waiting_, {});
  }

  /// The server is gone: from now on Add does nothing.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    notify_ = nullptr;
    waiting_.clear();
  }

 private:
  std::mutex mutex_;
  std::function<void()> notify_;
  std::vector<std::weak_ptr<HttpConnection>> waiting_;
};

}  // namespace outrider
