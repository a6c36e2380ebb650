// What the routes of trainers and operators are asked for, in vLLM's queries and in SGLang's
// bodies. All of it throws RequestError for what makes no sense.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/generation_service.h"

namespace outrider {

struct PauseRequest {
  PauseMode mode = PauseMode::kAbort;
  bool forget_prefixes = true;
};

struct SleepRequest {
  EngineMemory memory;
  PauseMode mode = PauseMode::kAbort;
};

/// mode=abort|wait|keep, clear_cache, and the older wait_for_inflight_requests.
PauseRequest ParsePauseQuery(std::string_view query);

/// {"mode": "abort" | "in_place" | "retract"}. Requests that are retracted are computed again; here
/// they keep what they have, and go on with equal bits.
PauseRequest ParsePauseBody(const std::string& body);

/// level=1|2, mode, tags=weights|kv_cache.
SleepRequest ParseSleepQuery(std::string_view query);

/// tags=weights|kv_cache.
EngineMemory ParseWakeUpQuery(std::string_view query);

/// {"tags": ["weights", "kv_cache"]}.
EngineMemory ParseMemoryBody(const std::string& body);

/// A body of SGLang's /update_weights_from_disk, or the same as "update_info". Folders are below
/// one of `allowed_dirs`.
WeightUpdate ParseWeightUpdate(const std::string& body,
                               const std::vector<std::string>& allowed_dirs);

}  // namespace outrider
