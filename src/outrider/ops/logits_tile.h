// Logits of many rows are made a tile of rows at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace outrider {

/// Bytes of a tile, about. Over a small vocabulary a step is one tile then.
inline constexpr int64_t kLogitsTileBytes = int64_t{128} << 20;
inline constexpr int64_t kLeastLogitsTileRows = 256;

/// Rows whose logits, in float32, fill `tile_bytes`, and kLeastLogitsTileRows at least.
inline int64_t LogitsTileRows(int64_t vocab, int64_t tile_bytes = kLogitsTileBytes) {
  return std::max(kLeastLogitsTileRows, tile_bytes / (vocab * int64_t{sizeof(float)}));
}

}  // namespace outrider
