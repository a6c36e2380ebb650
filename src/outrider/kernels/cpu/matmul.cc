// Cuts products into tasks: panels of outputs, rows that pass over a panel together, blocks of k.
// Longer than most files: every weight format and both orders of sums go one way through it.
#include "outrider/kernels/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "outrider/base/arg_max.h"
#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

// Rows that pass over a panel together: their share of x in one block of k fits into L2.
constexpr int64_t kRowBlock = 192;
constexpr int64_t kLeastRowBlock = 24;
// A task's rows in tiles, and the rows of two groups, which take turns in AMX.
constexpr int64_t kTileRowBlock = 256;
constexpr int64_t kTileRowStep = 2 * kTileRows;
// Their tasks are so much longer, since each reads its share of x anew.
constexpr double kTileTaskFactor = 4;

// What a run of panels of 4-bit weights takes widened, at most, but for a single panel: a part of
// L2.
constexpr int64_t kWidenedFourBitBytes = int64_t{512} << 10;

// Time of a product whose weights are in a cache, for the choice of tasks.
constexpr double kNanosecondsPerByte = 1.0 / 40;
constexpr double kNanosecondsPerFma = 1.0 / 45;

/// In what form the leaves take the rows of a job.
struct JobRows {
  bool bf16_dot_order = false;
  BFloat16* tiles = nullptr;       // in tiles, or
  const float* rounded = nullptr;  // x rounded to bfloat16, or x itself
  int64_t rounded_stride = 0;
};

/// Up to kTileRows rows to be laid in tiles.
struct TileGroup {
  const float* const* x;
  int64_t rows, cols;
  BFloat16* tiles;
};

/// The largest of some outputs of a row.
struct RowMaximum {
  float value = -std::numeric_limits<float>::infinity();
  int32_t column = -1;

  /// Columns must come in rising order.
  void Include(RowMaximum other) {
    if (other.value > value) *this = other;
  }
};

struct Task {
  const MatMulJob* job;
  bool bf16_dot_order;
  const BFloat16* tiles;  // the task's rows in tiles, or null
  const float* const* x;  // pointers of the task's rows
  int64_t first_panel, num_panels;
  int64_t first_row, num_rows;
  RowMaximum* maxima = nullptr;  // [num_rows], in place of y
};

/// What a call borrows; belongs to the calling thread.
struct CallScratch {
  Scratch rounded;
  std::vector<JobRows> jobs;
  std::vector<const float*> rows;  // one pointer per row of every job
  std::vector<TileGroup> groups;
  std::vector<Task> tasks;
};

/// What panels of 4-bit weights are widened to (RunFourBitTask).
DType WidenedType(DType four_bit) { return four_bit == DType::kI4 ? DType::kF32 : DType::kBF16; }

bool SameRows(MatrixView<const float> a, MatrixView<const float> b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

/// Elements between rows that are made here: whole cache lines, and not a multiple of a page, so
/// that the rows of a tile do not compete for the same lines of L1.
int64_t RowStride(int64_t cols) { return (cols + 15) / 16 * 16 + 16; }

/// Chooses the form of every job's rows; fills scratch.jobs, but for where they are.
void ChooseForms(const LeafKernels& leaves, std::span<const MatMulJob> jobs, bool rounded,
                 CallScratch& scratch) {
  for (const MatMulJob& job : jobs) {
    JobRows& rows = scratch.jobs.emplace_back();
    PackedFormat format = job.w->format;
    if (format.group_cols() > 0) format.dtype = WidenedType(format.dtype);
    if (!rounded || job.w->cols == 0 || leaves.min_rows_for_tiles == nullptr) continue;
    const int64_t least = leaves.min_rows_for_tiles(format.dtype, format.scale_cols);
    rows.bf16_dot_order = least > 0;
    if (rows.bf16_dot_order && job.y.rows >= least) {
      rows.tiles = scratch.rounded.Take<BFloat16>(TiledElements(job.y.rows, job.w->cols));
    }
  }
}

/// Rounds every distinct x whose rows are not to be in tiles once; says in scratch.jobs where.
void RoundRows(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
               CallScratch& scratch) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatrixView<const float> x = jobs[i].x;
    JobRows& rows = scratch.jobs[i];
    if (rows.tiles != nullptr) continue;
    if (i > 0 && scratch.jobs[i - 1].tiles == nullptr && SameRows(x, jobs[i - 1].x)) {
      rows.rounded = scratch.jobs[i - 1].rounded;
      rows.rounded_stride = scratch.jobs[i - 1].rounded_stride;
      continue;
    }
    const int64_t stride = RowStride(x.cols);
    auto* to = scratch.rounded.Take<float>(x.rows * stride);
    const double nanoseconds = static_cast<double>(x.rows * x.cols) * kNanosecondsPerByte * 8;
    RunTasks(pool, x.rows, nanoseconds,
             [&](int64_t r) { leaves.round_to_bfloat16(x.row(r), x.cols, to + r * stride); });
    rows.rounded = to;
    rows.rounded_stride = stride;
  }
}

/// Fills scratch.rows: where the K floats of every row of every job are.
void FindRows(std::span<const MatMulJob> jobs, CallScratch& scratch) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    const JobRows& rows = scratch.jobs[i];
    const float* data = rows.rounded != nullptr ? rows.rounded : job.x.data;
    const int64_t stride = rows.rounded != nullptr ? rows.rounded_stride : job.x.stride;
    for (int64_t r = 0; r < job.y.rows; ++r) {
      scratch.rows.push_back(data + (job.x_rows != nullptr ? job.x_rows[r] : r) * stride);
    }
  }
}

/// Lays the rows of jobs that want them so in tiles.
void LayTiles(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
              CallScratch& scratch) {
  const float* const* x = scratch.rows.data();
  double elements = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    BFloat16* tiles = scratch.jobs[i].tiles;
    for (int64_t r = 0; tiles != nullptr && r < job.y.rows; r += kTileRows) {
      const int64_t rows = std::min(kTileRows, job.y.rows - r);
      scratch.groups.push_back({x + r, rows, job.w->cols, tiles});
      tiles += TiledElements(rows, job.w->cols);
      elements += static_cast<double>(rows * job.w->cols);
    }
    x += job.y.rows;
  }
  const TileGroup* groups = scratch.groups.data();
  RunTasks(pool, static_cast<int64_t>(scratch.groups.size()), elements * kNanosecondsPerByte * 6,
           [&](int64_t i) {
             leaves.round_to_tiles(groups[i].x, groups[i].rows, groups[i].cols, groups[i].tiles);
           });
}

double PanelNanoseconds(const LeafKernels& leaves, const MatMulJob& job, int64_t rows,
                        bool in_tiles) {
  const auto bytes = static_cast<double>(PanelBytes(job.w->format.dtype, job.w->cols));
  const auto fmas = static_cast<double>(job.w->cols * kPanelRows * rows);
  return std::max(bytes * kNanosecondsPerByte,
                  fmas * (in_tiles ? leaves.nanoseconds_per_tile_fma : kNanosecondsPerFma));
}

/// Fills scratch.tasks; returns the estimated time of all of them together.
double MakeTasks(const LeafKernels& leaves, std::span<const MatMulJob> jobs, int threads,
                 CallScratch& scratch) {
  double total = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const bool in_tiles = scratch.jobs[i].tiles != nullptr;
    total += static_cast<double>(jobs[i].w->panels()) *
             PanelNanoseconds(leaves, jobs[i], jobs[i].y.rows, in_tiles);
  }
  const double per_task = TaskNanoseconds(total, threads);
  const float* const* x = scratch.rows.data();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    const JobRows& form = scratch.jobs[i];
    const bool in_tiles = form.tiles != nullptr;
    const int64_t rows = job.y.rows;
    if (rows == 0) continue;
    const int64_t panels = job.w->panels();
    int64_t row_block = in_tiles ? kTileRowBlock : kRowBlock;
    while (panels * ((rows + row_block - 1) / row_block) < 2 * threads &&
           row_block > (in_tiles ? kTileRowStep : kLeastRowBlock)) {
      row_block /= 2;
    }
    const int64_t blocks = (rows + row_block - 1) / row_block;
    const int64_t step_rows = in_tiles ? kTileRowStep : 1;
    const int64_t steps = (rows + step_rows - 1) / step_rows;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first_row = steps * b / blocks * step_rows;
      const int64_t num_rows = std::min(rows, steps * (b + 1) / blocks * step_rows) - first_row;
      const double nanoseconds = PanelNanoseconds(leaves, job, num_rows, in_tiles);
      const double wanted_time =
          in_tiles && num_rows > kTileRows ? per_task * kTileTaskFactor : per_task;
      const int64_t wanted =
          std::max<int64_t>(1, static_cast<int64_t>(wanted_time / nanoseconds)) + kPanelGroup - 1;
      const int64_t step = wanted / kPanelGroup * kPanelGroup;
      for (int64_t p = 0; p < panels; p += step) {
        scratch.tasks.push_back(
            {.job = &job,
             .bf16_dot_order = form.bf16_dot_order,
             .tiles = in_tiles ? form.tiles + TiledElements(first_row, job.w->cols) : nullptr,
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
  const std::byte* widened = nullptr;  // of 4-bit weights: the panels as WidenedType
};

/// One product of the rows x, which are the task's own or those multiplied by the scales of the
/// panels.
void RunPanels(const LeafKernels& leaves, const Task& task, const float* const* x, PanelRun run,
               Scratch& scratch) {
  const MatMulJob& job = *task.job;
  const PackedMatrix& w = *job.w;
  const DType dtype = run.widened != nullptr ? WidenedType(w.format.dtype) : w.format.dtype;
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(dtype, w.cols));
  const auto* panels = run.widened != nullptr ? run.widened : w.data + run.first * panel_bytes;
  const int64_t first_column = run.first * kPanelRows;
  const int64_t columns = std::min(run.num * kPanelRows, w.rows - first_column);
  const Scratch::Frame frame(scratch);
  // Sums that are not finished are no results yet.
  const bool apart = task.maxima != nullptr || w.format.row_scales;
  const MatrixView<float> y =
      apart ? scratch.Matrix(task.num_rows, columns)
            : job.y.Rows(task.first_row, task.num_rows).Columns(first_column, columns);
  const bool eight_bit = dtype == DType::kF8E4M3 || dtype == DType::kI8;
  leaves.multiply_panels({
      .format = dtype,
      .panels = panels,
      .panel_bytes = panel_bytes,
      .num_panels = run.num,
      .cols = w.cols,
      .x = x,
      .x_tiles = task.tiles,
      .rows = task.num_rows,
      .bf16_dot_order = task.bf16_dot_order,
      .y = y.data,
      .y_stride = y.stride,
      .columns = columns,
      .accumulate = job.accumulate && !apart,
      .scales = x == task.x && eight_bit ? w.scales(run.first) : nullptr,
      .scales_per_panel = ScalesPerPanel(w.format, w.cols),
      .scale_cols = w.format.scale_cols,
      .exponents = dtype == DType::kF4E2M1 ? w.group_scales(run.first) : nullptr,
      .sums = scratch.Take<float>(task.tiles != nullptr ? TileProductScratch(task.num_rows)
                                                        : PanelProductScratch(task.num_rows)),
      .widened = scratch.Take<float>(kWidenedWeights),
  });
  if (w.format.row_scales) {
    const float* scales = w.row_scales(run.first);
    for (int64_t r = 0; r < task.num_rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) y.row(r)[n] *= scales[n];
      if (task.maxima != nullptr) continue;
      float* out = job.y.row(task.first_row + r) + first_column;
      for (int64_t n = 0; n < columns; ++n) {
        out[n] = job.accumulate ? out[n] + y.row(r)[n] : y.row(r)[n];
      }
    }
  }
  for (int64_t r = 0; task.maxima != nullptr && r < task.num_rows; ++r) {
    const std::span<const float> outputs(y.row(r), static_cast<size_t>(columns));
    const size_t best = ArgMax(outputs);
    // Nothing is above infinity, and a row whose largest output is infinite has none.
    const float value = HasNan(outputs) ? std::numeric_limits<float>::infinity() : outputs[best];
    task.maxima[r].Include({value, static_cast<int32_t>(first_column + best)});
  }
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
    RunPanels(leaves, task, x, {.first = first, .num = next - first}, scratch);
    first = next;
  }
}

/// Whether multiply_panels reads the 4-bit codes for a task's rows.
bool ReadsCodes(const LeafKernels& leaves, const Task& task) {
  return task.job->w->format.group_scale == DType::kF8E8M0 &&
         task.num_rows <=
             (task.tiles != nullptr ? leaves.max_tiled_rows_of_fp4 : leaves.max_rows_of_fp4);
}

void WidenPanel(const LeafKernels& leaves, const PackedMatrix& w, const std::byte* codes,
                const uint8_t* scales, std::byte* to) {
  if (w.format.dtype == DType::kI4) {
    leaves.widen_int4_panel(codes, reinterpret_cast<const BFloat16*>(scales), w.cols,
                            reinterpret_cast<float*>(to));
  } else if (w.format.group_scale == DType::kF8E4M3) {
    leaves.widen_nvfp4_panel(codes, scales, w.cols, reinterpret_cast<BFloat16*>(to));
  } else {
    leaves.widen_fp4_panel(codes, scales, w.cols, reinterpret_cast<BFloat16*>(to));
  }
}

/// Runs of panels that are widened first.
void RunFourBitTask(const LeafKernels& leaves, const Task& task, Scratch& scratch) {
  const PackedMatrix& w = *task.job->w;
  const auto code_bytes = static_cast<int64_t>(PanelBytes(w.format.dtype, w.cols));
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(WidenedType(w.format.dtype), w.cols));
  int64_t at_once = kPanelGroup;
  while (at_once > 1 && at_once * panel_bytes > kWidenedFourBitBytes) at_once /= 2;
  auto* widened = scratch.Take<std::byte>(at_once * panel_bytes);
  const int64_t end = task.first_panel + task.num_panels;
  for (int64_t first = task.first_panel; first < end; first += at_once) {
    const int64_t num = std::min(at_once, end - first);
    for (int64_t p = 0; p < num; ++p) {
      WidenPanel(leaves, w, w.data + (first + p) * code_bytes, w.group_scales(first + p),
                 widened + p * panel_bytes);
    }
    RunPanels(leaves, task, task.x, {first, num, widened}, scratch);
  }
}

void RunTask(const LeafKernels& leaves, const Task& task) {
  thread_local Scratch scratch;
  const Scratch::Frame frame(scratch);
  // The scales multiply the rows; or the widened weights, where that gives the same bits; or, with
  // bf16_dot_order, the sums.
  const PackedFormat format = task.job->w->format;
  const bool widened_first = task.num_rows > leaves.max_rows_widened_in_registers;
  const bool scales_weights = widened_first && format.power_of_two_scales;
  const bool scales_sums = task.bf16_dot_order;
  if (format.group_cols() > 0 && !ReadsCodes(leaves, task)) {
    RunFourBitTask(leaves, task, scratch);
  } else if (format.dtype == DType::kF8E4M3 && !scales_weights && !scales_sums) {
    RunFp8Task(leaves, task, scratch);
  } else {
    RunPanels(leaves, task, task.x, {.first = task.first_panel, .num = task.num_panels}, scratch);
  }
}

CallScratch& ScratchOfCall() {
  thread_local CallScratch scratch;
  return scratch;
}

/// Puts the rows of all jobs into form and fills scratch.tasks; returns the estimated time of all
/// of them together.
double Prepare(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
               DType operand_dtype, CallScratch& scratch) {
  CheckMatMul(jobs, operand_dtype);
  scratch.jobs.clear();
  scratch.rows.clear();
  scratch.groups.clear();
  scratch.tasks.clear();
  const bool rounded = operand_dtype == DType::kBF16;
  ChooseForms(leaves, jobs, rounded, scratch);
  if (rounded) RoundRows(leaves, pool, jobs, scratch);
  FindRows(jobs, scratch);
  LayTiles(leaves, pool, jobs, scratch);
  return MakeTasks(leaves, jobs, pool.size(), scratch);
}

void RunAll(const LeafKernels& leaves, ThreadPool& pool, std::span<const Task> tasks,
            double nanoseconds) {
  RunTasks(pool, static_cast<int64_t>(tasks.size()), nanoseconds,
           [&](int64_t i) { RunTask(leaves, tasks[static_cast<size_t>(i)]); });
}

}  // namespace

void MatMul(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
            DType operand_dtype) {
  CallScratch& scratch = ScratchOfCall();
  const Scratch::Frame frame(scratch.rounded);
  const double nanoseconds = Prepare(leaves, pool, jobs, operand_dtype, scratch);
  RunAll(leaves, pool, scratch.tasks, nanoseconds);
}

void MatMulArgMax(const LeafKernels& leaves, ThreadPool& pool, const ArgMaxJob& job,
                  DType operand_dtype) {
  CallScratch& scratch = ScratchOfCall();
  const Scratch::Frame frame(scratch.rounded);
  const auto rows = static_cast<int64_t>(job.columns.size());
  const MatMulJob product{
      .x = job.x, .x_rows = job.x_rows, .w = job.w, .y = {nullptr, rows, job.w->rows}};
  const double nanoseconds = Prepare(leaves, pool, {&product, 1}, operand_dtype, scratch);
  for (Task& task : scratch.tasks) {
    task.maxima = scratch.rounded.Take<RowMaximum>(task.num_rows);
    std::fill_n(task.maxima, task.num_rows, RowMaximum());
  }
  RunAll(leaves, pool, scratch.tasks, nanoseconds);
  auto* maxima = scratch.rounded.Take<RowMaximum>(rows);
  std::fill_n(maxima, rows, RowMaximum());
  for (const Task& task : scratch.tasks) {
    for (int64_t r = 0; r < task.num_rows; ++r) maxima[task.first_row + r].Include(task.maxima[r]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    job.columns[static_cast<size_t>(r)] = std::isinf(maxima[r].value) ? -1 : maxima[r].column;
    if (!job.values.empty()) job.values[static_cast<size_t>(r)] = maxima[r].value;
  }
}

}  // namespace outrider::cpu
