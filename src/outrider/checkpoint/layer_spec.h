// What one layer of a network is, in numbers: its attention, its rotary embedding, its MLP. A
// family's parser makes one for every layer.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

namespace outrider {

/// YaRN context extension (Peng et al., "YaRN", 2023) with DeepSeek's two magnitude exponents.
struct YarnScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // the ramp begins and ends at whole dimensions
  double mscale = 1;
  double mscale_all_dim = 0;

  /// DeepSeek's yarn_get_mscale: 0.1 a ln(factor) + 1.
  double Magnitude(double a) const;

  bool operator==(const YarnScaling&) const = default;
};

/// Context extension of Llama 3.1: frequencies whose wavelength is longer than original / low are
/// divided by `factor`, those shorter than original / high stay, and between it is blended.
struct Llama3Scaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
  double low_frequency_factor = 1;
  double high_frequency_factor = 1;

  bool operator==(const Llama3Scaling&) const = default;
};

/// Rotary position embedding.
struct RotarySpec {
  int64_t dims = 0;                 // rotated values of a head, even
  double theta = 10000;             // frequency i is theta^(-2i / dims), before scaling
  bool interleaved = true;          // rotated pairs are (2i, 2i + 1); else (i, i + dims / 2)
  bool turns = true;                // false: all angles are 0 (NoPE), whatever theta is
  std::optional<YarnScaling> yarn;  // at most one of these
  std::optional<Llama3Scaling> llama3;

  /// What cos and sin are multiplied by: YaRN's magnitude for mscale over that for mscale_all_dim;
  /// without YaRN, 1.
  double Magnitude() const;

  bool operator==(const RotarySpec&) const = default;
};

/// An indexer (DeepSeek-V3.2): which cached tokens a row of latent attention reads.
struct IndexerSpec {
  int64_t heads = 0;
  int64_t dim = 0;           // of a head and of a key; the first numbers are rotated
  int64_t top_k = 0;         // tokens that a row reads, at most
  bool interleaved = false;  // rotated pairs, as RotarySpec::interleaved

  bool operator==(const IndexerSpec&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1). A query head is [nope, rope];
/// the latent cache holds [latent, rotated key] per token.
struct MlaSpec {
  int64_t heads = 0;
  int64_t q_lora = 0;  // 0: queries come from one q_proj, without q_a and q_b
  int64_t latent = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  double softmax_scale = 0;    // (nope + rope)^-1/2, times the square of YaRN's magnitude for
                               // mscale_all_dim
  double latent_norm_eps = 0;  // of q_a_layernorm and kv_a_layernorm
  bool gates_heads = false;    // a head's output is multiplied by the sigmoid of a gate
  std::optional<IndexerSpec> indexer;  // none: a row reads all tokens

  int64_t query_width() const { return nope + rope; }

  bool operator==(const MlaSpec&) const = default;
};

/// Grouped-query attention (arXiv:2305.13245), where heads / kv_heads consecutive heads share a key
/// and a value. Queries and keys are normalised head by head, and each head's output is multiplied
/// by the sigmoid of a gate.
struct GqaSpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // keys that a row sees, its own included; 0: all
  double softmax_scale = 0;
  bool norms_heads = false;  // queries and keys are normalised head by head
  bool gates_heads = false;  // a head's output is multiplied by the sigmoid of a gate

  bool operator==(const GqaSpec&) const = default;
};

/// Attention of DeepSeek-V4: every head reads the same rows, which are key and value at once, of
/// the last `window` tokens and of compressed entries that stand for `ratio` tokens each. A query
/// head and a row end with the layer's rotated values. A sink per head takes part in the softmax.
struct CompressedSpec {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t q_lora = 0;
  int64_t window = 0;  // tokens, the row's own included
  int64_t output_groups = 0;
  int64_t output_rank = 0;  // numbers that the heads of a group become
  int64_t ratio = 0;        // tokens per compressed entry; 0: the window alone
  bool overlaps = false;    // an entry is also pooled from the tokens of the one before
  int64_t index_heads = 0;  // of the indexer, which chooses index_top_k entries; 0: all are read
  int64_t index_dim = 0;
  int64_t index_top_k = 0;
  double softmax_scale = 0;

  bool operator==(const CompressedSpec&) const = default;
};

/// Kimi Delta Attention (arXiv:2510.26692): linear attention over a running state of
/// [head_dim, head_dim] numbers per head, which decays by channel before the delta rule adds to it.
/// Queries, keys and values go through a short convolution first.
struct KdaSpec {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t conv = 0;  // rows that the convolution reads, its own included
  /// The logarithm of a channel's decay is bound * sigmoid(exp(A_log) * x) with a bound, which is
  /// below 0; without one -exp(A_log) * softplus(x). x is its projection plus dt_bias.
  std::optional<double> decay_bound;
  int64_t decay_rank = 0;  // of the projection of decays; 0: it is one matrix
  int64_t gate_rank = 0;   // of the projection of output gates; 0: it is one matrix

  int64_t width() const { return heads * head_dim; }

  bool operator==(const KdaSpec&) const = default;
};

using AttentionSpec = std::variant<MlaSpec, GqaSpec, CompressedSpec, KdaSpec>;

/// How router logits become scores.
enum class RouterScoring { kSoftmax, kSigmoid, kSqrtSoftplus };

/// How experts are chosen from scores.
enum class RouterMethod {
  kGreedy,              // the best top_k of all experts
  kGroupLimitedGreedy,  // groups ranked by their best score (DeepSeek-V2)
  kNoAuxTc,             // scores plus e_score_correction_bias choose; groups by their best two (V3)
  kTokenTable,          // a table by token id says which
};

struct RouterSpec {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t groups = 1;
  int64_t top_groups = 1;
  RouterScoring scoring = RouterScoring::kSigmoid;
  RouterMethod method = RouterMethod::kNoAuxTc;
  bool normalise = true;  // weights are divided by their sum
  double scaling_factor = 1;

  bool operator==(const RouterSpec&) const = default;
};

/// The limit of an MLP that cuts nothing.
inline constexpr double kNoActivationLimit = std::numeric_limits<double>::infinity();

/// A gated MLP, down(min(silu(gate x), limit) * clamp(up x, -limit, limit)).
struct DenseMlpSpec {
  int64_t width = 0;
  double limit = kNoActivationLimit;

  bool operator==(const DenseMlpSpec&) const = default;
};

/// A mixture of experts.
struct MoeSpec {
  RouterSpec router;
  int64_t width = 0;                  // of one routed expert
  int64_t shared_experts = 0;         // which every row goes through, as one MLP
  int64_t shared_width = 0;           // of all shared experts together; 0: none
  double limit = kNoActivationLimit;  // of routed experts
  double shared_limit = kNoActivationLimit;
  bool limits_gate = false;  // gates are cut at the limit before silu, not silu's result

  bool operator==(const MoeSpec&) const = default;
};

using MlpSpec = std::variant<DenseMlpSpec, MoeSpec>;

/// The experts of a token, by layer: [layers, top_k] ids. Layers without experts have zeros.
struct RoutedShape {
  int64_t layers = 0;
  int64_t top_k = 0;

  int64_t RowSize() const { return layers * top_k; }
  bool operator==(const RoutedShape&) const = default;
};

/// Residual streams that are mixed around every attention and MLP (manifold-constrained
/// hyper-connections, arXiv:2512.24880).
struct HyperConnectionSpec {
  int64_t streams = 1;     // 1: a plain residual stream
  int64_t iterations = 0;  // of Sinkhorn's normalisation
  double eps = 0;

  bool operator==(const HyperConnectionSpec&) const = default;
};

struct LayerSpec {
  AttentionSpec attention;
  RotarySpec rotary;
  MlpSpec mlp;
  HyperConnectionSpec residual = {};

  /// Null for a layer with another kind of MLP.
  const MoeSpec* moe() const { return std::get_if<MoeSpec>(&mlp); }
  const DenseMlpSpec* dense() const { return std::get_if<DenseMlpSpec>(&mlp); }

  /// Of latent attention whose rows read the tokens that it chooses; null for all other layers.
  const IndexerSpec* indexer() const {
    const auto* mla = std::get_if<MlaSpec>(&attention);
    return mla != nullptr && mla->indexer ? &*mla->indexer : nullptr;
  }
  /// Latent attention whose rows read all tokens; null for all other layers.
  const MlaSpec* mla_without_indexer() const {
    const auto* mla = std::get_if<MlaSpec>(&attention);
    return mla != nullptr && !mla->indexer ? mla : nullptr;
  }

  bool operator==(const LayerSpec&) const = default;
};

/// A DSpark drafter: stages, layers each, that draft a block of tokens at once.
struct DSparkSpec {
  int64_t stages = 0;
  int64_t block_size = 0;     // rows of a block, each of which gives a draft
  int64_t markov_rank = 0;    // of the bias of a draft's logits by the token before it
  int32_t noise_token = 0;    // of the rows of a block but the first
  std::vector<int32_t> taps;  // layers of the target that it reads, rising

  bool operator==(const DSparkSpec&) const = default;
};

}  // namespace outrider
