// CpuOps: Kimi Delta Attention. A task is a head of a request.
#include <algorithm>
#include <cmath>
#include <vector>

#include "outrider/base/rounded_exp.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/delta_head.h"
#include "outrider/ops/cpu/lane_sums.h"

namespace outrider::cpu {

namespace {

/// Beside the squares of a query or key, under the root.
constexpr float kLengthEps = 1e-6F;

float Softplus(float x) { return x > 20.0F ? x : std::log1p(RoundedExp(x)); }

/// Memory that a thread reuses.
struct DeltaScratch {
  DeltaHead head;
  std::vector<float> row;  // q, k, v, decay, u
  std::vector<float> zeros;
};

/// The rows of one request in one head.
class HeadRun {
 public:
  HeadRun(const KernelTable& kernels, const DeltaShape& shape, const DeltaArgs& args,
          const RequestRows& request, int32_t head, DeltaScratch& scratch)
      : kernels_(kernels),
        shape_(shape),
        args_(args),
        request_(request),
        tables_(*request.state.tables),
        head_(head),
        piece_(shape.first_head + head),
        scratch_(scratch),
        dim_(shape.head_dim),
        first_(request.context_length),
        end_(request.context_length + request.query_length),
        state_end_(StateTokens(end_ - request.num_drafts)) {}

  void Run();

 private:
  /// Positions from `first_` on are rows of the step, those before it kept rows.
  float* KeptRow(int32_t position) const {
    return args_.state.Rows(tables_.rows, piece_) + int64_t{position % kKeptStateRows} * 6 * dim_;
  }
  /// Query, key or value (part 0, 1, 2) before the convolution, [D].
  const float* Before(int32_t part, int32_t position) const;
  void StartState();
  void FinishRow(int32_t position);
  /// The convolution of a part at a position, then silu.
  void Convolve(int32_t part, int32_t position, float* out) const;
  void Decays(int64_t row, float* out) const;
  /// Stores the state behind the first `tokens` tokens where the step leaves it.
  void TakeState(int32_t tokens);
  void StoreCheckpoint(int32_t tokens, float* to) const;

  const KernelTable& kernels_;
  const DeltaShape& shape_;
  const DeltaArgs& args_;
  const RequestRows& request_;
  const StateTables& tables_;
  int32_t head_;
  int32_t piece_;
  DeltaScratch& scratch_;
  int64_t dim_;
  int32_t first_;      // position of the first row
  int32_t end_;        // behind the last
  int32_t state_end_;  // tokens of the state that the step leaves
};

const float* HeadRun::Before(int32_t part, int32_t position) const {
  if (position < 0) return scratch_.zeros.data();
  if (position < first_) return KeptRow(position) + part * dim_;
  const Tensor& x = part == 0 ? args_.q : part == 1 ? args_.k : args_.v;
  return x.floats().row(request_.RowOf(position)) + head_ * dim_;
}

void HeadRun::Convolve(int32_t part, int32_t position, float* out) const {
  const float* taps = part == 0 ? args_.q_taps : part == 1 ? args_.k_taps : args_.v_taps;
  taps += head_ * dim_ * shape_.conv;
  std::fill_n(out, dim_, 0.0F);
  for (int32_t w = 0; w < shape_.conv; ++w) {
    const float* x = Before(part, position - shape_.conv + 1 + w);
    for (int64_t i = 0; i < dim_; ++i) out[i] += taps[i * shape_.conv + w] * x[i];
  }
  for (int64_t i = 0; i < dim_; ++i) out[i] *= Sigmoid(out[i]);
}

void HeadRun::Decays(int64_t row, float* out) const {
  const float* projected = args_.decay.floats().row(row) + head_ * dim_;
  const float* bias = args_.decay_bias + head_ * dim_;
  const float scale = RoundedExp(args_.decay_log[head_]);
  for (int64_t i = 0; i < dim_; ++i) {
    const float x = projected[i] + bias[i];
    const float log =
        shape_.bounded ? shape_.decay_bound * Sigmoid(scale * x) : -scale * Softplus(x);
    out[i] = RoundedExp(log);
  }
}

void HeadRun::StoreCheckpoint(int32_t tokens, float* to) const {
  to = std::copy_n(scratch_.head.state(), dim_ * dim_, to);
  for (int32_t i = 1 - shape_.conv; i < 0; ++i) {
    for (int32_t part = 0; part < 3; ++part) {
      to = std::copy_n(Before(part, tokens + i), dim_, to);
    }
  }
}

void HeadRun::TakeState(int32_t tokens) {
  if (tokens == state_end_) {
    std::copy_n(scratch_.head.state(), dim_ * dim_, args_.state.State(tables_.state, piece_));
  }
  if (tokens <= first_) return;
  for (const StateCheckpoint& checkpoint : tables_.checkpoints) {
    if (checkpoint.tokens != tokens) continue;
    StoreCheckpoint(tokens, args_.state.State(checkpoint.pages, piece_));
  }
}

void HeadRun::StartState() {
  const StateWork& work = request_.state;
  OUTRIDER_CHECK(work.tokens % kStateBlock == 0 && work.tokens <= first_ &&
                 first_ - work.tokens < kKeptStateRows);
  float* own = args_.state.State(tables_.state, piece_);
  if (work.restores) {
    OUTRIDER_CHECK(work.tokens == first_);
    const float* shared = args_.state.State(tables_.restored, piece_);
    std::copy_n(shared, dim_ * dim_, own);
    const float* before = shared + dim_ * dim_;
    for (int32_t i = 1 - shape_.conv; i < 0; ++i, before += 3 * dim_) {
      std::copy_n(before, 3 * dim_, KeptRow(first_ + i));
    }
  } else if (work.tokens == 0) {
    std::fill_n(own, dim_ * dim_, 0.0F);
  }
  scratch_.head.Begin(kernels_, shape_.head_dim, own);
  for (int32_t position = work.tokens; position < first_; ++position) {
    const float* row = KeptRow(position) + 3 * dim_;
    scratch_.head.Append(row, row + dim_, row + 2 * dim_);
    if ((position + 1) % kStateBlock == 0) {
      scratch_.head.EndBlock();
      TakeState(position + 1);
    }
  }
}

void HeadRun::FinishRow(int32_t position) {
  float* q = scratch_.row.data();
  float* k = q + dim_;
  float* v = k + dim_;
  float* decay = v + dim_;
  float* u = decay + dim_;
  const int64_t row = request_.RowOf(position);
  float* parts[] = {q, k, v};
  for (int32_t part = 0; part < 3; ++part) Convolve(part, position, parts[part]);
  const float q_scale =
      1.0F / std::sqrt(LaneDot(q, q, dim_) + kLengthEps) / std::sqrt(static_cast<float>(dim_));
  const float k_scale = 1.0F / std::sqrt(LaneDot(k, k, dim_) + kLengthEps);
  for (int64_t i = 0; i < dim_; ++i) q[i] *= q_scale;
  for (int64_t i = 0; i < dim_; ++i) k[i] *= k_scale;
  Decays(row, decay);
  const float write = Sigmoid(args_.write.floats().row(row)[head_]);
  scratch_.head.Run({q, k, v, decay, write}, u, args_.out.floats().row(row) + head_ * dim_);
  if (end_ - position > kKeptStateRows) return;  // written over in this step
  float* kept = KeptRow(position);
  for (int32_t part = 0; part < 3; ++part) {
    kept = std::copy_n(Before(part, position), dim_, kept);
  }
  kept = std::copy_n(k, dim_, kept);
  kept = std::copy_n(decay, dim_, kept);
  std::copy_n(u, dim_, kept);
}

void HeadRun::Run() {
  scratch_.row.resize(static_cast<size_t>(5 * dim_));
  scratch_.zeros.assign(static_cast<size_t>(dim_), 0.0F);
  StartState();
  for (int32_t position = first_; position < end_; ++position) {
    FinishRow(position);
    const int32_t tokens = position + 1;
    if (tokens % kStateBlock != 0 || (tokens == end_ && tokens != state_end_)) continue;
    scratch_.head.EndBlock();
    TakeState(tokens);
  }
}

}  // namespace

void CpuOps::DeltaAttention(const Context& context, const DeltaShape& shape,
                            const StepInputs& inputs, const DeltaArgs& args) const {
  const std::span<const RequestRows> requests = Cast(inputs).requests();
  for (const RequestRows& request : requests) {
    OUTRIDER_CHECK(request.state.tables != nullptr && request.num_drafts <= kMostStateDrafts);
  }
  const int64_t tasks = std::ssize(requests) * shape.heads;
  context.pool->ParallelFor(tasks, [&](int64_t i, int /*thread*/) {
    thread_local DeltaScratch scratch;
    const RequestRows& request = requests[static_cast<size_t>(i / shape.heads)];
    HeadRun(kernels_, shape, args, request, static_cast<int32_t>(i % shape.heads), scratch).Run();
  });
}

void CpuOps::NormGate(const Context& context, const NormGateArgs& args) const {
  const MatrixView<float> x = args.x.floats();
  const MatrixView<float> gates = args.gates.floats();
  const MatrixView<float> y = args.y.floats();
  OUTRIDER_CHECK(x.cols == gates.cols && x.rows == gates.rows);
  OUTRIDER_CHECK(x.cols == y.cols && x.rows == y.rows);
  NormHeads(context, args.x, args.heads, args.norm, args.norm_eps);
  context.pool->ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    for (int64_t i = 0; i < x.cols; ++i) y.row(r)[i] = x.row(r)[i] * Sigmoid(gates.row(r)[i]);
  });
}

void CpuOps::GateHeads(const Context& context, Tensor gates, Tensor x) const {
  kernels_.gate_heads(*context.pool, gates.floats(), x.floats());
}

}  // namespace outrider::cpu
