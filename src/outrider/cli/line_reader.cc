#include "outrider/cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "outrider/base/error.h"

namespace outrider::cli {

namespace {

constexpr int kMillisecondsBetweenLooks = 100;

}  // namespace

bool LineReader::TakeLine(std::string* line) {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos) return false;
  line->assign(buffer_, 0, end);
  if (line->ends_with('\r')) line->pop_back();
  buffer_.erase(0, end + 1);
  return true;
}

LineResult LineReader::Next(const std::atomic<bool>& interrupted, std::string* line) {
  while (!TakeLine(line)) {
    if (interrupted.load(std::memory_order_relaxed)) {
      buffer_.clear();
      return LineResult::kInterrupted;
    }
    // A signal may come just before the wait, or on another thread: look at the flag again soon.
    pollfd input = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, kMillisecondsBetweenLooks) <= 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t count = read(descriptor_, bytes.data(), bytes.size());
    if (count > 0) {
      buffer_.append(bytes.data(), static_cast<size_t>(count));
    } else if (count == 0) {
      if (buffer_.empty()) return LineResult::kEnd;
      line->swap(buffer_);
      buffer_.clear();
      return LineResult::kLine;
    } else if (errno != EINTR) {
      throw InvalidArgument("standard input cannot be read: {}",
                            std::generic_category().message(errno));
    }
  }
  return LineResult::kLine;
}

}  // namespace outrider::cli
