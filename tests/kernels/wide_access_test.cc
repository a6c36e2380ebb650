// With the address sanitizer: kernels/wide_access_checks.cc lets no bad byte of an access through.
#ifdef OUTRIDER_ADDRESS_SANITIZER

#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>

#include <cstddef>
#include <cstdint>

extern "C" void __asan_loadN(uintptr_t address, size_t size);
extern "C" void __asan_storeN(uintptr_t address, size_t size);

namespace outrider {
namespace {

TEST(WideAccessDeathTest, EveryByteIsWatched) {
  GTEST_FLAG_SET(death_test_style, "fast");
  alignas(64) static char memory[256];
  const auto start = reinterpret_cast<uintptr_t>(memory);
  for (const size_t offset : {0, 5}) {
    for (const size_t good : {0, 33, 63}) {
      ASAN_POISON_MEMORY_REGION(memory + offset + good, 100);
      EXPECT_DEATH(__asan_loadN(start + offset, 64), "use-after-poison");
      __asan_loadN(start + offset, good);
      ASAN_UNPOISON_MEMORY_REGION(memory, sizeof(memory));
    }
    __asan_loadN(start + offset, 64);
    __asan_storeN(start + offset, 64);
  }
  ASAN_POISON_MEMORY_REGION(memory + 64, 8);
  EXPECT_DEATH(__asan_storeN(start + 1, 64), "use-after-poison");
  EXPECT_DEATH(__asan_loadN(start, 100), "use-after-poison");
  ASAN_UNPOISON_MEMORY_REGION(memory, sizeof(memory));
}

}  // namespace
}  // namespace outrider

#endif
