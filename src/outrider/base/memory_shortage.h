// What happens when operator new finds no memory: work for one request fails, with std::bad_alloc,
// and gives back what it had; threads that serve all requests wait for that.
#pragma once

namespace outrider {

/// While it lives, an allocation of its thread fails at once where there is no memory.
class FailsAlone {
 public:
  FailsAlone();
  ~FailsAlone();
  FailsAlone(const FailsAlone&) = delete;
  FailsAlone& operator=(const FailsAlone&) = delete;

 private:
  const bool before_;
};

/// From now on allocations outside of FailsAlone wait up to 10 s for memory. For a process that
/// serves; call once.
void WaitForMemoryFromNowOn();

}  // namespace outrider
