// Drafts that a device keeps for the passes after it. A pass of a drafter reads the drafts of the
// pass before, and the next step verifies them, without the host's having read them: until then it
// knows their places only. In an array of tokens a negative number stands for such a draft.
#pragma once

#include <cstdint>

namespace outrider {

/// What stands for the draft at `place` (DrawRequest::place): less than -1.
constexpr int32_t TokenOfPlace(int32_t place) { return -2 - place; }
constexpr int32_t PlaceOfToken(int32_t token) { return -2 - token; }
constexpr bool IsOnDevice(int32_t token) { return token < -1; }

}  // namespace outrider
