// What the benchmarks measure of the goals for Hopper: each records its figures, and hopper_goals,
// which runs them all, prints them as one table.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace outrider::cuda {

enum class Goal {
  kFewRowsBandwidth,   // products of 16 MB and more, 1 to 32 rows: limit / time
  kFewRowsOracle,      // those products, bf16: cuBLASLt's time / time
  kSomeRowsOracle,     // 64 to 256 rows, bf16: cuBLASLt's time / time
  kManyRowsRate,       // 1024 rows and more, bf16: TFLOP/s
  kManyRowsOracle,     // those products: cuBLASLt's time / time
  kManyRowsCodes,      // 1024 rows and more, e4m3: bf16's time / time
  kSmallProducts,      // products below 16 MB, up to 32 rows: us above the limit
  kExperts,            // GLM-4.7-Flash's, bf16: limit / time
  kSmallOperations,    // norms, writes, router, combine, up to 128 rows: us
  kHeadAndDraw,        // 154,880 x 2048 and a draw, 1 to 64 rows: bytes' time / time
  kLayerOneRow,        // V2-Lite's MoE layer: us
  kLayerThirtyTwoRows  // V2-Lite's MoE layer: time / bytes' time
};

struct GoalFigure {
  Goal goal;
  std::string where;
  double value;
};

inline std::vector<GoalFigure>& GoalFigures() {
  static std::vector<GoalFigure> figures;
  return figures;
}

inline void RecordGoal(Goal goal, std::string where, double value) {
  GoalFigures().push_back({goal, std::move(where), value});
}

// The programs that hopper_goals runs; each has a main of its own, too.
int RunMatMulBench(int argc, char** argv);
int RunStepKernelsBench();
int RunDecoderLayerBench(int argc, char** argv);

}  // namespace outrider::cuda
