// The weights of a DeepSeek-style network, and under which names a checkpoint holds them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/decoder_network.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct MtpWeights : MtpModule {
  const float* output_norm = nullptr;  // shared_head.norm [hidden]
};

/// Latent attention that reads rows of `input` numbers and adds rows of `output`; what it ends with
/// is called `output_name`.
void DeclareMlaAttention(WeightLoader& loader, const MlaSpec& spec, int64_t input, int64_t output,
                         MlaWeights* weights, const std::string& prefix,
                         std::string_view output_name = "o_proj");

struct DeepSeekWeights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  TokenTable embedding;
  std::vector<DecoderLayer> layers;
  const float* final_norm = nullptr;
  Weight head;  // lm_head [vocab, hidden]
  std::vector<MtpWeights> mtp;

  /// Declares everything but `memory`, with `num_modules` MTP modules. Throws Error for a config
  /// whose networks are not supported.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
