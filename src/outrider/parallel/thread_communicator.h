// Ranks that are threads of one process: each stores its part in memory that all of them read, and
// raises a counter.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "outrider/parallel/communicator.h"

namespace outrider {

/// How long a rank waits for another in one call. Where one hangs, requests are told so a second
/// later, and the process has ended within 10 seconds.
inline constexpr double kRankSeconds = 6;
/// How long it waits where each rank runs the attention of its own requests: while one has the
/// chunk of a long prompt the others may have nothing to do.
inline constexpr double kRankSecondsOfOwnRequests = 30;

/// One communicator for each of `ranks` ranks, by rank; each is used by one thread. A rank that
/// another waits for longer than `seconds` counts as ended.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int32_t ranks,
                                                                   double seconds = kRankSeconds);

}  // namespace outrider
