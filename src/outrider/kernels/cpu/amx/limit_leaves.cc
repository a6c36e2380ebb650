// A loop of tile products whose operands come from L2.

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/tiles.h"

namespace outrider::cpu::amx {

float RunTileProducts(const std::byte* data, int64_t rounds) {
  constexpr int64_t kTile = 1024;
  constexpr int64_t kPart = kLimitBytes / 4;  // a group of rows, or a panel
  alignas(64) float sums[256] = {};
  TileShapes shapes;
  shapes.UseTwoGroups(16, 16);
  ZeroTile<0>();
  ZeroTile<1>();
  ZeroTile<2>();
  ZeroTile<3>();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t i = 0; i < kPart; i += kTile) {
      LoadTile<4>(data + i);
      LoadTile<6>(data + 2 * kPart + i);
      MultiplyTiles<0, 4, 6>();
      LoadTile<7>(data + 3 * kPart + i);
      MultiplyTiles<1, 4, 7>();
      LoadTile<5>(data + kPart + i);
      MultiplyTiles<2, 5, 6>();
      MultiplyTiles<3, 5, 7>();
    }
  }
  StoreTile<0>(sums);
  return sums[0];
}

}  // namespace outrider::cpu::amx
