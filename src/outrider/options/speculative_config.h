// The JSON object of --speculative-config, as vLLM writes it.
#pragma once

#include <string_view>

#include "outrider/engine/engine_options.h"

namespace outrider {

/// Lays the keys of `text` ({"method": "mtp", "num_speculative_tokens": 3}; all optional) over
/// `options`. Throws Error{kInvalidArgument} on text that is not an object, unknown or repeated
/// keys and bad values, naming `where` and the key.
void ApplySpeculativeConfig(std::string_view where, std::string_view text,
                            SpeculationOptions& options);

/// Checks and sets one key.
void SetSpeculationMethod(std::string_view where, std::string_view text,
                          SpeculationOptions& options);
void SetNumSpeculativeTokens(std::string_view where, std::string_view text,
                             SpeculationOptions& options);

/// The largest number of draft tokens that may be asked for.
inline constexpr int32_t kMaxSpeculativeTokens = 32;

}  // namespace outrider
