#include "outrider/kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

// Rows that pass over a panel together: their share of x in one block of k fits into L2.
constexpr int64_t kRowBlock = 192;
constexpr int64_t kLeastRowBlock = 24;

// Time of a product whose weights are in a cache, for the choice of tasks.
constexpr double kNanosecondsPerByte = 1.0 / 40;
constexpr double kNanosecondsPerFma = 1.0 / 45;

struct Task {
  const MatMulJob* job;
  const float* const* x;  // pointers of the job's rows
  int64_t first_panel, num_panels;
  int64_t first_row, num_rows;
};

/// What a call borrows; belongs to the calling thread.
struct CallScratch {
  Scratch rounded;
  std::vector<const float*> rows;       // one pointer per row of every job
  std::vector<const float*> rounded_x;  // per job: its x after rounding
  std::vector<int64_t> rounded_stride;
  std::vector<Task> tasks;
};

bool SameRows(MatrixView<const float> a, MatrixView<const float> b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

/// Elements between rows that are made here: whole cache lines, and not a multiple of a page, so
/// that the rows of a tile do not compete for the same lines of L1.
int64_t RowStride(int64_t cols) { return (cols + 15) / 16 * 16 + 16; }

/// Rounds every distinct x of the call once; fills scratch.rounded_x and rounded_stride.
void RoundRows(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
               CallScratch& scratch) {
  int64_t total = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i > 0 && SameRows(jobs[i].x, jobs[i - 1].x)) continue;
    total += jobs[i].x.rows * RowStride(jobs[i].x.cols);
  }
  auto* next = scratch.rounded.Take<float>(total);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatrixView<const float> x = jobs[i].x;
    if (i > 0 && SameRows(x, jobs[i - 1].x)) {
      scratch.rounded_x.push_back(scratch.rounded_x.back());
      scratch.rounded_stride.push_back(scratch.rounded_stride.back());
      continue;
    }
    const int64_t stride = RowStride(x.cols);
    const double nanoseconds = static_cast<double>(x.rows * x.cols) * kNanosecondsPerByte * 8;
    RunTasks(pool, x.rows, nanoseconds,
             [&](int64_t r) { leaves.round_to_bfloat16(x.row(r), x.cols, next + r * stride); });
    scratch.rounded_x.push_back(next);
    scratch.rounded_stride.push_back(stride);
    next += x.rows * stride;
  }
}

/// Fills scratch.rows: where the K floats of every row of every job are.
void FindRows(std::span<const MatMulJob> jobs, bool rounded, CallScratch& scratch) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    const float* data = rounded ? scratch.rounded_x[i] : job.x.data;
    const int64_t stride = rounded ? scratch.rounded_stride[i] : job.x.stride;
    for (int64_t r = 0; r < job.y.rows; ++r) {
      scratch.rows.push_back(data + (job.x_rows != nullptr ? job.x_rows[r] : r) * stride);
    }
  }
}

double PanelNanoseconds(const MatMulJob& job, int64_t rows) {
  const auto bytes = static_cast<double>(PanelBytes(job.w->format.dtype, job.w->cols));
  const auto fmas = static_cast<double>(job.w->cols * kPanelRows * rows);
  return std::max(bytes * kNanosecondsPerByte, fmas * kNanosecondsPerFma);
}

/// Fills scratch.tasks; returns the estimated time of all of them together.
double MakeTasks(std::span<const MatMulJob> jobs, int threads, CallScratch& scratch) {
  double total = 0;
  for (const MatMulJob& job : jobs) {
    total += static_cast<double>(job.w->panels()) * PanelNanoseconds(job, job.y.rows);
  }
  const double per_task = TaskNanoseconds(total, threads);
  const float* const* x = scratch.rows.data();
  for (const MatMulJob& job : jobs) {
    const int64_t rows = job.y.rows;
    if (rows == 0) continue;
    const int64_t panels = job.w->panels();
    int64_t row_block = kRowBlock;
    while (panels * ((rows + row_block - 1) / row_block) < 2 * threads &&
           row_block > kLeastRowBlock) {
      row_block /= 2;
    }
    const int64_t blocks = (rows + row_block - 1) / row_block;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first_row = rows * b / blocks;
      const int64_t num_rows = rows * (b + 1) / blocks - first_row;
      const double nanoseconds = PanelNanoseconds(job, num_rows);
      const int64_t wanted =
          std::max<int64_t>(1, static_cast<int64_t>(per_task / nanoseconds)) + kPanelGroup - 1;
      const int64_t step = wanted / kPanelGroup * kPanelGroup;
      for (int64_t p = 0; p < panels; p += step) {
        scratch.tasks.push_back({.job = &job,
                                 .x = x + first_row,
                                 .first_panel = p,
                                 .num_panels = std::min(step, panels - p),
                                 .first_row = first_row,
                                 .num_rows = num_rows});
      }
    }
    x += rows;
  }
  return total;
}

/// Panels of a task's weight.
struct PanelRun {
  int64_t first, num;
};

/// One product of the rows x, which are the task's own or those multiplied by the scales of the
/// panels.
void RunPanels(const LeafKernels& leaves, const Task& task, const float* const* x, PanelRun run,
               Scratch& scratch) {
  const MatMulJob& job = *task.job;
  const PackedMatrix& w = *job.w;
  const DType dtype = w.format.dtype;
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(dtype, w.cols));
  const int64_t first_column = run.first * kPanelRows;
  const Scratch::Frame frame(scratch);
  const bool eight_bit = dtype == DType::kF8E4M3 || dtype == DType::kI8;
  leaves.multiply_panels({
      .format = dtype,
      .panels = w.data + run.first * panel_bytes,
      .panel_bytes = panel_bytes,
      .num_panels = run.num,
      .cols = w.cols,
      .x = x,
      .rows = task.num_rows,
      .y = job.y.row(task.first_row) + first_column,
      .y_stride = job.y.stride,
      .columns = std::min(run.num * kPanelRows, w.rows - first_column),
      .accumulate = job.accumulate,
      .scales = x == task.x && eight_bit ? w.scales(run.first) : nullptr,
      .scales_per_panel = ScalesPerPanel(w.format, w.cols),
      .scale_cols = w.format.scale_cols,
      .sums = scratch.Take<float>(PanelProductScratch(task.num_rows)),
      .widened = eight_bit ? scratch.Take<float>(kWidenedWeights) : nullptr,
  });
}

/// Runs of panels with equal scales, x scaled anew for each.
void RunFp8Task(const LeafKernels& leaves, const Task& task, Scratch& scratch) {
  const PackedMatrix& w = *task.job->w;
  const auto scales = static_cast<size_t>(ScalesPerPanel(w.format, w.cols));
  const int64_t stride = RowStride(w.cols);
  auto* scaled = scratch.Take<float>(task.num_rows * stride);
  auto** x = scratch.Take<const float*>(task.num_rows);
  for (int64_t r = 0; r < task.num_rows; ++r) x[r] = scaled + r * stride;
  const int64_t end = task.first_panel + task.num_panels;
  for (int64_t first = task.first_panel; first < end;) {
    const float* of_first = w.scales(first);
    int64_t next = first + 1;
    while (next < end && std::memcmp(of_first, w.scales(next), scales * sizeof(float)) == 0) {
      ++next;
    }
    for (int64_t r = 0; r < task.num_rows; ++r) {
      leaves.scale_row(task.x[r], of_first, w.format.scale_cols, w.cols, scaled + r * stride);
    }
    RunPanels(leaves, task, x, {first, next - first}, scratch);
    first = next;
  }
}

void RunTask(const LeafKernels& leaves, const Task& task) {
  thread_local Scratch scratch;
  const Scratch::Frame frame(scratch);
  // Scales are multiplied with the rows, or, where that gives the same bits, with widened weights.
  const PackedFormat format = task.job->w->format;
  const bool widened_first = task.num_rows > leaves.most_rows_of_codes;
  const bool scales_weights = widened_first && format.power_of_two_scales;
  if (format.dtype == DType::kF8E4M3 && !scales_weights) {
    RunFp8Task(leaves, task, scratch);
  } else {
    RunPanels(leaves, task, task.x, {task.first_panel, task.num_panels}, scratch);
  }
}

}  // namespace

void MatMul(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
            DType operand_dtype) {
  CheckMatMul(jobs, operand_dtype);
  thread_local CallScratch scratch;
  scratch.rows.clear();
  scratch.rounded_x.clear();
  scratch.rounded_stride.clear();
  scratch.tasks.clear();
  const Scratch::Frame frame(scratch.rounded);
  const bool rounded = operand_dtype == DType::kBF16;
  if (rounded) RoundRows(leaves, pool, jobs, scratch);
  FindRows(jobs, rounded, scratch);
  const double nanoseconds = MakeTasks(jobs, pool.size(), scratch);
  const Task* tasks = scratch.tasks.data();
  RunTasks(pool, static_cast<int64_t>(scratch.tasks.size()), nanoseconds,
           [&](int64_t i) { RunTask(leaves, tasks[i]); });
}

}  // namespace outrider::cpu
