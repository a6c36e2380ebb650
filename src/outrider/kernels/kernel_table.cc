#include "outrider/kernels/kernel_table.h"

#include "outrider/base/error.h"
#include "outrider/kernels/cpu/amx/amx_kernels.h"
#include "outrider/kernels/cpu/avx2/avx2_kernels.h"
#include "outrider/kernels/cpu/avx512/avx512_kernels.h"
#include "outrider/kernels/cpu/avx512_bf16/avx512_bf16_kernels.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider {

const KernelTable& GetKernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return reference::Kernels();
    case Isa::kAvx2:
      return cpu::avx2::Kernels();
    case Isa::kAvx512:
      return cpu::avx512::Kernels();
    case Isa::kAvx512Bf16:
      return cpu::avx512_bf16::Kernels();
    case Isa::kAmx:
      return cpu::amx::Kernels();
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
