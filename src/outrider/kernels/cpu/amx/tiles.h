// AMX's instructions as functions of tile numbers (include in AMX leaves only). In place of GCC
// 12's intrinsics, which say nothing of the memory that they read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

constexpr int64_t kTileBytes = 1024;  // of a whole tile
constexpr int64_t kTileSums = 256;    // floats of one

#define OUTRIDER_AMX_INLINE inline __attribute__((always_inline))

template <int kTile>
OUTRIDER_AMX_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

/// The rows of a tile, each 64 bytes, one after the other.
template <int kTile>
OUTRIDER_AMX_INLINE void LoadTile(const void* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(int64_t{64}), "i"(kTile)
               : "memory");
}

/// Loads a tile of rows that are `stride` bytes apart.
template <int kTile>
OUTRIDER_AMX_INLINE void LoadTile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

/// Loads rows that are not needed again soon: they need not stay in L1.
template <int kTile>
OUTRIDER_AMX_INLINE void LoadTileOnce(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

/// Rows `stride` bytes apart.
template <int kTile>
OUTRIDER_AMX_INLINE void StoreTile(void* to, int64_t stride = 64) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

/// sums += rows * weights, for 16 pairs of columns.
template <int kSums, int kRows, int kWeights>
OUTRIDER_AMX_INLINE void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kWeights));
}

/// What LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Tiles 0 to 3 hold sums; the others rows or weights. All have 64 bytes per row.
class TileShapes {
 public:
  TileShapes() = default;
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
  ~TileShapes() {
    if (!in_use_) return;
    // The next thread of this processor need not save tiles.
    asm volatile("tilerelease" ::: "memory");
  }

  /// Two groups of rows (tiles 4 and 5) times two panels (6 and 7): sums 0 and 1, and 2 and 3.
  void UseTwoGroups(int64_t rows, int64_t next_rows) {
    Use({rows, rows, next_rows, next_rows, rows, next_rows, 16, 16});
  }

  /// One group of rows (tile 4) times up to four panels (5, 6 and 7 in turn).
  void UseOneGroup(int64_t rows) { Use({rows, rows, rows, rows, rows, 16, 16, 16}); }

  /// 1 to 4 groups of 16 rows, but for the last (tile 5, or 4 if it is the only one): as above, or
  /// a sum for each (0, 1, ..) and weights in tile 6.
  void UseGroups(int groups, int64_t last_rows) {
    if (groups == 1) return UseOneGroup(last_rows);
    if (groups == 2) return UseTwoGroups(16, last_rows);
    Use({16, 16, groups == 3 ? last_rows : 16, last_rows, 16, last_rows, 16, 16});
  }

 private:
  void Use(const int64_t (&rows)[8]) {
    bool same = in_use_;
    for (int i = 0; i < 8; ++i) same = same && config_.rows[i] == rows[i];
    if (same) return;
    in_use_ = true;
    for (int i = 0; i < 8; ++i) {
      config_.rows[i] = static_cast<uint8_t>(rows[i]);
      config_.row_bytes[i] = 64;
    }
    asm volatile("ldtilecfg %0" ::"m"(config_) : "memory");
  }

  TileConfig config_;
  bool in_use_ = false;
};

#undef OUTRIDER_AMX_INLINE

}  // namespace
}  // namespace outrider::cpu::amx
