// Which instruction sets this processor and system offer, read once from CPUID and XGETBV.
#pragma once

#include <optional>
#include <string_view>

namespace outrider {

/// The CPU instruction sets that kernels are written for, in rising order. Each includes the
/// former.
enum class Isa { kReference, kAvx2, kAvx512, kAmx };

/// "reference", "avx2", "avx512", "amx".
std::string_view IsaName(Isa isa);

/// The best instruction set this machine can run.
Isa DetectIsa();

/// DetectIsa(), or the set that the environment variable OUTRIDER_ISA names. Throws Error when the
/// name is unknown or the machine lacks it.
Isa SelectIsa();

}  // namespace outrider
