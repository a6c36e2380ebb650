// Whether a model fits into the memory of a host without a GPU. This is checked before weights are
// read, as the system ends a process that takes too much without a message.
#pragma once

#include <cstdint>
#include <string>

#include "outrider/base/host_memory.h"

namespace outrider {

/// Bytes that an engine will take.
struct HostNeed {
  int64_t weights = 0;
  int64_t kv_cache = 0;      // what is kept with its pages included
  int64_t offloaded = 0;     // pages that leave the cache
  int64_t int8_weights = 0;  // what the weights would take with --quantization int8; 0: no option

  int64_t InAll() const;
};

/// What is not counted in HostNeed: activations, the tokenizer, Python, the program itself.
inline constexpr int64_t kHostBaseBytes = int64_t{256} << 20;

struct HostFit {
  bool fits = true;
  /// One sentence without a full stop: what is needed and what is there; where it does not fit,
  /// what would make it fit.
  std::string text;
};

HostFit FitInHost(const HostNeed& need, const HostMemory& memory);

}  // namespace outrider
