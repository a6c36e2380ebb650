// Keeps one run of Python code within limits: a trace function ends it when it has used its time,
// wherever it loops, and an allocator refuses memory beyond a budget. Time is the processor's, so a
// busy machine refuses nothing.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>

namespace outrider {

/// What a thread's clock (pthread_getcpuclockid) says: the processor time that it has used.
std::chrono::nanoseconds ReadCpuClock(clockid_t clock);

/// While it lives, Python code on this thread is limited. Needs the GIL, and
/// InstallTemplateAllocator before Python was initialised. Exceeding a limit raises a Python
/// exception (TimeoutError, MemoryError) that is raised again at every further line, so no handler
/// can outlive it.
class TemplateGuard {
 public:
  /// deadline: of this thread's processor time.
  TemplateGuard(std::chrono::nanoseconds deadline, size_t memory_bytes);
  ~TemplateGuard();
  TemplateGuard(const TemplateGuard&) = delete;
  TemplateGuard& operator=(const TemplateGuard&) = delete;

  bool out_of_time() const;
  bool out_of_memory() const;
};

/// Makes Python allocate through malloc, with the guard's accounts. Call between Py_PreInitialize
/// and Py_InitializeFromConfig.
void InstallTemplateAllocator();

}  // namespace outrider
