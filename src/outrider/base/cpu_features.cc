#include "outrider/base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr std::array kNames = {"reference", "avx2", "avx512", "avx512_bf16", "amx"};
static_assert(kNames.size() == kAllIsas.size());

uint64_t Xcr0() {
  uint32_t eax = 0;
  uint32_t edx = 0;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (static_cast<uint64_t>(edx) << 32) | eax;
}

/// Asks the kernel for the right to use AMX tile data (Linux arch_prctl ARCH_REQ_XCOMP_PERM).
bool HasAmxPermission() {
  constexpr int64_t kRequestPermission = 0x1023;
  constexpr int64_t kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool IsMadeByIntel() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_INTEL_ebx &&
         c == signature_INTEL_ecx && d == signature_INTEL_edx;
}

Isa ReadCpu() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return Isa::kReference;
  const bool os_saves_state = (c & bit_OSXSAVE) != 0;
  const bool fma = (c & bit_FMA) != 0;
  const bool f16c = (c & bit_F16C) != 0;
  if (!os_saves_state || !fma || !f16c) return Isa::kReference;
  const uint64_t xcr0 = Xcr0();
  if ((xcr0 & 0x6) != 0x6) return Isa::kReference;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return Isa::kReference;
  const uint32_t features_b = b;
  const uint32_t features_c = c;
  const uint32_t features_d = d;
  if ((features_b & bit_AVX2) == 0) return Isa::kReference;
  constexpr uint32_t kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  if ((features_b & kAvx512) != kAvx512 || (xcr0 & 0xe0) != 0xe0) return Isa::kAvx2;
  // Codes of 8 bits are looked up with AVX-512 VBMI, which all processors with BF16 but one have.
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) a = 0;
  constexpr uint32_t kAvx512Bf16 = 1U << 5;
  if ((a & kAvx512Bf16) == 0 || (features_c & bit_AVX512VBMI) == 0) return Isa::kAvx512;
  constexpr uint32_t kAmxBf16 = 1U << 22;
  constexpr uint32_t kAmxTile = 1U << 24;
  const bool amx = (features_d & kAmxBf16) != 0 && (features_d & kAmxTile) != 0 &&
                   (xcr0 & 0x60000) == 0x60000 && HasAmxPermission();
  return amx ? Isa::kAmx : Isa::kAvx512Bf16;
}

/// `wanted` is the value of OUTRIDER_ISA, or null.
Isa ChooseIsa(const char* wanted) {
  if (wanted == nullptr || *wanted == '\0') return FastestIsa();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (std::string_view(wanted) != kNames[i]) continue;
    const Isa isa = static_cast<Isa>(i);
    if (isa > DetectIsa()) {
      throw InvalidArgument("OUTRIDER_ISA={} is not available here: this machine offers up to {}",
                            wanted, IsaName(DetectIsa()));
    }
    return isa;
  }
  throw InvalidArgument(
      "OUTRIDER_ISA={} is unknown: use reference, avx2, avx512, avx512_bf16 or amx", wanted);
}

}  // namespace

std::string_view IsaName(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa DetectIsa() {
  static const Isa kDetected = ReadCpu();
  return kDetected;
}

Isa FastestIsa() {
  const Isa detected = DetectIsa();
  return detected == Isa::kAvx512Bf16 && IsMadeByIntel() ? Isa::kAvx512 : detected;
}

Isa SelectIsa() {
  static const Isa kSelected = ChooseIsa(std::getenv("OUTRIDER_ISA"));
  return kSelected;
}

}  // namespace outrider
