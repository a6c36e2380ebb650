// SIGINT, SIGTERM and SIGHUP (unless it is ignored), taken by a thread of their own: they are
// obeyed whatever the other threads do.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>
#include <thread>

namespace outrider {

class StopSignals {
 public:
  /// While this lives, the first signal calls `stop` and the second one `stop_at_once`, on the
  /// signals' thread.
  StopSignals(std::function<void()> stop, std::function<void()> stop_at_once);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_;
  std::thread thread_;
};

}  // namespace outrider
