// A DeepSeek-style network (V2, V3, R1, Kimi-K2, GLM-4.7-Flash): the target, its MTP modules, its
// head, which the modules share. What heads and modules read are outputs after a norm.
#pragma once

#include "outrider/layers/rotary.h"
#include "outrider/networks/deepseek_weights.h"
#include "outrider/networks/network.h"

namespace outrider {

class DeepSeekNetwork : public Network {
 public:
  DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights, const NetworkOptions& options);

 private:
  void RunTarget(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden,
                 std::span<const LayerTap> taps) override;
  /// x = eh_proj([enorm(embedding) ; hnorm(previous)]), one layer, shared_head.norm.
  void RunMtp(const MtpPass& pass, KvCache& cache) override;
  void RunHead(int32_t module, MatrixView<const float> hidden, std::span<const int32_t> rows,
               MatrixView<float> logits) override;
  void RunHeadArgMax(int32_t module, MatrixView<const float> hidden, std::span<const int32_t> rows,
                     int32_t num_tokens, std::span<int32_t> tokens) override;

  void ReadMtpEmbeddings(const BatchLayout& layout, MatrixView<float> embedding) const;

  DeepSeekWeights weights_;
  RotaryKinds rotary_;
};

}  // namespace outrider
