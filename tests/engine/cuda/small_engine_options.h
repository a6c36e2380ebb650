// How tests load the bundled model on the GPU.
#pragma once

#include "outrider/engine/engine_loader.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {

/// With three drafts, and a KV cache that takes little of the GPU's memory.
inline EngineOptions SmallEngineOptions(int32_t max_num_seqs = EngineOptions().max_num_seqs) {
  EngineOptions options;
  options.model = TinyModelDirectory().string();
  options.device = DeviceKind::kCuda;
  options.kv_cache_memory_bytes = int64_t{64} << 20;
  options.num_threads = 4;
  options.max_num_seqs = max_num_seqs;
  options.speculation.num_speculative_tokens = 3;
  return options;
}

}  // namespace outrider::cuda
