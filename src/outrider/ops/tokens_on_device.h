// Tokens that a device keeps by request slot: the last one of the request and the drafts behind it.
// The passes after the one that drew them read them there, without the host's having read them:
// until it has, it knows their places only. In an array of tokens a negative number stands for such
// a token.
#pragma once

#include <cstdint>

namespace outrider {

/// What stands for the token at `place`: less than -1.
constexpr int32_t TokenOfPlace(int32_t place) { return -2 - place; }
constexpr int32_t PlaceOfToken(int32_t token) { return -2 - token; }
constexpr bool IsOnDevice(int32_t token) { return token < -1; }

/// Where a slot's tokens are; max_drafts is the same for all slots.
constexpr int32_t PlaceOfLastToken(int32_t slot, int32_t max_drafts) {
  return slot * (1 + max_drafts);
}
constexpr int32_t PlaceOfDraft(int32_t slot, int32_t max_drafts, int32_t index) {
  return PlaceOfLastToken(slot, max_drafts) + 1 + index;
}

}  // namespace outrider
