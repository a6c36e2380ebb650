#include "outrider/cli/interrupt.h"

#include <csignal>

namespace outrider::cli {

namespace {

std::atomic<bool> interrupted_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void HandleSignal(int /*signal*/) { interrupted_flag.store(true, std::memory_order_relaxed); }

void Install(int signal_number) {
  struct sigaction action = {};
  action.sa_handler = HandleSignal;
  // The default action comes back with the first signal: the second one ends the process.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupted_flag = false;
  Install(SIGINT);
  Install(SIGTERM);
}

InterruptFlag::~InterruptFlag() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<bool>& InterruptFlag::interrupted() const { return interrupted_flag; }

}  // namespace outrider::cli
