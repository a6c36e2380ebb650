#include "outrider/kernels/cpu/avx512/avx512_kernels.h"

#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx512 {

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx512");
  return kTable;
}

}  // namespace outrider::cpu::avx512
