// A limit of the processor time that compiling takes on this thread. xgrammar has none of its own:
// the build puts calls of CountCompileWork into its loops (cmake/xgrammar.patch).
#pragma once

#include <atomic>
#include <cstdint>

namespace outrider {

/// From construction to destruction, compiling on this thread ends with CompileTimeout once it has
/// taken `seconds` of processor time, so a busy machine does not change what is refused; or once
/// `cancelled`, which may be null, is set.
class CompileDeadline {
 public:
  explicit CompileDeadline(double seconds, const std::atomic<bool>* cancelled = nullptr);
  ~CompileDeadline();
  CompileDeadline(const CompileDeadline&) = delete;
  CompileDeadline& operator=(const CompileDeadline&) = delete;
};

/// Throws CompileTimeout when this thread's deadline is over. For work of microseconds and more.
void CheckCompileDeadline();

/// Checks once in a while; costs nothing to speak of.
inline void CountCompileWork() {
  thread_local uint32_t calls = 0;
  if (++calls % 256 == 0) CheckCompileDeadline();
}

/// What ends a compilation that takes too long.
struct CompileTimeout {};

}  // namespace outrider
