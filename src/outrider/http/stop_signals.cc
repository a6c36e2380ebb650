#include "outrider/http/stop_signals.h"

#include <csignal>
#include <utility>

namespace outrider {

namespace {

// As by nohup.
bool IsIgnored(int signal_number) {
  struct sigaction action = {};
  return sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

StopSignals::StopSignals(std::function<void()> stop, std::function<void()> stop_at_once)
    : signals_(io_, SIGINT, SIGTERM) {
  if (!IsIgnored(SIGHUP)) signals_.add(SIGHUP);
  signals_.async_wait([this, stop = std::move(stop), stop_at_once = std::move(stop_at_once)](
                          const boost::system::error_code& error, int /*signal*/) {
    if (error) return;
    stop();
    signals_.async_wait([stop_at_once](const boost::system::error_code& failure, int /*signal*/) {
      if (!failure) stop_at_once();
    });
  });
  thread_ = std::thread([this] { io_.run(); });
}

StopSignals::~StopSignals() {
  io_.stop();
  thread_.join();
}

}  // namespace outrider
