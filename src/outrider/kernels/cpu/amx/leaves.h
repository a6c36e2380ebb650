// The leaves of processors with AMX, beside those of AVX-512. Call them only where DetectIsa() is
// kAmx. Meaning: leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {

/// Rows from which the matrix unit is faster than FMAs.
inline constexpr int64_t kLeastRowsOfTiles = 3;

/// Products in unit order: the columns come in tiles of 32; of a tile the even columns are one
/// chain of FMAs from zero and the odd ones another, and (even + odd) is added to the sum of the
/// tiles before. Subnormal numbers, operands and results, are zero in all of this. With kF8E4M3 the
/// tiles that share a scale have a sum of their own, which is multiplied by it and added in one
/// FMA. Both give the same bits: FMAs, for fewer rows than that, and the matrix unit, for rows in
/// tiles.
void MultiplyByPairs(const PanelProduct& product);
void MultiplyByTiles(const PanelProduct& product);

/// MultiplyByTiles for up to so many groups of kTileRows rows.
inline constexpr int kFewGroups = 4;
void MultiplyFewGroupsByTiles(const PanelProduct& product);

/// Attention over one split of bfloat16 entries with one group of rows and no shared part, whose
/// values are elements of the keys, 64 rows at most; needs block.tiles. (Rows of one head would not
/// fill a tile.)
void AttendEntriesInTiles(const EntryBlock& block);

/// Columns of 8-bit weights that are widened at a time, for kPanelGroup panels.
inline constexpr int64_t kWidenedCols = kWidenedWeights * 2 / (kPanelGroup * 16);

/// For measuring the machine: products of tiles whose rows and weights, kLimitBytes in all, come
/// from L2; each round is kLimitFlops operations. data: aligned to 64 bytes.
inline constexpr int64_t kLimitBytes = int64_t{512} << 10;
inline constexpr double kLimitFlops = kLimitBytes / 1024.0 * 16 * 16 * 32 * 2;
float RunTileProducts(const std::byte* data, int64_t rounds);

}  // namespace outrider::cpu::amx
