// What every device computes: coarse operations, each of them a few launches on a GPU and a few
// calls of the kernel table on a CPU. Families that a device may lack (kinds of attention, experts,
// hyper-connections, drafters of blocks) are facets with headers of their own. Networks and
// drafters are written once, on top of it.
//
// Every operation is row-invariant: the bits of an output row depend on the inputs of that row
// alone. The reference of an operation is the CPU's implementation over the reference kernel table;
// tests/ops compares every other table with it.
//
// Arguments are trusted: shapes that do not fit are bugs (OUTRIDER_CHECK).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "outrider/base/buffer.h"
#include "outrider/checkpoint/layer_spec.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/ops/context.h"
#include "outrider/ops/replayer.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/row_memory.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/step_sampler.h"
#include "outrider/ops/tensor.h"
#include "outrider/ops/weight_loader.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// One matrix product of Ops::Multiply: y = x W^T, or y += x W^T.
struct Product {
  Tensor x;                   // [rows, K]
  const Weight* w = nullptr;  // [N, K]
  Tensor y;                   // [rows, N]; with silu_mul [rows, N / 2]
  bool accumulate = false;
  bool silu_mul = false;  // W is gate and up: y = min(silu(gate), limit) * clamp(up, -limit, limit)
  float limit = static_cast<float>(kNoActivationLimit);
  bool float32 = false;  // not of rounded operands (routers); a GPU rounds them, and says so
  /// W is `groups` matrices [N / groups, K] below one another. Each multiplies its own columns of
  /// x [rows, groups * K]. N / groups is a multiple of 16. Without silu_mul.
  int32_t groups = 1;
};

/// Bytes of a device's own memory.
struct DeviceMemoryState {
  int64_t total = 0;
  int64_t free = 0;
};

class MlaOps;
class PerHeadMlaOps;
class PerHeadOps;
class SparseOps;
class CompressedOps;
class HyperOps;
class MoeOps;
class TokenRouterOps;
class ChosenExpertOps;
class BlockDraftOps;
class DeltaOps;

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string_view name() const = 0;

  /// Makes the device the calling thread's. Called before a thread's first operation, where the
  /// process uses several devices.
  virtual void UseOnThisThread() const {}

  // Facets. Null: the device lacks it; a network that needs it is refused before anything is loaded
  // (support.h).

  virtual const MlaOps* mla() const { return nullptr; }
  virtual const PerHeadMlaOps* mla_per_head() const { return nullptr; }
  virtual const PerHeadOps* per_head() const { return nullptr; }
  virtual const SparseOps* sparse() const { return nullptr; }
  virtual const CompressedOps* compressed() const { return nullptr; }
  virtual const HyperOps* hyper() const { return nullptr; }
  virtual const MoeOps* moe() const { return nullptr; }
  virtual const TokenRouterOps* token_router() const { return nullptr; }
  virtual const ChosenExpertOps* chosen_experts() const { return nullptr; }
  virtual const BlockDraftOps* block_drafts() const { return nullptr; }
  virtual const DeltaOps* delta() const { return nullptr; }

  /// Says how much memory of its own a device has.
  virtual DeviceMemoryState memory() const { return {}; }

  /// Stops the idle clock until work begins again. Called when there are no requests.
  virtual void PauseIdleClock() const {}
  /// Seconds in which a device that runs beside the host had no work, pauses not counted. 0 for
  /// other devices.
  virtual double idle_seconds() const { return 0; }

  /// The type of rows between operations that products and attention read: kF32, or kBF16 where
  /// these round their operands to it. Other rows are float32.
  virtual DType activation_type() const = 0;

  /// Rows that an MLP takes at a time. This bounds the memory for its inner rows.
  virtual int64_t mlp_tile() const = 0;

  /// Memory of the device, zeroed. Throws Error when it has no more.
  virtual Buffer Allocate(size_t bytes) const = 0;

  /// Copies bytes of the device's memory to the host's, after all that was launched. Returns when
  /// they are copied.
  virtual void CopyToHost(const std::byte* from, std::span<std::byte> to) const {
    std::memcpy(to.data(), from, to.size());
  }
  /// Copies bytes to the device's memory, before all that is launched later. Returns when they are
  /// copied.
  virtual void CopyFromHost(std::span<const std::byte> from, std::byte* to) const {
    std::memcpy(to, from.data(), from.size());
  }

  /// An arena for contexts.
  virtual std::unique_ptr<Arena> MakeArena() const {
    return std::make_unique<Arena>([this](size_t bytes) { return Allocate(bytes); });
  }

  /// Makes what packs weights for these operations. The source must outlive it.
  virtual std::unique_ptr<WeightLoader> MakeWeightLoader(const WeightSource& source,
                                                         const WeightForm& form) const = 0;

  /// Makes memory for the inputs of steps.
  virtual std::unique_ptr<StepInputs> MakeStepInputs() const = 0;

  /// Makes what runs the passes of a network, with this context's ranks and arena. The arena and
  /// the operations must outlive it.
  virtual std::unique_ptr<Replayer> MakeReplayer(const Context& /*context*/) const {
    return std::make_unique<PlainReplayer>();
  }

  /// Makes what draws the tokens of steps on `device`, whose operations these are. `verifier` says
  /// how drafts are verified.
  virtual std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                                   const Verifier& verifier) const = 0;

  // Tokens that stay on a device that runs beside the host (tokens_on_device.h).

  /// Makes `count` places for tokens. Called before the first token is drawn.
  virtual void KeepTokens(int32_t /*count*/) const {}
  /// Lets the host read all drafts that were drawn, which waits for the device. StepSampler::Verify
  /// reads them too.
  virtual void ReadTokens() const {}
  /// The token, which may be a draft on the device. The host must have read all drafts
  /// (ReadTokens).
  virtual int32_t ReadToken(TokenRef token) const { return token.token(); }
  /// The token as it was when what the host has waited for last was launched: a draft that was
  /// verified there, whatever has been drawn since.
  virtual int32_t ReadVerifiedToken(TokenRef token) const { return ReadToken(token); }

  // Rows.

  /// x[r] = the table's row of the token of row r; zero at position 0 with zero_first. Tokens may
  /// be on the device.
  virtual void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
                     bool zero_first, Tensor x) const = 0;

  /// Returns cos and sin of position * frequency, times `magnitude`, in the arena's memory.
  virtual Rotary MakeRotary(const Context& context, std::span<const float> frequencies,
                            float magnitude, bool interleaved, const StepInputs& inputs) const = 0;

  /// y[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)); y may be x.
  virtual void Norm(const Context& context, Tensor x, const float* weight, float eps,
                    Tensor y) const = 0;

  /// Rotates in place the R values from column `offset` on of each of the heads of x, whose columns
  /// they share evenly.
  virtual void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
                      const Rotary& rotary) const = 0;

  /// x = 0.
  virtual void SetZero(const Context& context, Tensor x) const = 0;

  /// to = from, of one shape.
  virtual void Copy(const Context& context, Tensor from, Tensor to) const = 0;

  /// to[copies.to()[i]] = from[copies.from()[i]] for every i; no row is written twice.
  virtual void CopyRows(const Context& context, Tensor from, Tensor to,
                        const RowCopies& copies) const = 0;

  /// Gives every rank the rows of x that `runs` names, each from the rank that has it.
  virtual void ShareRows(const Context& context, Tensor x, std::span<const RankRun> runs) const = 0;

  /// own = the rank's own rows of `from`, the rows of a step (StepInputs::own).
  virtual void TakeOwnRows(const Context& context, const StepInputs& inputs, Tensor from,
                           Tensor own) const {
    CopyRows(context, from, own, inputs.own()->in);
  }
  /// x = on every rank, all rows of the step, each from the rank that has it. own: this rank's.
  virtual void ShareOwnRows(const Context& context, const StepInputs& inputs, Tensor own,
                            Tensor x) const {
    CopyRows(context, own, x, inputs.own()->out);
    ShareRows(context, x, inputs.own()->runs);
  }

  /// to = x, row after row, in the host's memory.
  virtual void ToHost(const Context& context, Tensor x, std::span<float> to) const = 0;

  /// Rows of the activation type that outlive a step.
  std::unique_ptr<RowMemory> MakeRows(int64_t rows, int64_t cols) const {
    const DType type = activation_type();
    const auto numbers = static_cast<size_t>(std::max<int64_t>(rows, 1) * cols);
    return std::make_unique<RowMemory>(Allocate(numbers * DTypeSize(type)), type, rows, cols);
  }

  // Products.

  virtual void Multiply(const Context& context, std::span<const Product> products) const = 0;

  /// logits[i] = W x[rows[i]], where W stands for the weight's first logits.cols rows.
  virtual void Head(const Context& context, Tensor x, std::span<const int32_t> rows,
                    const Weight& w, Tensor logits) const = 0;

  /// tokens[i] = where the largest of the first `num_tokens` logits of row i is, the lowest place
  /// among equals; -1 where the largest is infinite or one is NaN. No logits are stored.
  virtual void HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows,
                          const Weight& w, int32_t num_tokens, std::span<int32_t> tokens) const = 0;
};

inline Tensor Context::Activations(int64_t rows, int64_t cols) const {
  if (ops.activation_type() == DType::kF32) return Rows(rows, cols);
  const int64_t stride = (cols + 7) / 8 * 8;  // rows are 16-byte aligned
  return {arena.Take<BFloat16>(rows * stride), DType::kBF16, rows, cols, stride};
}

}  // namespace outrider
