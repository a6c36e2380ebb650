// Where an engine's memory went, as lines for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

/// Weights, MTP modules, KV cache (tokens it holds, bytes per token, requests of `max_model_len`
/// that fit; 0: not known), and the sum.
std::vector<std::string> MemoryLines(const MemoryReport& memory, int64_t max_model_len);

}  // namespace outrider::cli
