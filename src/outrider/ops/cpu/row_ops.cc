// CpuOps: rows of a step, and products of matrices.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "outrider/ops/cpu/block_sampler.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_sampler.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/cpu_weight_loader.h"
#include "outrider/ops/cpu/lane_sums.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "outrider/ops/cpu/rank_rows.h"
#include "outrider/ops/rotary_angles.h"

namespace outrider::cpu {

const CpuOps& GetCpuOps(Isa isa) {
  static const auto all = [] {
    std::map<Isa, CpuOps> ops;
    for (int i = 0; i <= static_cast<int>(DetectIsa()); ++i) {
      const auto each = static_cast<Isa>(i);
      ops.emplace(each, GetKernels(each));
    }
    return ops;
  }();
  return all.at(isa);
}

std::unique_ptr<WeightLoader> CpuOps::MakeWeightLoader(const WeightSource& source,
                                                       const WeightForm& form) const {
  return std::make_unique<CpuWeightLoader>(source, form);
}

std::unique_ptr<StepInputs> CpuOps::MakeStepInputs() const {
  return std::make_unique<CpuStepInputs>();
}

std::unique_ptr<StepSampler> CpuOps::MakeSampler(const Device& device,
                                                 const Verifier& verifier) const {
  return std::make_unique<CpuSampler>(device.pool->size(), verifier);
}

std::unique_ptr<BlockSampler> CpuOps::MakeBlockSampler(const Device& device) const {
  return std::make_unique<CpuBlockSampler>(device.pool->size());
}

void CpuOps::Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
                   bool zero_first, Tensor x) const {
  const CpuStepInputs& rows = Cast(inputs);
  EmbedTokens(table, rows.tokens(), x);
  for (int64_t r = 0; zero_first && r < x.rows; ++r) {
    if (rows.positions()[static_cast<size_t>(r)] == 0) SetZero(context, x.Rows(r, 1));
  }
}

void CpuOps::EmbedTokens(const TokenTable& table, std::span<const TokenRef> tokens, Tensor x) {
  const MatrixView<float> out = x.floats();
  OUTRIDER_CHECK(std::cmp_equal(tokens.size(), out.rows) && out.cols == table.cols);
  for (int64_t r = 0; r < out.rows; ++r) {
    Packed(table).Read(tokens[static_cast<size_t>(r)].token(), out.row(r));
  }
}

Rotary CpuOps::MakeRotary(const Context& context, std::span<const float> frequencies,
                          float magnitude, bool interleaved, const StepInputs& inputs) const {
  const std::span<const int32_t> positions = Cast(inputs).positions();
  const auto num_rows = static_cast<int64_t>(positions.size());
  const auto half = static_cast<int64_t>(frequencies.size());
  const MatrixView<float> cos = context.arena.Matrix(num_rows, half);
  const MatrixView<float> sin = context.arena.Matrix(num_rows, half);
  for (int64_t r = 0; r < num_rows; ++r) {
    FillAngles(positions[static_cast<size_t>(r)], frequencies, magnitude, cos.row(r), sin.row(r));
  }
  return {cos, sin, interleaved};
}

void CpuOps::Norm(const Context& context, Tensor x, const float* weight, float eps,
                  Tensor y) const {
  kernels_.rms_norm(*context.pool, x.floats(), weight, eps, y.floats());
}

void CpuOps::SetZero(const Context& /*context*/, Tensor x) const {
  const MatrixView<float> rows = x.floats();
  for (int64_t r = 0; r < rows.rows; ++r) std::fill_n(rows.row(r), rows.cols, 0.0F);
}

void CpuOps::Copy(const Context& /*context*/, Tensor from, Tensor to) const {
  OUTRIDER_CHECK(from.rows == to.rows && from.cols == to.cols);
  const MatrixView<float> source = from.floats();
  const MatrixView<float> target = to.floats();
  for (int64_t r = 0; r < source.rows; ++r) {
    std::copy_n(source.row(r), source.cols, target.row(r));
  }
}

void CpuOps::CopyRows(const Context& /*context*/, Tensor from, Tensor to,
                      const RowCopies& copies) const {
  if (copies.from().empty()) return;
  OUTRIDER_CHECK(from.cols == to.cols);
  const MatrixView<float> source = from.floats();
  const MatrixView<float> target = to.floats();
  for (size_t i = 0; i < copies.from().size(); ++i) {
    const int32_t row = copies.from()[i];
    OUTRIDER_CHECK(row < source.rows && copies.to()[i] < target.rows);
    std::copy_n(source.row(row), source.cols, target.row(copies.to()[i]));
  }
}

void CpuOps::ShareRows(const Context& context, Tensor x, std::span<const RankRun> runs) const {
  GatherRuns(context, x.floats(), runs);
}

void CpuOps::ToHost(const Context& /*context*/, Tensor x, std::span<float> to) const {
  const MatrixView<float> rows = x.floats();
  OUTRIDER_CHECK(std::cmp_equal(to.size(), rows.rows * rows.cols));
  for (int64_t r = 0; r < rows.rows; ++r) {
    std::copy_n(rows.row(r), rows.cols, to.begin() + r * rows.cols);
  }
}

// Products of one call run as one task list, but for those that are rounded otherwise.
void CpuOps::Multiply(const Context& context, std::span<const Product> products) const {
  const Scratch::Frame frame(context.arena);
  const auto count = static_cast<int64_t>(products.size());
  int64_t most = 0;
  for (const Product& p : products) most += p.groups;
  auto* jobs = context.arena.Take<MatMulJob>(most);
  auto* parts = context.arena.Take<PackedMatrix>(most);  // groups of rows of a weight
  auto* inner = context.arena.Take<MatrixView<float>>(count);
  auto* gathered = context.arena.Take<SharedRows>(count);
  size_t num_jobs = 0;
  size_t num_gathered = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    const WeightCut cut = p.w->cut;
    OUTRIDER_CHECK(p.float32 == products.front().float32);
    const MatrixView<float> x = Gathered(context, p.x.floats(), cut.input, p.w->cols);
    MatrixView<float> y = p.silu_mul ? context.arena.Matrix(p.x.rows, p.w->rows) : p.y.floats();
    if (cut.rows == Cut::kRows && context.place().ranks > 1) {
      OUTRIDER_CHECK(!p.silu_mul && p.groups == 1 && y.cols == p.w->rows);
      const Share own = OwnShare(context, cut.rows, y.cols);
      gathered[num_gathered++] = {y.Columns(own.first, own.count), y, cut.rows};
      y = y.Columns(own.first, own.count);
    }
    inner[i] = y;
    if (p.groups == 1) {
      jobs[num_jobs++] = {.x = x, .w = &Packed(*p.w), .y = y, .accumulate = p.accumulate};
      continue;
    }
    OUTRIDER_CHECK(!p.silu_mul && p.w->rows % p.groups == 0 && y.cols == p.w->rows);
    const int64_t rows = p.w->rows / p.groups;
    for (int64_t g = 0; g < p.groups; ++g) {
      parts[num_jobs] = Packed(*p.w).Rows(g * rows, rows);
      jobs[num_jobs] = {.x = x.Columns(g * p.w->cols, p.w->cols),
                        .w = &parts[num_jobs],
                        .y = y.Columns(g * rows, rows),
                        .accumulate = p.accumulate};
      ++num_jobs;
    }
  }
  kernels_.matmul(*context.pool, {jobs, num_jobs},
                  products.front().float32 ? DType::kF32 : context.operand_dtype);
  for (size_t i = 0; i < products.size(); ++i) {
    if (products[i].silu_mul) {
      kernels_.silu_mul(*context.pool, inner[i], products[i].limit, products[i].y.floats());
    }
  }
  if (num_gathered > 0) Gather(context, {gathered, num_gathered});
}

void CpuOps::Head(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
                  Tensor logits) const {
  OUTRIDER_CHECK(std::cmp_equal(rows.size(), logits.rows));
  const Scratch::Frame frame(context.arena);
  const bool wanted = logits.data != nullptr;
  const std::span<const Share> shares = HeadShares(context, w.rows, logits.cols);
  const Share own = shares[static_cast<size_t>(context.place().rank)];
  const MatrixView<float> part = wanted ? logits.floats().Columns(own.first, own.count)
                                        : context.arena.Matrix(logits.rows, own.count);
  if (own.count > 0) {
    const PackedMatrix head = Packed(w).FirstRows(own.count);
    kernels_.matmul(
        *context.pool,
        std::array{MatMulJob{.x = x.floats(), .x_rows = rows.data(), .w = &head, .y = part}},
        context.operand_dtype);
  }
  GatherLogits(context, part, logits.floats(), shares);
}

void CpuOps::HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows,
                        const Weight& w, int32_t num_tokens, std::span<int32_t> tokens) const {
  OUTRIDER_CHECK(rows.size() == tokens.size());
  const Scratch::Frame frame(context.arena);
  const std::span<const Share> shares = HeadShares(context, w.rows, num_tokens);
  const Share own = shares[static_cast<size_t>(context.place().rank)];
  const std::span<float> values = {context.arena.Take<float>(static_cast<int64_t>(rows.size())),
                                   rows.size()};
  std::fill(tokens.begin(), tokens.end(), -1);
  std::ranges::fill(values, -std::numeric_limits<float>::infinity());
  if (own.count > 0) {
    const PackedMatrix head = Packed(w).FirstRows(own.count);
    kernels_.matmul_arg_max(
        *context.pool,
        {.x = x.floats(), .x_rows = rows.data(), .w = &head, .columns = tokens, .values = values},
        context.operand_dtype);
  }
  if (context.place().ranks > 1) ChooseAmongRanks(context, shares, values, tokens);
}

}  // namespace outrider::cpu
