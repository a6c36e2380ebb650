// Lines for a file descriptor whose reader may stall or go away, such as standard error: writing
// one never makes the caller wait for the reader.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace outrider {

/// Thread-safe. Lines reach `fd` in order, from a thread of the writer's own.
class LineWriter {
 public:
  /// Lines of at most `max_bytes` in all wait for the reader. `fd` must stay open until Flush has
  /// returned true or the process ends: a write that the reader holds up goes on.
  explicit LineWriter(int fd, size_t max_bytes = size_t{1} << 20);
  /// Lines that wait still are lost: Flush first.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// Takes a line, its '\n' included. False when there is no room: then the line is dropped and
  /// counted, as is one that `fd` does not take (its reader is gone, the disk is full).
  bool Write(std::string line);

  /// Whether Write would take a line of `bytes` bytes.
  bool HasRoom(size_t bytes) const;

  /// How many lines were dropped since the last call.
  int64_t TakeDropped();

  /// Waits until every line is written or dropped, or `most` has passed. True in the first case.
  bool Flush(std::chrono::milliseconds most);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: it may be held up beyond the writer's end
};

}  // namespace outrider
