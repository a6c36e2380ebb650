// A time limit for compiling on this thread. xgrammar has none of its own: the build puts a call of
// CheckCompileDeadline into its longest loop (cmake/xgrammar.patch).
#pragma once

#include <chrono>

namespace outrider {

/// From construction to destruction, CheckCompileDeadline throws once `seconds` are over.
class CompileDeadline {
 public:
  explicit CompileDeadline(double seconds);
  ~CompileDeadline();
  CompileDeadline(const CompileDeadline&) = delete;
  CompileDeadline& operator=(const CompileDeadline&) = delete;
};

/// Throws CompileTimeout when this thread's deadline is over.
void CheckCompileDeadline();

/// What ends a compilation that takes too long.
struct CompileTimeout {};

}  // namespace outrider
