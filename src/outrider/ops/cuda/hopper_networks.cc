#include "outrider/ops/cuda/hopper_networks.h"

#include <variant>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/mla_decode.h"

namespace outrider::cuda {

namespace {

/// The shared MLP as experts of the routed ones' width, if it is a multiple.
int64_t SharedExperts(const MoeSpec& moe) {
  return moe.shared_width % moe.width == 0 ? moe.shared_width / moe.width : 0;
}

void Require(bool runs, const char* what, int64_t value, const char* what_runs) {
  if (runs) return;
  throw InvalidArgument(
      "a network with {} {} does not run on the GPU: the kernels take {}; --device cpu runs it",
      what, value, what_runs);
}

void CheckHidden(const ModelConfig& c) {
  Require(c.hidden_size % 8 == 0 && c.hidden_size <= 8192, "hidden_size", c.hidden_size,
          "multiples of 8 up to 8192");
}

void CheckAttention(const GqaSpec& a, const RotarySpec& rotary) {
  Require(a.head_dim == kGqaHeadDim, "head_dim", a.head_dim, "128");
  Require(a.heads / a.kv_heads <= kGqaTileRows,
          "query heads for each of the key heads:", a.heads / a.kv_heads, "up to 64");
  Require(rotary.dims % 8 == 0, "rotated values of a head:", rotary.dims, "multiples of 8");
}

void CheckAttention(const MlaSpec& a) {
  Require(!a.indexer, "index_topk", a.indexer ? a.indexer->top_k : 0, "attention to all tokens");
  Require(a.latent == kMlaValueDim, "kv_lora_rank", a.latent, "512");
  Require(a.rope == kMlaKeyDim - kMlaValueDim, "qk_rope_head_dim", a.rope, "64");
  Require(a.heads <= 128, "num_attention_heads", a.heads, "1 to 128");
  Require(a.nope % 32 == 0 && a.nope <= 192, "qk_nope_head_dim", a.nope,
          "multiples of 32 up to 192");
  Require(a.value % 32 == 0 && a.value <= 256, "v_head_dim", a.value, "multiples of 32 up to 256");
  Require(a.q_lora % 8 == 0 && a.q_lora <= 2048, "q_lora_rank", a.q_lora,
          "multiples of 8 up to 2048");
}

void CheckMoe(const MoeSpec& moe) {
  const RouterSpec& router = moe.router;
  Require(router.experts % 8 == 0 && router.experts <= 512, "n_routed_experts", router.experts,
          "multiples of 8 up to 512");
  Require(moe.width % 8 == 0, "moe_intermediate_size", moe.width, "multiples of 8");
  Require(moe.shared_width % 8 == 0, "shared experts of width", moe.shared_width, "multiples of 8");
  Require(router.method != RouterMethod::kTokenTable, "experts by token in layers of",
          router.experts, "experts that a router chooses");
  Require(router.scoring != RouterScoring::kSqrtSoftplus, "square roots of softplus as scores of",
          router.experts, "softmax and sigmoid");
  Require(router.top_k + SharedExperts(moe) <= 32, "num_experts_per_tok", router.top_k,
          "32 experts of a token with the shared ones");
}

}  // namespace

void CheckRunsOnHopper(const ModelConfig& c, int num_mtp_modules) {
  CheckHidden(c);
  Require(c.vocab_size <= 400'000, "vocab_size", c.vocab_size, "up to 400000");
  const int64_t layers = c.num_hidden_layers() + num_mtp_modules;
  for (int64_t i = 0; i < layers; ++i) {
    const LayerSpec& spec = c.layer(i);
    const LayerSpec& first = c.layer(0);
    if (spec.attention.index() != first.attention.index() ||
        std::holds_alternative<CompressedSpec>(spec.attention)) {
      throw InvalidArgument(
          "{} does not run on the GPU: the kernels take latent attention (MLA) of DeepSeek-V2's "
          "form, or grouped-query attention as Step-3.5's, in all layers; --device cpu runs it",
          c.model_type);
    }
    if (const auto* gqa = std::get_if<GqaSpec>(&spec.attention)) {
      CheckAttention(*gqa, spec.rotary);
    } else {
      Require(spec.attention == first.attention && spec.rotary == first.rotary,
              "the attention of layer", i, "latent attention of one shape in all layers");
      CheckAttention(std::get<MlaSpec>(spec.attention));
    }
    if (const MoeSpec* moe = spec.moe()) CheckMoe(*moe);
    if (const DenseMlpSpec* dense = spec.dense()) {
      Require(dense->width % 8 == 0, "intermediate_size", dense->width, "multiples of 8");
    }
  }
}

void CheckDrafterRunsOnHopper(const ModelConfig& target, const ModelConfig& drafter) {
  if (!std::holds_alternative<MlaSpec>(target.layer(0).attention)) {
    throw InvalidArgument(
        "a drafter with latent attention does not run on the GPU beside {}, which has none; "
        "--device cpu runs it",
        target.model_type);
  }
  CheckHidden(drafter);
  const LayerSpec& layer = drafter.layers.front();
  const auto& attention = std::get<MlaSpec>(layer.attention);
  CheckAttention(attention);
  const int64_t heads = std::get<MlaSpec>(target.layer(0).attention).heads;
  if (attention.heads != heads) {
    throw InvalidArgument(
        "a drafter with num_attention_heads {} does not run on the GPU: the kernels take as many "
        "as the target's {}; --device cpu runs it",
        attention.heads, heads);
  }
  Require(layer.dense()->width % 8 == 0, "intermediate_size", layer.dense()->width,
          "multiples of 8");
}

}  // namespace outrider::cuda
