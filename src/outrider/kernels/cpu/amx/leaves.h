// The leaf kernels for AMX; other entries are AVX-512's. Call them only where DetectIsa() is kAmx.
// leaf_kernels.h defines what they compute.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {

/// The number of rows from which on AMX tiles are faster than FMAs.
inline constexpr int64_t kLeastRowsOfTiles = 3;

/// Products in the order of sums of TDPBF16PS (MatMulJob defines it). The two give the same bits:
/// MultiplyByPairs uses FMAs, for fewer than kLeastRowsOfTiles rows; MultiplyByTiles uses AMX, for
/// rows in tiles.
void MultiplyByPairs(const PanelProduct& product);
void MultiplyByTiles(const PanelProduct& product);
void MultiplyFp4ByPairs(const PanelProduct& product);  // MultiplyByPairs calls it

/// Most groups of kTileRows rows that few_group_tiles.cc multiplies; MultiplyByTiles calls it.
inline constexpr int kFewGroups = 4;
void MultiplyFewGroupsByTiles(const PanelProduct& product);

/// Attention over one split of bfloat16 entries with one group of rows and no shared part, whose
/// values are elements of the keys, 64 rows at most; needs block.tiles. (Rows of one head would not
/// fill a tile.)
void AttendEntriesInTiles(const EntryBlock& block);

/// Columns of kPanelGroup panels of 8-bit weights that are widened at a time.
inline constexpr int64_t kWidenedCols = kWidenedWeights * 2 / (kPanelGroup * 16);

/// For measuring the machine: products of tiles whose rows and weights, kLimitBytes in all, come
/// from L2; each round is kLimitFlops operations. data: aligned to 64 bytes.
inline constexpr int64_t kLimitBytes = int64_t{512} << 10;
inline constexpr double kLimitFlops = kLimitBytes / 1024.0 * 16 * 16 * 32 * 2;
float RunTileProducts(const std::byte* data, int64_t rounds);

}  // namespace outrider::cpu::amx
