// The goals for the kernels on Hopper, in one table: beside each how many of the figures meet it,
// the best and the worst of them. The figures themselves, with limits and cuBLASLt, come before it.
//
//   hopper_goals
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/cuda/goal_figures.h"

namespace outrider::cuda {
namespace {

struct GoalRow {
  Goal goal;
  const char* what;
  double wanted;
  bool at_least;  // else at most
};

constexpr GoalRow kGoals[] = {
    {Goal::kFewRowsBandwidth, "from 16 MB, 1 to 32 rows: share of the rate of reads", 0.85, true},
    {Goal::kFewRowsOracle, "the same, bf16: cuBLASLt's time / ours", 0.95, true},
    {Goal::kSomeRowsOracle, "from 16 MB, 64 to 256 rows, bf16: cuBLASLt's / ours", 0.95, true},
    {Goal::kManyRowsRate, "from 16 MB, 1024 rows and more, bf16: TFLOP/s", 620, true},
    {Goal::kManyRowsOracle, "the same: cuBLASLt's time / ours", 0.9, true},
    {Goal::kManyRowsCodes, "the same, e4m3: bf16's time / ours", 0.85, true},
    {Goal::kSmallProducts, "smaller products, 1 to 32 rows: us above the limit", 3, false},
    {Goal::kExperts, "GLM-4.7-Flash's experts, bf16, 1 to 512 rows: limit / time", 0.8, true},
    {Goal::kSmallOperations, "norms, writes, routers, to 128 rows: us in a chain", 3, false},
    {Goal::kHeadAndDraw, "head of 154,880 x 2048 and draw, to 64 rows: bytes / time", 0.9, true},
    {Goal::kLayerOneRow, "V2-Lite MoE layer, 1 row: us", 55, false},
    {Goal::kLayerThirtyTwoRows, "the same, 32 rows: time / bytes' time", 1.25, false},
};

void PrintTable() {
  std::printf("\n| goal | wanted | met | best | worst |\n|---|---|---|---|---|\n");
  for (const GoalRow& row : kGoals) {
    std::vector<GoalFigure> figures;
    for (const GoalFigure& figure : GoalFigures()) {
      if (figure.goal == row.goal) figures.push_back(figure);
    }
    if (figures.empty()) {
      std::printf("| %s | %s %g | not measured | | |\n", row.what,
                  row.at_least ? ">=" : "<=", row.wanted);
      continue;
    }
    // The best first.
    std::stable_sort(figures.begin(), figures.end(), [&](const GoalFigure& a, const GoalFigure& b) {
      return row.at_least ? a.value > b.value : a.value < b.value;
    });
    const auto met = std::count_if(figures.begin(), figures.end(), [&](const GoalFigure& figure) {
      return row.at_least ? figure.value >= row.wanted : figure.value <= row.wanted;
    });
    const GoalFigure& best = figures.front();
    const GoalFigure& worst = figures.back();
    std::printf("| %s | %s %g | %d of %zu | %.4g (%s) | %.4g (%s) |\n", row.what,
                row.at_least ? ">=" : "<=", row.wanted, static_cast<int>(met), figures.size(),
                best.value, best.where.c_str(), worst.value, worst.where.c_str());
  }
}

int Main() {
  char name[] = "hopper_goals";
  char* arguments[] = {name, nullptr};
  if (const int error = RunMatMulBench(1, arguments); error != 0) return error;
  if (const int error = RunStepKernelsBench(); error != 0) return error;
  if (const int error = RunDecoderLayerBench(1, arguments); error != 0) return error;
  PrintTable();
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main() { return outrider::cuda::Main(); }
