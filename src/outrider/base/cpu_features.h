// Which instruction sets this processor and system offer, read once per process from CPUID and
// XGETBV.
#pragma once

#include <array>
#include <string_view>

namespace outrider {

/// The CPU instruction sets that kernels are written for, in rising order. Each includes the
/// former.
enum class Isa { kReference, kAvx2, kAvx512, kAvx512Bf16, kAmx };

inline constexpr std::array kAllIsas = {Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                                        Isa::kAmx};

/// "reference", "avx2", "avx512", "avx512_bf16", "amx".
std::string_view IsaName(Isa isa);

/// The highest instruction set this machine can run.
Isa DetectIsa();

/// The fastest one: DetectIsa(), but avx512 in place of avx512_bf16 on Intel's processors, which
/// multiply with VDPBF16PS at half the rate of FMAs, where AMD's do so at twice that.
Isa FastestIsa();

/// FastestIsa(), or the set that the environment variable OUTRIDER_ISA names; the variable is read
/// once. Throws Error when the name is unknown or the machine lacks it.
Isa SelectIsa();

}  // namespace outrider
