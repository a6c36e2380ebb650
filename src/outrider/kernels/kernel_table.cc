#include "outrider/kernels/kernel_table.h"

#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider {

const KernelTable& GetKernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
    case Isa::kAvx2:
    case Isa::kAvx512:
    case Isa::kAmx:
      return reference::Kernels();
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
