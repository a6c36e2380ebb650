#include "outrider/kernels/cpu/avx2/avx2_kernels.h"

#include <algorithm>
#include <chrono>

#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx2 {

namespace {

double SecondsWithFactor(float factor) {
  using Clock = std::chrono::steady_clock;
  double best = 1;
  for (int i = 0; i < 8; ++i) {
    const Clock::time_point start = Clock::now();
    const volatile float sum = MultiplyByFactor(factor, 100);
    static_cast<void>(sum);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

/// Whether a multiply-add takes the same time with a subnormal factor: AMD's processors need no
/// more, Intel's about 150 cycles.
bool SubnormalFactorsAreFast() {
  return SecondsWithFactor(0x1p-129F) < 4 * SecondsWithFactor(1.0F);
}

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx2");
  static constexpr KernelTable kTableByFloat16 = TableOf<kLeavesByFloat16>("avx2");
  static const bool kFast = SubnormalFactorsAreFast();
  return kFast ? kTable : kTableByFloat16;
}

}  // namespace outrider::cpu::avx2
