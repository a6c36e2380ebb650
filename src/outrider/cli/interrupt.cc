#include "outrider/cli/interrupt.h"

#include <csignal>

namespace outrider::cli {

namespace {

std::atomic<bool> interrupted_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void HandleSignal(int /*signal*/) { interrupted_flag.store(true, std::memory_order_relaxed); }

void Install(int signal_number, int flags) {
  struct sigaction action = {};
  action.sa_handler = HandleSignal;
  action.sa_flags = flags;
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

InterruptFlag::InterruptFlag(Second second) {
  interrupted_flag = false;
  if (second == Second::kSetsTheFlag) {
    Install(SIGINT, 0);
    return;
  }
  // The default action comes back with the first signal: the second one ends the process.
  for (const int signal_number : {SIGINT, SIGTERM}) {
    Install(signal_number, static_cast<int>(SA_RESETHAND | SA_RESTART));
  }
}

InterruptFlag::~InterruptFlag() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<bool>& InterruptFlag::interrupted() const { return interrupted_flag; }

void InterruptFlag::Clear() { interrupted_flag = false; }

}  // namespace outrider::cli
