// Compares Step-3.5 checkpoints with the golden file in their directories (random_step3p5_test.py
// makes them). Prints a line for each; exit status 1 when a log-probability differs by 1e-3.
//
//   step3p5_golden_check DIRECTORY...
#include <cstdio>

#include "outrider/base/error.h"
#include "tests/networks/step3p5_golden.h"

int main(int argc, char** argv) {
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      outrider::Step3p5Golden golden(argv[i]);
      double worst = 0;
      for (const outrider::StepGoldenRun& run :
           {outrider::StepGoldenRun{}, {outrider::Phase::kDecode, 3, 8}}) {
        worst = std::max(worst, golden.LargestDifference(0, run));
      }
      fmt::print("{}: {:.1e}\n", argv[i], worst);
      if (!(worst < 1e-3)) status = 1;
    } catch (const outrider::Error& error) {
      fmt::print("{}\n", error.what());
      status = 1;
    }
  }
  return status;
}
