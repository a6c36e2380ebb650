// The device's multiprocessors, which launches are cut for.
#pragma once

namespace outrider::cuda {

/// How many the current device has; devices of a process are alike.
int NumMultiprocessors();

}  // namespace outrider::cuda
