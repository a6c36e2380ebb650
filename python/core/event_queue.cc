#include "python/core/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "outrider/base/error.h"

namespace outrider::python {

EventQueue::EventQueue() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw Error(ErrorCode::kUnavailable, "no more files can be opened");
}

EventQueue::~EventQueue() { close(descriptor_); }

void EventQueue::Add(int64_t request, size_t choice, bool whole, OutputDelta&& delta) {
  const std::lock_guard lock(mutex_);
  if (whole) {
    OutputDelta& part = parts_[{request, choice}];
    JoinDeltas(std::move(delta), &part);
    if (!part.finish_reason) return;
    events_.push_back({request, choice, std::move(part)});
    parts_.erase({request, choice});
  } else {
    events_.push_back({request, choice, std::move(delta)});
  }
  const uint64_t one = 1;
  if (events_.size() == 1 && write(descriptor_, &one, sizeof one) < 0) {
    // The counter is full: it is readable already.
  }
  changed_.notify_one();
}

void EventQueue::AddRequests(const std::vector<RequestId>& ids) {
  const std::lock_guard lock(mutex_);
  requests_.insert(requests_.end(), ids.begin(), ids.end());
}

std::vector<RequestId> EventQueue::requests() {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<Event> EventQueue::Take(std::chrono::duration<double> wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [this] { return !events_.empty(); });
  uint64_t count = 0;
  if (read(descriptor_, &count, sizeof count) < 0) {
    // It was not readable.
  }
  return std::exchange(events_, {});
}

}  // namespace outrider::python
