#include "outrider/telemetry/trace_exporter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/telemetry/trace_json.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

std::chrono::nanoseconds Duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
}

void RequireSuccess(int status, std::string_view /*piece*/, bool end) {
  if (end && status / 100 != 2) throw std::runtime_error(fmt::format("status {}", status));
}

}  // namespace

TracesEndpoint ParseTracesEndpoint(const std::string& where, const std::string& url) {
  std::optional<HttpAddress> endpoint = ParseHttpAddress(url, "4318");
  if (!endpoint) {
    throw InvalidArgument(
        "{}: '{}' is no address of a collector: give it as http://HOST:PORT or https://HOST:PORT, "
        "perhaps with a path",
        where, url);
  }
  if (endpoint->path.size() <= 1) endpoint->path = "/v1/traces";
  return *std::move(endpoint);
}

TraceExporter::TraceExporter(TracesEndpoint endpoint, const TraceExporterLimits& limits)
    : endpoint_(std::move(endpoint)),
      limits_(limits),
      client_({endpoint_.host, endpoint_.port, endpoint_.tls}) {
  thread_ = std::thread([this] { Run(); });
}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TraceExporter::Add(std::string span) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= limits_.max_waiting) {
    ++num_dropped_;
    return;
  }
  waiting_.push_back(std::move(span));
  changed_.notify_one();
}

int64_t TraceExporter::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void TraceExporter::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    changed_.wait_for(lock, Duration(limits_.batch_seconds),
                      [this] { return stopping_ || waiting_.size() >= limits_.max_batch; });
    const size_t size = std::min(waiting_.size(), limits_.max_batch);
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(size);
    const std::vector<std::string> batch(std::make_move_iterator(waiting_.begin()),
                                         std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    lock.unlock();
    Send(batch);
    lock.lock();
    if (failing_) num_dropped_ += static_cast<int64_t>(size);
    if (failing_ && stopping_) return;  // it will not take the rest either
  }
}

void TraceExporter::Send(const std::vector<std::string>& spans) {
  try {
    const auto end = Clock::now() + Duration(limits_.send_seconds);
    std::optional<HttpPost> post({.target = endpoint_.path,
                                  .body = TracesJson(spans),
                                  .last = true,
                                  .on_answer = RequireSuccess});
    const bool sent = client_.Run(
        1, [&] { return std::exchange(post, std::nullopt); }, [&] { return Clock::now() >= end; });
    if (!sent) throw std::runtime_error("no answer in time");
    failing_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(failing_, true)) {
      SPDLOG_WARN("traces cannot be sent to {}:{}{} and are dropped: {}", endpoint_.host,
                  endpoint_.port, endpoint_.path, error.what());
    }
  }
}

}  // namespace outrider
