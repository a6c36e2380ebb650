// What a device can compute: one table of coarse operations, each of them a few launches on a GPU
// and a few calls of the kernel table on a CPU. All arithmetic on rows of a step is here; networks
// and drafters are written once, on top of it.
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
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "outrider/base/buffer.h"
#include "outrider/checkpoint/layer_spec.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/ops/compressed_attention.h"
#include "outrider/ops/context.h"
#include "outrider/ops/hyper_connections.h"
#include "outrider/ops/replayer.h"
#include "outrider/ops/row_memory.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/step_sampler.h"
#include "outrider/ops/tensor.h"
#include "outrider/ops/weight_loader.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// The angles of a step's rows: cos and sin [rows, R / 2], magnitude included.
struct Rotary {
  Tensor cos;
  Tensor sin;
  bool interleaved = true;  // pairs (2i, 2i + 1); false: (i, i + R / 2)
};

/// The angles of rows [first, first + count).
inline Rotary AnglesOf(const Rotary& rotary, int64_t first, int64_t count) {
  return {rotary.cos.Rows(first, count), rotary.sin.Rows(first, count), rotary.interleaved};
}

/// A norm that an operation on x ends with: out[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)).
struct NormOut {
  const float* weight = nullptr;  // null: no norm
  float eps = 0;
  Tensor out = {};

  NormOut Rows(int64_t first, int64_t count) const {
    return weight == nullptr ? NormOut{} : NormOut{weight, eps, out.Rows(first, count)};
  }
};

/// One matrix product of Ops::Multiply: y = x W^T, or y += x W^T.
struct Product {
  Tensor x;                   // [rows, K]
  const Weight* w = nullptr;  // [N, K]
  Tensor y;                   // [rows, N]; with silu_mul [rows, N / 2]
  bool accumulate = false;
  bool silu_mul = false;  // W is gate and up: y = min(silu(gate), limit) * clamp(up, -limit, limit)
  float limit = static_cast<float>(kNoActivationLimit);
  bool float32 = false;  // operands are not rounded (routers)
  /// W is so many matrices [N / groups, K] below one another, N / groups a multiple of 16, each for
  /// its own columns of x [rows, groups * K]. Without silu_mul.
  int32_t groups = 1;
};

/// Which rows go to which experts, with what weights: a device derives what its operations read.
struct Routing {};

/// Rows between the operations of a mixture of experts, in the device's order.
struct ExpertRows {
  Tensor routed;
  Tensor shared;
};

/// Where the activations of a mixture of experts are cut, as Product::limit does.
struct ExpertLimits {
  float routed = static_cast<float>(kNoActivationLimit);
  float shared = static_cast<float>(kNoActivationLimit);
  bool limits_gate = false;  // gates are cut at the limit before silu, not silu's result
};

/// The sizes of attention over per-head entries: a query head and a key are [nope, rope], where the
/// rope part of keys is one for all heads.
struct PerHeadShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;  // heads of an entry; divides heads
  int32_t nope = 0;      // P
  int32_t rope = 0;      // R
  int32_t value = 0;     // V
  int32_t window = 0;    // keys that a row sees, its own included; 0: all
  float softmax_scale = 0;
};

/// The sizes of a layer's latent attention.
struct MlaShape {
  int32_t heads = 0;
  int32_t q_lora = 0;  // 0: one q projection
  int32_t latent = 0;  // L, kv_lora_rank
  int32_t nope = 0;    // P
  int32_t rope = 0;    // R
  int32_t value = 0;   // V
  float softmax_scale = 0;
  float norm_eps = 0;  // of the two latent norms

  /// Columns from a row of attention's queries to the next: without q_lora one product gives
  /// queries and entries side by side.
  int64_t query_stride() const {
    return int64_t{heads} * (nope + rope) + (q_lora == 0 ? latent + rope : 0);
  }
};

/// What writes the cache entries of a step's rows.
struct EntryArgs {
  Tensor kv;                    // [rows, L + R], not yet normalised nor rotated; it may change
  const float* norm = nullptr;  // [L]
  Rotary rotary;
  LayerCache cache;
  // With q_norm the queries' latent is normalised in the same launch: q_latent = norm(q_down).
  Tensor q_down = {};             // [rows, q_lora]
  const float* q_norm = nullptr;  // [q_lora]
  Tensor q_latent = {};           // [rows, q_lora]
};

/// What finishes queries, keys and values of grouped-query attention after their product. They may
/// change; keys and values stand side by side.
struct HeadEntryArgs {
  Tensor q = {};                  // [rows, heads * D]; without columns: there are none
  Tensor k;                       // [rows, kv_heads * D]
  Tensor v;                       // [rows, kv_heads * D]
  const float* q_norm = nullptr;  // [D]
  const float* k_norm = nullptr;  // [D]
  float norm_eps = 0;
  Rotary rotary;  // of the first values of a head
  LayerCache cache;
};

/// What attention reads and writes of the rows of a step; their entries are in the cache already.
struct AttentionArgs {
  Tensor q;
  Tensor out;
  LayerCache cache;
  Tensor gates = {};  // PerHeadAttention: [rows, heads], or without columns
};

/// Bytes of a device's own memory.
struct DeviceMemoryState {
  int64_t total = 0;
  int64_t free = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string_view name() const = 0;

  /// Of a device that has memory of its own.
  virtual DeviceMemoryState memory() const { return {}; }

  /// Sets what a device calls now and then between the launches of a long pass; empty: nothing.
  /// `look` may wait for a sampler's results that are ready, no more. By default it is never
  /// called.
  virtual void WhileLaunching(const std::function<void()>& /*look*/) const {}

  /// Stops the idle clock until work begins again: there are no requests.
  virtual void PauseIdleClock() const {}
  /// Seconds in which a device that runs beside the host had no work, without the pauses; else 0.
  virtual double idle_seconds() const { return 0; }

  /// The type of rows between operations that products and attention read: kF32, or kBF16 where
  /// these round their operands to it. Other rows are float32.
  virtual DType activation_type() const = 0;

  /// Rows that an MLP takes at a time, which bounds the memory for what is inside it.
  virtual int64_t mlp_tile() const = 0;

  /// Memory of the device, zeroed. Throws Error when it has no more.
  virtual Buffer Allocate(size_t bytes) const = 0;

  /// How many bytes behind a tensor of an arena the calls may read.
  virtual size_t arena_reach() const { return 0; }

  /// Begins what the first prompts of such layers would wait for: libraries are loaded and plans
  /// made beside what is called next. What fails is thrown where the prompts wait.
  virtual void PreparePrompts(const MlaShape& /*shape*/) const {}

  /// An arena for contexts.
  Scratch MakeArena() const {
    return Scratch([this](size_t bytes) { return Allocate(bytes); }, arena_reach());
  }

  /// What packs weights for these operations. The source must outlive it.
  virtual std::unique_ptr<WeightLoader> MakeWeightLoader(const WeightSource& source,
                                                         const WeightForm& form) const = 0;

  /// Memory for the inputs of steps.
  virtual std::unique_ptr<StepInputs> MakeStepInputs() const = 0;

  /// What runs the passes of a network. The operations must outlive it.
  virtual std::unique_ptr<Replayer> MakeReplayer() const {
    return std::make_unique<PlainReplayer>();
  }

  /// What draws the tokens of steps on `device`, whose operations these are; `verifier` says how
  /// drafts are verified.
  virtual std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                                   const Verifier& verifier) const = 0;

  // Tokens that stay on a device that runs beside the host (tokens_on_device.h).

  /// Places for so many tokens, before any is drawn.
  virtual void KeepTokens(int32_t /*count*/) const {}
  /// The host reads all drafts that were drawn: it waits for the device. StepSampler::Verify reads
  /// them too.
  virtual void ReadTokens() const {}
  /// The token, also where it is a draft on the device; none was drawn since the host read them.
  virtual int32_t ReadToken(int32_t token) const { return token; }

  // Rows.

  /// x[r] = the table's row of the token of row r; zero at position 0 with zero_first. Tokens may
  /// be on the device.
  virtual void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
                     bool zero_first, Tensor x) const = 0;

  /// x[i] = the table's row of tokens[i].
  virtual void EmbedTokens(const Context& context, const TokenTable& table,
                           std::span<const int32_t> tokens, Tensor x) const = 0;

  /// cos and sin of position * frequency, times `magnitude`; memory of the arena.
  virtual Rotary MakeRotary(const Context& context, std::span<const float> frequencies,
                            float magnitude, bool interleaved, const StepInputs& inputs) const = 0;

  /// y[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)); y may be x.
  virtual void Norm(const Context& context, Tensor x, const float* weight, float eps,
                    Tensor y) const = 0;

  /// y[r] = weight * ((x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps)) + bias; y may be x.
  virtual void LayerNorm(const Context& context, Tensor x, const float* weight, const float* bias,
                         float eps, Tensor y) const = 0;

  /// x = 0.
  virtual void SetZero(const Context& context, Tensor x) const = 0;

  /// to = from, of one shape.
  virtual void Copy(const Context& context, Tensor from, Tensor to) const = 0;

  /// to[copies.to()[i]] = from[copies.from()[i]] for every i; no row is written twice.
  virtual void CopyRows(const Context& context, Tensor from, Tensor to,
                        const RowCopies& copies) const = 0;

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

  /// logits[i] = W x[rows[i]], of the weight's first logits.cols rows.
  virtual void Head(const Context& context, Tensor x, std::span<const int32_t> rows,
                    const Weight& w, Tensor logits) const = 0;

  /// The place of the largest of the first `num_tokens` logits of each row, the lowest of equals;
  /// -1 where the largest is infinite or one is NaN. No logits are stored.
  virtual void HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows,
                          const Weight& w, int32_t num_tokens, std::span<int32_t> tokens) const = 0;

  // Mixtures of experts. Results live in the arena.

  /// Scores logits [rows, experts], which it may change, chooses each row's experts and groups the
  /// rows by expert for the products with `w`. bias [experts] is added to scores for the choice
  /// (kNoAuxTc), or null. The result holds until the next call.
  /// The logits are those of the rows from first_row on.
  virtual const Routing& Route(const Context& context, const RouterSpec& spec,
                               const StepInputs& inputs, int32_t first_row, const ExpertWeights& w,
                               Tensor logits, const float* bias) const = 0;

  /// The same where a table says which experts a token has: table [tokens, top_k].
  virtual const Routing& RouteByToken(const Context& context, const RouterSpec& spec,
                                      const StepInputs& inputs, int32_t first_row, Tensor logits,
                                      const int32_t* table) const = 0;

  /// silu(gate x) * (up x) of every row's experts, and of the shared MLP, cut at the limits.
  virtual ExpertRows ExpertGateUp(const Context& context, const ExpertWeights& w,
                                  const ExpertLimits& limits, const Routing& routing,
                                  Tensor x) const = 0;

  virtual ExpertRows ExpertDown(const Context& context, const ExpertWeights& w,
                                const Routing& routing, const ExpertRows& inner) const = 0;

  /// x[r] += the weighted outputs of its experts in order of choice, then the shared MLP's; then
  /// the norm of x, where there is one.
  virtual void CombineExperts(const Context& context, const ExpertWeights& w,
                              const Routing& routing, const ExpertRows& outputs, Tensor x,
                              const NormOut& norm) const = 0;

  // Multi-head latent attention.

  /// Rotates in place the R values from column `offset` on of each of the heads of x, whose columns
  /// they share evenly.
  virtual void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
                      const Rotary& rotary) const = 0;

  virtual void WriteLatentEntries(const Context& context, const MlaShape& shape,
                                  const StepInputs& inputs, const EntryArgs& args) const = 0;
  virtual void WritePerHeadEntries(const Context& context, const MlaShape& shape,
                                   const KvUpWeight& w, const StepInputs& inputs,
                                   const EntryArgs& args) const = 0;

  /// q [rows, heads * (P + R)], not rotated, to absorbed [rows, heads * (L + R)], rotated with the
  /// angles of the same rows.
  virtual void Absorb(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                      const Rotary& rotary, Tensor q, Tensor absorbed) const = 0;
  /// latent [rows, heads * L] to out [rows, heads * V].
  virtual void Unabsorb(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                        Tensor latent, Tensor out) const = 0;

  /// Attention of generated tokens over latent entries, with the decode kernel of the plan's
  /// backend: inputs.decode_rows(). q [decode rows, heads * (L + R)]: per head the absorbed query,
  /// then its rotated part; out [decode rows, heads * L].
  virtual void DecodeAttention(const Context& context, const MlaShape& shape,
                               const StepInputs& inputs, const AttentionArgs& args) const = 0;

  /// Attention of the other rows over latent entries, in the expanded form. Of decode requests that
  /// the decode kernel did not take: attention over the context and over the new tokens, merged by
  /// log-sum-exp. q [rows, heads * (P + R)], rotated; out [rows, heads * V].
  virtual void PromptAttention(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                               const StepInputs& inputs, const AttentionArgs& args) const = 0;

  // Attention over per-head entries, latent or grouped-query.

  /// q [rows, heads * (P + R)], rotated; out [rows, heads * V]. With gates, a head's output is
  /// multiplied by sigmoid(gate).
  virtual void PerHeadAttention(const Context& context, const PerHeadShape& shape,
                                const StepInputs& inputs, const AttentionArgs& args) const = 0;

  /// Norm of every one of the `heads` heads, whose columns they share evenly, in place; weight
  /// [cols / heads].
  virtual void NormHeads(const Context& context, Tensor x, int32_t heads, const float* weight,
                         float eps) const = 0;

  /// Writes one cache entry per row as it is.
  virtual void WriteEntries(const Context& context, const StepInputs& inputs, Tensor entries,
                            LayerCache cache) const = 0;

  /// Normalises every head of q and k, rotates its first values, and writes the rows' entries.
  virtual void WriteHeadEntries(const Context& context, const PerHeadShape& shape,
                                const StepInputs& inputs, const HeadEntryArgs& args) const = 0;

  // Attention over a window and compressed entries (DeepSeek-V4).

  /// x[r] += bias[position % ratio] of every row; bias [ratio, cols].
  virtual void AddPositionBias(const Context& context, const StepInputs& inputs, const float* bias,
                               int32_t ratio, Tensor x) const = 0;

  /// Writes the entries that the rows complete: in every channel the mean of the tokens' values,
  /// weighted by the softmax of their gates; then normalised and rotated. Reads the token rows from
  /// the cache, those of this step too.
  virtual void Compress(const Context& context, const CompressorShape& shape,
                        const StepInputs& inputs, const CompressArgs& args) const = 0;

  /// Results live in the arena.
  virtual SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                        const SelectEntriesArgs& args) const = 0;

  virtual void CompressedAttention(const Context& context, const StepInputs& inputs,
                                   const CompressedAttentionArgs& args) const = 0;

  // Hyper-connections over the streams X [S] of a row, whose columns they share evenly.

  /// With n = 1 / sqrt(mean of X² + norm_eps): pre = sigmoid(m n scale + base) + eps,
  /// post = 2 sigmoid(..), comb = Sinkhorn's normalisation of exp(..): a softmax of every row plus
  /// eps, then columns and, in further iterations, rows and columns divided by their sums plus eps.
  /// mixture = sum over j of pre[j] X[j]; weights = post, comb.
  virtual void HyperMix(const Context& context, const HyperShape& shape,
                        const HyperMixArgs& args) const = 0;

  /// X[k] = post[k] y + sum over j of comb[j, k] X[j]; weights [rows, (1 + S) * S] of HyperMix.
  virtual void HyperAdd(const Context& context, const HyperShape& shape, Tensor weights, Tensor y,
                        Tensor streams) const = 0;

  /// mixture as HyperMix makes it, of sums [rows, S], which it may change, one scale and base [S].
  virtual void HyperContract(const Context& context, const HyperShape& shape,
                             const HyperMixArgs& args) const = 0;

  /// mean [rows, H] of the streams.
  virtual void HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                         Tensor mean) const = 0;
};

inline Tensor Context::Activations(int64_t rows, int64_t cols) const {
  if (ops.activation_type() == DType::kF32) return Rows(rows, cols);
  const int64_t stride = (cols + 7) / 8 * 8;  // rows are 16-byte aligned
  return {arena.Take<BFloat16>(rows * stride), DType::kBF16, rows, cols, stride};
}

}  // namespace outrider
