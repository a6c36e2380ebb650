// How the router's kernel shares experts among the 32 lanes of a warp, for hosts that only ask what
// it takes.
#pragma once

namespace outrider::cuda {

/// Experts of a lane.
inline int PerLane(int experts) {
  const int least = (experts + 31) / 32;
  return least <= 8 ? least : least <= 12 ? 12 : 16;
}

/// Whether each of `groups` equal groups fills whole lanes, a power of two of them.
inline bool GroupsFillLanes(int experts, int groups) {
  if (groups == 1) return true;
  if (groups > 32 || experts % groups != 0) return false;
  const int size = experts / groups;
  const int lanes = size / PerLane(experts);
  return size % PerLane(experts) == 0 && (lanes & (lanes - 1)) == 0;
}

}  // namespace outrider::cuda
