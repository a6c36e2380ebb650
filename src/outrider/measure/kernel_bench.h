// `outrider bench kernels`: the kernels of this machine against what it can do at most, with both
// measured in one run.
#pragma once

#include <string>
#include <vector>

#include "outrider/base/cpu_features.h"
#include "outrider/base/thread_pool.h"

namespace outrider {

/// One line of the table: a ratio and what it has to be.
struct KernelFigure {
  std::string name;
  double milliseconds = 0;  // of what is measured; of ratios of two times, the first
  double ratio = 0;
  double target = 0;
  bool at_most = false;  // the target is an upper limit

  bool Met() const { return at_most ? ratio <= target : ratio >= target; }
};

/// What `outrider bench kernels` prints.
struct KernelReport {
  std::string kernels;  // the table's name
  std::string cpu;
  int num_threads = 0;
  double read_bytes_per_second = 0;  // from 1 GiB of memory
  double fma_flops_per_second = 0;   // float32, in registers of the kernels' instruction set
  double dot_flops_per_second = 0;   // VDPBF16PS's, in registers; 0 with other instruction sets
  double tile_flops_per_second = 0;  // AMX's bfloat16, from L2; 0 with other instruction sets
  std::vector<KernelFigure> figures;
};

/// Measures all figures, which takes about a minute and up to 2.2 GB of memory, and tells each as
/// it is found. Throws Error below AVX2.
KernelReport MeasureKernels(Isa isa, ThreadPool& pool,
                            FunctionRef<void(const KernelFigure&)> found);

std::string KernelTableText(const KernelReport& report);
std::string KernelJson(const KernelReport& report);

}  // namespace outrider
