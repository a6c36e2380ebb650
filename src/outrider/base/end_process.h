// The end of a process that cannot wait for its threads.
#pragma once

namespace outrider {

/// From now on the process ends by itself within `seconds`, or it is ended: with a line in the log
/// and status 1, whatever its threads do. Of several calls the earliest end counts.
void EndProcessWithin(double seconds);

}  // namespace outrider
