#include "outrider/grammar/compile_deadline.h"

#include <ctime>
#include <limits>

namespace outrider {

namespace {

struct Deadline {
  double end = std::numeric_limits<double>::infinity();  // in this thread's processor time
  const std::atomic<bool>* cancelled = nullptr;
  bool set = false;
};

thread_local Deadline deadline;

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

CompileDeadline::CompileDeadline(double seconds, const std::atomic<bool>* cancelled) {
  deadline = {.end = ThreadSeconds() + seconds, .cancelled = cancelled, .set = true};
}

CompileDeadline::~CompileDeadline() { deadline = {}; }

void CheckCompileDeadline() {
  if (!deadline.set) return;
  if (deadline.cancelled != nullptr && deadline.cancelled->load(std::memory_order_relaxed)) {
    throw CompileTimeout();
  }
  if (ThreadSeconds() > deadline.end) throw CompileTimeout();
}

}  // namespace outrider
