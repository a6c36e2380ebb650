// Builds with the address sanitizer only. The leaves ask its runtime about each load and store of
// 64 bytes, and it looks at their shadow byte by byte: half of the time of tests that run a model.
// Here eight bytes of shadow are looked at at once. Unless all is accessible, the runtime itself
// looks and reports. The linker's --wrap leads the calls here.

#include <cstddef>
#include <cstdint>

// What the linker calls the runtime's functions, and these.
extern "C" void RuntimeLoad(uintptr_t address, size_t size) asm("__real___asan_loadN");
extern "C" void RuntimeStore(uintptr_t address, size_t size) asm("__real___asan_storeN");
extern "C" void WideLoad(uintptr_t address, size_t size) asm("__wrap___asan_loadN");
extern "C" void WideStore(uintptr_t address, size_t size) asm("__wrap___asan_storeN");

namespace {

// A byte of shadow says how much of eight bytes is accessible; 0: all. Linux on x86-64.
constexpr uintptr_t kShadowOffset = 0x7fff8000;

bool IsAccessible(uintptr_t address, size_t size) {
  const uintptr_t first = kShadowOffset + (address >> 3);
  const uintptr_t last = kShadowOffset + ((address + size - 1) >> 3);
  if (last - first > sizeof(uint64_t)) return false;
  // NOLINTBEGIN(performance-no-int-to-ptr): the shadow has no other name.
  return *reinterpret_cast<const uint64_t*>(first) == 0 &&
         *reinterpret_cast<const uint8_t*>(last) == 0;
  // NOLINTEND(performance-no-int-to-ptr)
}

}  // namespace

void WideLoad(uintptr_t address, size_t size) {
  if (!IsAccessible(address, size)) RuntimeLoad(address, size);
}

void WideStore(uintptr_t address, size_t size) {
  if (!IsAccessible(address, size)) RuntimeStore(address, size);
}
