// Ranks that are threads of one process: each stores its part in memory that all of them read, and
// raises a counter.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "outrider/parallel/communicator.h"

namespace outrider {

/// How long a rank waits in one call for another one that shows no progress. Where one hangs,
/// requests are told so a second later, and the process has ended within 10 seconds. One that
/// works may take longer: it may have the chunk of a long prompt while the others have nothing.
inline constexpr double kRankSeconds = 6;

/// One communicator for each of `ranks` ranks, by rank; each is used by one thread. A rank that
/// another waits for longer than `seconds`, and that shows no progress meanwhile, counts as ended.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int32_t ranks,
                                                                   double seconds = kRankSeconds);

}  // namespace outrider
