#include "outrider/base/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace outrider {

namespace {

/// False when `fd` takes no more.
bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another process made it non-blocking
      pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct LineWriter::State {
  State(int fd_of_reader, size_t most_bytes) : fd(fd_of_reader), max_bytes(most_bytes) {}

  const int fd;
  const size_t max_bytes;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> lines;
  size_t bytes = 0;      // of `lines` and of the one that is being written
  bool writing = false;  // the first line was taken out
  bool ended = false;
  int64_t dropped = 0;

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ended || !lines.empty(); });
      if (ended) return;
      const std::string line = std::move(lines.front());
      lines.pop_front();
      writing = true;
      lock.unlock();
      const bool written = WriteAll(fd, line);
      lock.lock();
      writing = false;
      bytes -= line.size();
      if (!written) ++dropped;
      changed.notify_all();
    }
  }
};

LineWriter::LineWriter(int fd, size_t max_bytes) : state_(std::make_shared<State>(fd, max_bytes)) {
  std::thread([state = state_] { state->Run(); }).detach();
}

LineWriter::~LineWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

bool LineWriter::Write(std::string line) {
  const std::lock_guard lock(state_->mutex);
  if (state_->bytes + line.size() > state_->max_bytes) {
    ++state_->dropped;
    return false;
  }
  state_->bytes += line.size();
  state_->lines.push_back(std::move(line));
  state_->changed.notify_all();
  return true;
}

bool LineWriter::HasRoom(size_t bytes) const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes + bytes <= state_->max_bytes;
}

int64_t LineWriter::TakeDropped() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->dropped, 0);
}

bool LineWriter::Flush(std::chrono::milliseconds most) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, most,
                                  [this] { return state_->lines.empty() && !state_->writing; });
}

}  // namespace outrider
