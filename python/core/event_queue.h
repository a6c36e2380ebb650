// What steps give to requests, on its way from the engine's thread to a Python thread that waits or
// to an event loop. The engine's thread never needs the interpreter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "outrider/engine/generation.h"

namespace outrider::python {

/// One choice's news.
struct Event {
  int64_t request = 0;  // as Sink's caller named it
  size_t choice = 0;
  OutputDelta delta;
};

class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  /// `whole`: deltas of a choice are joined, and come with the last.
  void Add(int64_t request, size_t choice, bool whole, OutputDelta&& delta);

  /// Remembers that answers to these come here.
  void AddRequests(const std::vector<RequestId>& ids);
  /// All of these, whether they have ended or not.
  std::vector<RequestId> requests();

  /// All that is there; waits for something, at most `wait`. Without the GIL.
  std::vector<Event> Take(std::chrono::duration<double> wait);

  /// Readable while there are events: for an event loop.
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;  // an eventfd
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestId> requests_;
  std::vector<Event> events_;
  std::map<std::pair<int64_t, size_t>, OutputDelta> parts_;  // of whole answers
};

}  // namespace outrider::python
