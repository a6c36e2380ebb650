#include "outrider/engine/step_log.h"

#include <algorithm>

namespace outrider {

StepLog::Listener::Listener(StepLog& log) : log_(log) {
  const std::lock_guard lock(log_.mutex_);
  next_ = log_.num_added_;
  log_.num_listeners_.fetch_add(1, std::memory_order_relaxed);
}

StepLog::Listener::~Listener() { log_.num_listeners_.fetch_sub(1, std::memory_order_relaxed); }

int64_t StepLog::Listener::Read(std::vector<StepRecord>* records) {
  records->clear();
  const std::lock_guard lock(log_.mutex_);
  const int64_t first = std::max(next_, log_.num_added_ - kCapacity);
  const int64_t missed = first - next_;
  for (int64_t i = first; i < log_.num_added_; ++i) {
    records->push_back(log_.ring_[static_cast<size_t>(i % kCapacity)]);
  }
  next_ = log_.num_added_;
  return missed;
}

void StepLog::Add(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  ring_[static_cast<size_t>(num_added_++ % kCapacity)] = record;
}

}  // namespace outrider
