#include "outrider/text/template_guard.h"

#include <Python.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>

namespace outrider {
namespace {

// Requests of this size and more are refused as soon as they would exceed the budget. Smaller ones
// may pass it by as much again: Python copes badly without memory for an exception, and the trace
// function ends the program soon after.
constexpr size_t kLargeRequest = 64UL << 10;
// Lines of Python between two looks at the clock.
constexpr int kLinesPerCheck = 16;

struct Account {
  bool active = false;
  bool out_of_time = false;
  bool out_of_memory = false;
  int lines = 0;
  int64_t used = 0;  // growth since the guard began; below 0 when older memory was freed
  int64_t budget = 0;
  std::chrono::nanoseconds deadline{0};  // of the thread's processor time
};

thread_local Account account;

bool OutOfTime() {
  if (ReadCpuClock(CLOCK_THREAD_CPUTIME_ID) > account.deadline) account.out_of_time = true;
  return account.out_of_time;
}

bool Allowed(size_t size) {
  if (!account.active) return true;
  if (size < kLargeRequest) {
    if (account.used > 2 * account.budget) account.out_of_memory = true;
    return account.used <= 2 * account.budget;
  }
  if (size > static_cast<size_t>(account.budget) ||
      account.used + static_cast<int64_t>(size) > account.budget) {
    account.out_of_memory = true;
    return false;
  }
  return !OutOfTime();  // a single operation that builds something large runs no lines of Python
}

void* Counted(void* block) {
  if (account.active && block != nullptr) {
    account.used += static_cast<int64_t>(malloc_usable_size(block));
  }
  return block;
}

void* Malloc(void* /*context*/, size_t size) {
  return Allowed(size) ? Counted(std::malloc(size == 0 ? 1 : size)) : nullptr;
}

void* Calloc(void* /*context*/, size_t count, size_t size) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes) || !Allowed(bytes)) return nullptr;
  return Counted(bytes == 0 ? std::calloc(1, 1) : std::calloc(count, size));
}

void Free(void* /*context*/, void* block) {
  if (account.active && block != nullptr) {
    account.used -= static_cast<int64_t>(malloc_usable_size(block));
  }
  std::free(block);
}

void* Realloc(void* /*context*/, void* block, size_t size) {
  if (!Allowed(size)) return nullptr;
  const auto before = static_cast<int64_t>(block == nullptr ? 0 : malloc_usable_size(block));
  void* const grown = std::realloc(block, size == 0 ? 1 : size);
  if (grown != nullptr && account.active) account.used -= before;
  return grown == nullptr ? nullptr : Counted(grown);
}

// Called by Python at every line, call and return.
int Trace(PyObject* /*object*/, PyFrameObject* /*frame*/, int /*event*/, PyObject* /*argument*/) {
  if (--account.lines > 0) return 0;
  if (account.used > account.budget) account.out_of_memory = true;
  if (OutOfTime()) {
    PyErr_SetString(PyExc_TimeoutError, "time limit");
    return -1;
  }
  if (account.out_of_memory) {
    PyErr_NoMemory();
    return -1;
  }
  account.lines = kLinesPerCheck;
  return 0;
}

}  // namespace

std::chrono::nanoseconds ReadCpuClock(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

TemplateGuard::TemplateGuard(std::chrono::nanoseconds deadline, size_t memory_bytes) {
  account = {.active = true, .budget = static_cast<int64_t>(memory_bytes), .deadline = deadline};
  PyEval_SetTrace(Trace, nullptr);
}

TemplateGuard::~TemplateGuard() {
  PyEval_SetTrace(nullptr, nullptr);
  account.active = false;
}

bool TemplateGuard::out_of_time() const { return account.out_of_time; }
bool TemplateGuard::out_of_memory() const { return account.out_of_memory; }

void InstallTemplateAllocator() {
  PyMemAllocatorEx allocator = {nullptr, Malloc, Calloc, Realloc, Free};
  PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &allocator);
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &allocator);
}

}  // namespace outrider
