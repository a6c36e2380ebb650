#include "python/core/log_queue.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace outrider::python {
namespace {

constexpr size_t kMostLines = 100000;  // for a reader that does not come

struct Lines {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<LogLine> lines;
  size_t num_dropped = 0;
  bool woken = false;
};

// Never destroyed: threads may log while the process ends.
Lines& Kept() {
  static Lines* const kLines = new Lines;
  return *kLines;
}

int PythonLevel(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return 10;
    case spdlog::level::info:
      return 20;
    case spdlog::level::warn:
      return 30;
    default:
      return 40;
  }
}

class QueueSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string_view file = message.source.filename == nullptr ? "" : message.source.filename;
    file = file.substr(file.rfind('/') + 1);
    Lines& kept = Kept();
    const std::lock_guard lock(kept.mutex);
    if (kept.lines.size() >= kMostLines) {
      ++kept.num_dropped;
      return;
    }
    kept.lines.push_back({PythonLevel(message.level), std::string(file), message.source.line,
                          std::string(message.payload.data(), message.payload.size())});
    kept.changed.notify_one();
  }
  void flush_() override {}
};

}  // namespace

void KeepLog() {
  auto logger = std::make_shared<spdlog::logger>("outrider", std::make_shared<QueueSink>());
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void SetLogLevel(int level) {
  spdlog::default_logger()->set_level(level <= 10   ? spdlog::level::debug
                                      : level <= 20 ? spdlog::level::info
                                      : level <= 30 ? spdlog::level::warn
                                                    : spdlog::level::err);
}

std::vector<LogLine> TakeLog(std::chrono::duration<double> wait) {
  Lines& kept = Kept();
  std::unique_lock lock(kept.mutex);
  kept.changed.wait_for(lock, wait, [&] { return !kept.lines.empty() || kept.woken; });
  kept.woken = false;
  std::vector<LogLine> lines = std::exchange(kept.lines, {});
  if (const size_t dropped = std::exchange(kept.num_dropped, 0); dropped > 0) {
    lines.push_back(
        {30, "", 0, fmt::format("{} log lines were dropped: nobody read them", dropped)});
  }
  return lines;
}

void WakeLogReader() {
  Lines& kept = Kept();
  const std::lock_guard lock(kept.mutex);
  kept.woken = true;
  kept.changed.notify_all();
}

}  // namespace outrider::python
