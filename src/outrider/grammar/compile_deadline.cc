#include "outrider/grammar/compile_deadline.h"

#include <optional>

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;

thread_local std::optional<Clock::time_point> deadline;

}  // namespace

CompileDeadline::CompileDeadline(double seconds) {
  deadline = Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

CompileDeadline::~CompileDeadline() { deadline.reset(); }

void CheckCompileDeadline() {
  if (deadline && Clock::now() > *deadline) throw CompileTimeout();
}

}  // namespace outrider
