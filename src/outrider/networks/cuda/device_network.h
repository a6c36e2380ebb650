// A DeepSeek-style network on a Hopper GPU: what DeepSeekNetwork is on the CPU, from the kernels of
// kernels/cuda alone. Activations and cache are bfloat16 (the cache e4m3 where asked for), sums,
// norms and the residual stream float32. Stateless between calls but for its work space: what a
// step leaves behind is in the cache.
//
// A row's bits depend on its request's tokens alone: not on the step that it is in, nor on how a
// prompt was cut.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "outrider/kernels/cuda/expert_routing.h"
#include "outrider/kernels/cuda/mla_decode.h"
#include "outrider/kernels/cuda/norm_rows.h"
#include "outrider/kernels/cuda/prompt_attention.h"
#include "outrider/kernels/cuda/step_rows.h"
#include "outrider/networks/cuda/device_cache.h"
#include "outrider/networks/cuda/device_step.h"
#include "outrider/networks/cuda/device_weights.h"

namespace outrider::cuda {

/// What the work space has room for.
struct DeviceNetworkLimits {
  int max_rows = 0;         // of a step, up to 16,384
  int max_decode_rows = 0;  // of them, in the absorbed form
  int max_requests = 0;     // up to 4096
  int max_seq_len = 0;      // tokens of a request
  int max_logits_rows = 0;  // of a call of Logits
};

/// Called after each layer with (layer, residual stream: float32 [rows, hidden] on the device),
/// once all before it in the stream is launched; for tests. Costs launches.
using DeviceLayerObserver = std::function<void(int64_t layer, const float* x)>;

/// All calls launch work in the given stream and return; one stream at a time. They throw Error for
/// steps beyond the limits and for what CUDA says.
class DeviceNetwork {
 public:
  /// Loads cuDNN, and throws Error without it: see PromptAttention.
  DeviceNetwork(ModelConfig config, DeviceWeights weights, const DeviceNetworkLimits& limits);

  const ModelConfig& config() const { return config_; }
  const DeviceWeights& weights() const { return weights_; }
  int num_mtp_modules() const { return static_cast<int>(weights_.mtp.size()); }
  int num_cache_layers() const;
  /// Elements between rows of logits: the vocabulary, rounded up.
  int64_t logits_stride() const;
  /// Of the layer that was launched last.
  const ExpertRouting& routing() const { return routing_; }
  /// Bytes of the work space.
  size_t work_bytes() const { return memory_.bytes(); }

  /// Runs the target over the step's rows. hidden, bf16 [rows, hidden]: after the final norm. May
  /// be captured into a graph where no row is a prompt's.
  void Forward(const DeviceStep& step, const DeviceCache& cache, void* hidden, cudaStream_t stream,
               const DeviceLayerObserver& observer = nullptr);

  /// Runs MTP module m over the step's rows, as Network::ForwardMtp: token ids are those that
  /// follow each row's position by m + 1. Row r goes on from previous[previous_rows[r]], bf16
  /// [any, hidden]: the target's hidden rows (m = 0), or module m - 1's. previous_rows: int32 on
  /// the device. hidden may be previous where previous_rows[r] is r.
  void ForwardMtp(int m, const DeviceStep& step, const DeviceCache& cache, const void* previous,
                  const int32_t* previous_rows, int num_previous, void* hidden,
                  cudaStream_t stream);

  /// logits[i] = head(hidden[rows[i]]), float32 with logits_stride; rows: int32 on the device.
  void Logits(const void* hidden, const int32_t* rows, int num_rows, float* logits,
              cudaStream_t stream);

 private:
  void AllocateWork();
  void MakeRotaryTable();
  void CheckStep(const DeviceStep& step) const;
  /// Queries of rows from `row` on: where they are, and elements between rows.
  struct Queries {
    uint16_t* data;
    int64_t stride;
  };
  Queries QueriesOf(int64_t row) const;
  RotaryTable Rotary(const DeviceStep& step, int first_row = 0) const;
  MlaDecodeParams DecodeParams(const DeviceStep& step, const DeviceCache& cache, int layer) const;
  void PlanDecode(const DeviceStep& step, const DeviceCache& cache, cudaStream_t stream);

  /// The next norm of the residual, with what is still to be added to it.
  NormRowsParams ResidualNorm(const DeviceStep& step, const float* weight, void* out);
  void Norm(const NormRowsParams& params, cudaStream_t stream);
  /// y = x W^T of all rows.
  void Product(const DeviceStep& step, const PackedWeight& w, const void* x, int64_t x_stride,
               void* y, int64_t y_stride, OutputType type, bool accumulate, cudaStream_t stream);

  /// `first` is the norm that the layer begins with.
  void Layer(const DeviceLayerWeights& w, NormRowsParams first, const DeviceStep& step,
             const DeviceCache& cache, int layer, cudaStream_t stream);
  void Attention(const DeviceMlaWeights& w, const DeviceStep& step, const DeviceCache& cache,
                 int layer, cudaStream_t stream);
  void DecodeRows(const DeviceMlaWeights& w, const DeviceStep& step, const DeviceCache& cache,
                  int layer, cudaStream_t stream);
  void PromptRows(const DeviceMlaWeights& w, const DeviceStep& step, const PromptPiece& prompt,
                  const DeviceCache& cache, int layer, cudaStream_t stream);
  void DenseMlp(const DeviceLayerWeights& w, const DeviceStep& step, cudaStream_t stream);
  void Experts(const MoeSpec& moe, const DeviceLayerWeights& w, const DeviceStep& step,
               cudaStream_t stream);

  ModelConfig config_;
  MlaSpec mla_;        // of all layers
  RotarySpec angles_;  // of all layers
  DeviceWeights weights_;
  DeviceNetworkLimits limits_;
  MlaDecodeLimits decode_limits_;
  PromptAttention prompt_attention_;
  DeviceMemory memory_;
  DeviceMemory rotary_;  // cos, then sin: float32 [max_seq_len, 32] each

  // Places in memory_; shapes in device_network.cc.
  float* x_ = nullptr;
  uint16_t* h_ = nullptr;
  uint16_t* q_kv_ = nullptr;
  uint16_t* q_latent_ = nullptr;
  uint16_t* q_ = nullptr;
  uint16_t* absorbed_ = nullptr;
  uint16_t* attended_ = nullptr;
  float* lse_ = nullptr;
  uint16_t* values_ = nullptr;
  uint16_t* inner_ = nullptr;
  uint16_t* gathered_ = nullptr;
  float* terms_ = nullptr;
  float* router_logits_ = nullptr;
  ExpertRouting routing_;
  uint16_t* pair_ = nullptr;
  uint16_t* logit_hidden_ = nullptr;
  uint16_t* latent_ = nullptr;
  uint16_t* rope_ = nullptr;
  uint16_t* kv_ = nullptr;
  uint16_t* keys_ = nullptr;
  void* decode_workspace_ = nullptr;
  // So many terms_ of each row, of the layer before, are still to be added to x_.
  int pending_terms_ = 0;
};

}  // namespace outrider::cuda
