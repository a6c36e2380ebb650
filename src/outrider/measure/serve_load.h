// A fixed load on a server, timed by its clients: the measurement behind each row of
// `outrider bench serve`.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "outrider/measure/bench_run.h"

namespace outrider {

/// RunLoad over HTTP: `batch_size` connections to `port` of 127.0.0.1, each with one streamed
/// completion of `model` at a time. Of RequestStats the token counts and the client's times are
/// set: from sending a request to its first token and to its end. `service` is the server's engine,
/// whose counters are read. Throws Interrupted when `interrupted` becomes true, and
/// Error{kUnavailable} when an answer is not a whole stream of tokens.
BenchRow RunServeLoad(uint16_t port, const std::string& model, const GenerationService& service,
                      std::span<const GenerationRequest> requests, int32_t batch_size,
                      const std::atomic<bool>& interrupted);

}  // namespace outrider
