#include "outrider/kernels/cuda/matmul/matmul_shape.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "outrider/kernels/cuda/host/multiprocessors.h"

namespace outrider::cuda {

namespace {

constexpr int kMaxSegments = 8;
constexpr int kPairTokens = 32;  // the largest tile of e2m1 experts that two warpgroups share
constexpr int kNarrowRows = 64;  // up to here the weight's bytes limit a product

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

/// Blocks that have a multiprocessor of their own at the same time. Larger clusters do not fill
/// every group of multiprocessors: 112 blocks of clusters of four ran at once, 128 did not.
int BlocksAtOnce(int cluster) {
  const int multiprocessors = NumMultiprocessors();
  return cluster <= 2 ? multiprocessors : multiprocessors * 7 / 8;
}

/// e4m3 codes.
constexpr bool HasBytes(WeightFormat format) {
  return format != WeightFormat::kBf16 && !IsFourBits(format);
}

/// How many blocks share rows of x, where not all have a multiprocessor of their own. Sharing pays
/// with many rows of x, as long as reading them takes longer than the products.
int SharesOf(const PackedWeight& weight, int rows, int tokens, int segments) {
  const bool pays = weight.format == WeightFormat::kBf16 && (tokens == 32 || tokens == 64);
  if (!pays || segments > 1 || rows > tokens) return 1;
  return weight.n >= 4 * kWeightRows ? 4 : 1;
}

/// About how many cycles a product takes with more than 64 rows, when its weight is bf16. With
/// these numbers the least of these is what `matmul_sweep` finds fastest, or within 5 %, for 60 of
/// its 62 products of more than 64 rows; for one of the others whole steps were faster so.
double Cycles(const PackedWeight& weight, int rows, const MatMulSegments& segments,
              const MatMulShape& shape) {
  // Bytes per cycle: loads of a multiprocessor and of one block by itself, what a cluster adds up.
  constexpr double kLoad = 71, kBlockLoad = 44.8, kClusterResults = 30;
  constexpr double kClusterStart = 5200;  // cycles that a cluster takes longer to start and end
  const MatMulBodyFacts facts = Facts(weight.format, shape, segments.count > 1);
  const int weight_rows = kWeightRows * facts.warpgroups;
  const bool clusters = !shape.all_segments && segments.count > 1;
  const int columns = clusters ? segments.length : weight.k;
  const int blocks =
      Ceil(rows, shape.tokens) * Ceil(weight.n, weight_rows) * (clusters ? segments.count : 1);
  const int at_once = BlocksAtOnce(clusters ? segments.count : 1);
  const int each = Ceil(blocks, at_once), rounds = Ceil(blocks, at_once * facts.blocks_per_sm);
  // What the last tile of fewer rows leaves out does not matter: the longest block counts.
  const double multiply = columns / 16.0 * facts.warpgroups * shape.tokens / 2;
  const double bytes = 2.0 * columns * (weight_rows + shape.tokens);
  const double cycles =
      std::max(each * std::max(multiply, bytes / kLoad), rounds * bytes / kBlockLoad);
  if (!clusters) return cycles;
  return cycles + rounds * (kClusterStart + 4.0 * weight_rows * shape.tokens / kClusterResults);
}

/// The body for more than 64 rows of x and bf16 weights.
MatMulShape ShapeOfManyRows(const PackedWeight& weight, int rows, const MatMulSegments& segments) {
  constexpr auto kDeep = MatMulVariant::kDeep, kPair = MatMulVariant::kPair,
                 kWide = MatMulVariant::kWide;
  constexpr MatMulShape kShapes[] = {{.tokens = 64, .variant = kDeep},
                                     {.tokens = 128},
                                     {.tokens = 192, .variant = kPair},
                                     {.tokens = 256, .variant = kPair},
                                     {.tokens = 128, .variant = kWide},
                                     {.tokens = 256, .variant = kWide},
                                     {.tokens = 64, .variant = kDeep, .all_segments = true},
                                     {.tokens = 128, .all_segments = true},
                                     {.tokens = 128, .variant = kWide, .all_segments = true}};
  MatMulShape best = kShapes[0];
  double least = Cycles(weight, rows, segments, best);
  for (const MatMulShape& shape : kShapes) {
    if (shape.all_segments && segments.count == 1) continue;
    const double cycles = Cycles(weight, rows, segments, shape);
    if (cycles >= least) continue;
    least = cycles;
    best = shape;
  }
  return best;
}

}  // namespace

const void* ScalesOf(const PackedWeight& weight) {
  const bool has_them = HasBlockScales(weight.format) || HasRowScales(weight.format);
  if (weight.scales != nullptr || !has_them) return weight.scales;
  return static_cast<const std::byte*>(weight.data) +
         PackedUnitBytes(weight.format, weight.n, weight.k);
}

MatMulBodyFacts Facts(WeightFormat format, const MatMulShape& shape, bool segments) {
  switch (format) {
    case WeightFormat::kF8:
      return FactsOf<WeightFormat::kF8>(shape, segments);
    case WeightFormat::kF8PowerOfTwo:
      return FactsOf<WeightFormat::kF8PowerOfTwo>(shape, segments);
    case WeightFormat::kF8Rows:
      return FactsOf<WeightFormat::kF8Rows>(shape, segments);
    case WeightFormat::kInt4:
      return FactsOf<WeightFormat::kInt4>(shape, segments);
    case WeightFormat::kFp4:
      return FactsOf<WeightFormat::kFp4>(shape, segments);
    case WeightFormat::kNvfp4:
      return FactsOf<WeightFormat::kNvfp4>(shape, segments);
    default:
      return FactsOf<WeightFormat::kBf16>(shape, segments);
  }
}

int NarrowTokens(int rows) {
  for (const int tokens : {8, 16, 32, 64}) {
    if (rows <= tokens) return tokens;
  }
  return 128;
}

MatMulSegments SegmentsOf(const PackedWeight& weight) {
  const int unit_columns = UnitColumns(weight.format);
  const int units = Ceil(weight.k, unit_columns);
  int count = weight.segments;
  if (count == 0) {
    // With few rows a block has 64 rows of the weight and one segment. bf16: blocks on half of the
    // multiprocessors keep enough loads under way, and more segments cost more where rows are many.
    // Codes take a block longer to widen than to come, so it takes two blocks on each. Below 512
    // columns a segment's start and end cost more than that.
    const bool bf16 = weight.format == WeightFormat::kBf16;
    const auto most = static_cast<unsigned>(
        std::clamp((bf16 ? 66 : 264) / Ceil(weight.n, kWeightRows), 1, bf16 ? 4 : kMaxSegments));
    count = static_cast<int>(bf16 ? std::bit_ceil(most) : std::bit_floor(most));
    count = std::clamp(units / (512 / unit_columns), 1, count);
  }
  const int length = Ceil(units, count);
  return {.count = Ceil(units, length), .length = length * unit_columns};
}

MatMulShape ChooseShape(const PackedWeight& weight, int rows, bool numbered) {
  const MatMulSegments segments = SegmentsOf(weight);
  MatMulShape shape = {.tokens = NarrowTokens(rows)};
  if (numbered) return shape;
  if (rows <= kNarrowRows) {
    if (HasBytes(weight.format) ||
        (weight.format == WeightFormat::kBf16 &&
         Ceil(weight.n, kWeightRows) * segments.count <= BlocksAtOnce(segments.count))) {
      shape.variant = MatMulVariant::kDeep;
    } else {
      shape.shares = SharesOf(weight, rows, shape.tokens, segments.count);
    }
    return shape;
  }
  if (weight.format == WeightFormat::kBf16) return ShapeOfManyRows(weight, rows, segments);
  if (rows > 256 && segments.count > 1) {
    return {.tokens = 128, .variant = MatMulVariant::kWide, .all_segments = true};
  }
  return shape;
}

int RowsAtOnce(const PackedWeight& weight, int rows) {
  const MatMulSegments segments = SegmentsOf(weight);
  const MatMulShape shape = ChooseShape(weight, rows, /*numbered=*/false);
  const MatMulBodyFacts facts = Facts(weight.format, shape, segments.count > 1);
  const int cluster = shape.shares * (shape.all_segments ? 1 : segments.count);
  const int at_once = NumMultiprocessors() * facts.blocks_per_sm / cluster;
  const int column_tiles = Ceil(weight.n, kWeightRows * facts.warpgroups * shape.shares);
  return std::max(at_once / column_tiles, 1) * shape.tokens;
}

int ExpertTileRows(WeightFormat format, int max_rows, int choices, int experts) {
  // About the most rows that an expert has if the router spreads them evenly.
  const int mean = Ceil(max_rows * choices, std::max(experts, 1));
  const int most = NarrowTokens(std::min(max_rows, mean + mean / 2));
  if (most <= kMostNumberedTokens) return most;
  // Two tiles of 32 rows are faster than one of 64: 1657 us against 1975 with 24 rows each.
  if (IsE2m1(format) && mean <= kPairTokens * 3 / 4) return kPairTokens;
  if (most > kNarrowRows) return 256;
  // Other codes take as long with 32 rows as with 64.
  return format == WeightFormat::kBf16 || IsE2m1(format) ? most : kNarrowRows;
}

MatMulShape ChooseExpertShape(WeightFormat format, int tile_rows, int rows_each) {
  const bool bf16 = format == WeightFormat::kBf16;
  if (bf16 && tile_rows > kNarrowRows) return {.tokens = 256, .variant = MatMulVariant::kWide};
  const int tokens = NarrowTokens(tile_rows);
  // Rows of x would be as many bytes as codes: two warpgroups share them.
  if (IsE2m1(format) && (tokens == 16 || tokens == 32)) {
    return {.tokens = tokens, .variant = MatMulVariant::kPair};
  }
  // With so few rows bytes take the time: fewer blocks, which have more of them on their way.
  if (HasBytes(format) && rows_each < 2) {
    return {.tokens = tokens, .variant = MatMulVariant::kDeep};
  }
  // With 64 rows the products take the time; one block with more on its way is faster than three.
  if (bf16 && tokens == 64) return {.tokens = tokens, .variant = MatMulVariant::kDeep};
  return {.tokens = tokens};
}

}  // namespace outrider::cuda
