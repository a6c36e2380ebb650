#include "outrider/base/memory_shortage.h"

#include <chrono>
#include <exception>
#include <new>
#include <thread>

namespace outrider {

namespace {

constexpr std::chrono::milliseconds kPause{2};
constexpr int kMostPauses = 5000;

thread_local bool fails_alone = false;
thread_local int num_pauses = 0;

// operator new calls it again and again until there is memory.
void OnShortage() {
  // What is freed because of such a failure may need a little memory for that, and must not fail.
  const bool may_fail = fails_alone && std::uncaught_exceptions() == 0;
  if (may_fail || num_pauses == kMostPauses) {
    num_pauses = 0;
    throw std::bad_alloc();
  }
  ++num_pauses;
  std::this_thread::sleep_for(kPause);
}

}  // namespace

FailsAlone::FailsAlone() : before_(fails_alone) { fails_alone = true; }
FailsAlone::~FailsAlone() { fails_alone = before_; }

void WaitForMemoryFromNowOn() { std::set_new_handler(OnShortage); }

}  // namespace outrider
