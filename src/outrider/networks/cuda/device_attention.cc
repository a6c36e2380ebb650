// DeviceNetwork's attention: cache entries, generated rows in the absorbed form, prompts in the
// expanded one.
#include <cstdint>

#include "outrider/kernels/cuda/head_projection.h"
#include "outrider/kernels/cuda/prompt_rows.h"
#include "outrider/networks/cuda/device_network.h"

namespace outrider::cuda {

namespace {

constexpr int kLatent = kMlaValueDim;
constexpr int kRope = kMlaKeyDim - kMlaValueDim;

int Int(int64_t value) { return static_cast<int>(value); }

}  // namespace

DeviceNetwork::Queries DeviceNetwork::QueriesOf(int64_t row) const {
  const MlaSpec& a = mla_;
  const int64_t columns = a.heads * a.query_width();
  if (a.q_lora > 0) return {q_ + row * columns, columns};
  const int64_t stride = columns + kMlaKeyDim;
  return {q_kv_ + row * stride, stride};
}

void DeviceNetwork::Attention(const DeviceMlaWeights& w, const DeviceStep& step,
                              const DeviceCache& cache, int layer, cudaStream_t stream) {
  const MlaSpec& a = mla_;
  const int64_t hidden = config_.hidden_size;
  const int64_t values = a.heads * a.value;
  const int64_t fused = w.q_kv_a.n;
  Product(step, w.q_kv_a, h_, hidden, q_kv_, fused, OutputType::kBf16, false, stream);
  LatentWriteParams write;
  write.num_rows = step.num_rows;
  write.true_rows = step.true_rows;
  write.row_stride = fused;
  write.kv = q_kv_ + (fused - kMlaKeyDim);
  write.weight = w.kv_a_norm;
  write.epsilon = static_cast<float>(a.latent_norm_eps);
  write.rotary = Rotary(step);
  write.slot_mapping = step.inputs.slot_mapping;
  write.cache = cache.layer(layer);
  write.cache_type = cache.type();
  write.cache_scale = cache.scale();
  if (a.q_lora > 0) {
    write.q = q_kv_;
    write.q_columns = Int(a.q_lora);
    write.q_weight = w.q_a_norm;
    write.q_out = q_latent_;
  }
  CheckCuda(WriteLatentRows(write, stream), "cache entries");
  if (a.q_lora > 0) {
    Product(step, w.q_b, q_latent_, a.q_lora, q_, w.q_b.n, OutputType::kBf16, false, stream);
  }
  if (step.num_decode_rows > 0) DecodeRows(w, step, cache, layer, stream);
  for (const PromptPiece& prompt : step.prompts) {
    PromptRows(w, step, prompt, cache, layer, stream);
  }
  Product(step, w.o, values_, values, x_, hidden, OutputType::kF32, true, stream);
}

void DeviceNetwork::DecodeRows(const DeviceMlaWeights& w, const DeviceStep& step,
                               const DeviceCache& cache, int layer, cudaStream_t stream) {
  const MlaSpec& a = mla_;
  const int heads = Int(a.heads);
  const Queries queries = QueriesOf(0);
  const RotaryTable rotary = Rotary(step);
  HeadProjectionParams absorb;
  absorb.num_tokens = step.num_decode_rows;
  absorb.true_rows = step.true_rows;
  absorb.heads = heads;
  absorb.k = Int(a.nope);
  absorb.n = kLatent;
  absorb.x = queries.data;
  absorb.x_token_stride = queries.stride;
  absorb.x_head_stride = a.query_width();
  absorb.w = w.key_up_t;
  absorb.y = absorbed_;
  absorb.y_token_stride = int64_t{heads} * kMlaKeyDim;
  absorb.y_head_stride = kMlaKeyDim;
  absorb.rotary = &rotary;
  CheckCuda(ProjectHeads(absorb, stream), "absorption");
  CheckCuda(MlaDecode(DecodeParams(step, cache, layer), decode_limits_, decode_workspace_, stream),
            "attention");
  HeadProjectionParams unabsorb;
  unabsorb.num_tokens = step.num_decode_rows;
  unabsorb.true_rows = step.true_rows;
  unabsorb.heads = heads;
  unabsorb.k = kLatent;
  unabsorb.n = Int(a.value);
  unabsorb.x = attended_;
  unabsorb.x_token_stride = int64_t{heads} * kLatent;
  unabsorb.x_head_stride = kLatent;
  unabsorb.w = w.value_up;
  unabsorb.y = values_;
  unabsorb.y_token_stride = heads * a.value;
  unabsorb.y_head_stride = a.value;
  CheckCuda(ProjectHeads(unabsorb, stream), "un-absorption");
}

// Keys and values of the whole prompt so far are made from the cache, so that a key's bits do not
// depend on when it was computed.
void DeviceNetwork::PromptRows(const DeviceMlaWeights& w, const DeviceStep& step,
                               const PromptPiece& prompt, const DeviceCache& cache, int layer,
                               cudaStream_t stream) {
  const MlaSpec& a = mla_;
  const int heads = Int(a.heads);
  const int nope = Int(a.nope);
  const int value = Int(a.value);
  const int64_t kv_width = int64_t{heads} * (nope + value);
  const Queries queries = QueriesOf(prompt.first_row);
  CheckCuda(RotateRows({.num_rows = prompt.num_rows,
                        .heads = heads,
                        .width = nope + kRope,
                        .offset = nope,
                        .row_stride = queries.stride,
                        .x = queries.data,
                        .rotary = Rotary(step, prompt.first_row)},
                       stream),
            "rotation of queries");
  CheckCuda(GatherLatentRows({.num_rows = prompt.num_keys,
                              .block_table = prompt.block_table,
                              .page_size = cache.block_size(),
                              .cache = cache.layer(layer),
                              .cache_type = cache.type(),
                              .cache_scale = cache.scale(),
                              .latent = latent_,
                              .rope = rope_},
                             stream),
            "reading cache entries");
  MatMulParams expand;
  expand.rows = prompt.num_keys;
  expand.x = latent_;
  expand.x_stride = kLatent;
  expand.w = w.kv_up;
  expand.y = kv_;
  expand.y_stride = kv_width;
  MatMul(expand, stream);
  CheckCuda(MakePromptKeys({.num_rows = prompt.num_keys,
                            .padded_rows = prompt_attention_.PaddedKeys(prompt.num_keys),
                            .heads = heads,
                            .nope = nope,
                            .value = value,
                            .kv = kv_,
                            .rope = rope_,
                            .k = keys_},
                           stream),
            "keys of a prompt");
  // Rows of values_ behind the prompt's are overwritten: they are prompts' that come later.
  prompt_attention_.Run({.num_queries = prompt.num_rows,
                         .num_keys = prompt.num_keys,
                         .q = queries.data,
                         .q_row_stride = queries.stride,
                         .k = keys_,
                         .v = kv_ + nope,
                         .v_row_stride = kv_width,
                         .v_head_stride = nope + value,
                         .out = values_ + prompt.first_row * (heads * int64_t{value})},
                        stream);
}

}  // namespace outrider::cuda
