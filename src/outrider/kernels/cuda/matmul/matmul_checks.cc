#include "outrider/kernels/cuda/matmul/matmul_checks.h"

#include <bit>
#include <cstdint>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul_shape.h"

namespace outrider::cuda {

namespace {

constexpr int kMaxCluster = 8;  // the largest that every Hopper GPU takes
constexpr int kMaxSegments = kMaxCluster;

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

void CheckWeight(const char* what, const PackedWeight& w, int experts) {
  if (w.n <= 0 || w.k <= 0 || w.data == nullptr || !Aligned(w.data)) {
    throw InvalidArgument(
        "{}: a weight of {} x {} at {}: sizes must be positive and its data 16-byte aligned", what,
        w.n, w.k, w.data);
  }
  if (w.gate_up && w.n % 16 != 0) {
    throw InvalidArgument("{}: gate and up of {} rows together: each needs a multiple of 8 rows",
                          what, w.n);
  }
  if (IsFourBits(w.format) && w.k % GroupColumns(w.format) != 0) {
    throw InvalidArgument(
        "{}: a weight of {} x {} with codes of 4 bits: its columns must fill groups of {}", what,
        w.n, w.k, GroupColumns(w.format));
  }
  constexpr size_t kMostBytes = size_t{kCopyRowBytes} << 31;
  if (PackedWeightBytes(w.format, w.n, w.k) > kMostBytes / static_cast<size_t>(experts)) {
    throw InvalidArgument(
        "{}: {} weights of {} x {}: together they must not take more than {} bytes", what, experts,
        w.n, w.k, kMostBytes);
  }
  if (!Aligned(w.scales) || (w.scales != nullptr && experts > 1)) {
    throw InvalidArgument(
        "{}: scales at {} of {} weights: they must be 16-byte aligned, and only one weight has "
        "them elsewhere",
        what, w.scales, experts);
  }
  if (w.segments < 0 || w.segments > kMaxSegments) {
    throw InvalidArgument("{}: {} segments of K: 1 to {} are possible, or 0 for the usual number",
                          what, w.segments, kMaxSegments);
  }
}

void CheckRows(const char* what, const char* name, const void* data, int64_t stride, int columns) {
  if (data == nullptr || !Aligned(data) || stride < columns || stride % 8 != 0) {
    throw InvalidArgument(
        "{}: {} at {} with a stride of {} elements: it must be 16-byte aligned, and the stride a "
        "multiple of 8 that is at least {}",
        what, name, data, stride, columns);
  }
}

void CheckDestinations(const char* what, const MatMulParams& params) {
  if (params.num_destinations < 0 || params.num_destinations > kMaxDestinations) {
    throw InvalidArgument("{}: {} destinations: 1 to {} are possible, or 0 for y", what,
                          params.num_destinations, kMaxDestinations);
  }
  if (params.w.gate_up || params.accumulate) {
    throw InvalidArgument("{}: results of gate and up, or that are added, go to y", what);
  }
  int columns = 0;
  for (int i = 0; i < params.num_destinations; ++i) {
    const MatMulDestination& p = params.destinations[i];
    const bool last = i == params.num_destinations - 1;
    if (p.columns <= 0 || (!last && p.columns % kWeightRows != 0)) {
      throw InvalidArgument(
          "{}: destination {} of {} columns: a multiple of {} is possible, and any number in the "
          "last one",
          what, i, p.columns, kWeightRows);
    }
    columns += p.columns;
    if (p.y == nullptr || !Aligned(p.y) || p.row_stride < p.columns || p.row_stride % 4 != 0) {
      throw InvalidArgument(
          "{}: destination {} at {} with a stride of {} elements: it must be 16-byte aligned, and "
          "the stride a multiple of 4 that is at least {}",
          what, i, static_cast<const void*>(p.y), p.row_stride, p.columns);
    }
    if (p.block_size < 1 || !std::has_single_bit(static_cast<unsigned>(p.block_size)) ||
        p.block_stride < 0 || p.block_stride % 4 != 0) {
      throw InvalidArgument(
          "{}: destination {} in blocks of {} rows, {} elements apart: the size must be a power of "
          "two, the distance a multiple of 4",
          what, i, p.block_size, p.block_stride);
    }
  }
  if (columns != params.w.n) {
    throw InvalidArgument("{}: destinations of {} columns together for a weight of {} rows", what,
                          columns, params.w.n);
  }
}

void CheckShape(const char* what, const MatMulShape& shape, const PackedWeight& w, int segments,
                bool numbered) {
  const bool bf16 = w.format == WeightFormat::kBf16;
  const bool small_pair = shape.variant == MatMulVariant::kPair && IsE2m1(w.format);
  const bool pair = shape.variant == MatMulVariant::kPair && !small_pair;
  const bool wide = pair || shape.variant == MatMulVariant::kWide;
  const bool large = bf16 && shape.tokens == 256;
  const bool known = small_pair ? segments == 1 && (shape.tokens == 16 || shape.tokens == 32)
                     : pair     ? large || (bf16 && shape.tokens == 192)
                     : wide     ? large || shape.tokens == 128
                                : NarrowTokens(shape.tokens) == shape.tokens &&
                                  (shape.variant == MatMulVariant::kUsual || shape.tokens <= 64);
  const bool may_have_all =
      wide ? !pair && !large
           : bf16 && shape.tokens == (shape.variant == MatMulVariant::kUsual ? 128 : 64);
  if (!known || (shape.all_segments && !may_have_all) || (numbered && wide && bf16)) {
    throw InvalidArgument(
        "{}: tiles of {} rows in this form: usual ones have 8, 16, 32, 64 or 128, deep ones up to "
        "64, wide ones 128 (bf16 also 256), pairs 192 or 256 with bf16, and 16 or 32 with e2m1 "
        "codes and one segment; bf16 ones of these two have no row numbers; only wide ones of 128, "
        "and with bf16 usual ones of 128 and deep ones of 64, have all segments",
        what, shape.tokens);
  }
  const bool shares = shape.shares == 2 || shape.shares == 4;
  if (shape.shares != 1 &&
      (!shares || wide || !bf16 || numbered || shape.tokens > 64 || shape.all_segments ||
       shape.shares * segments > kMaxCluster || shape.tokens < 8 * shape.shares)) {
    throw InvalidArgument(
        "{}: x shared by {} blocks with {} segments, tiles of {} rows: 1, 2 or 4 with segments at "
        "most {}, bf16 weights, tiles of 8 rows for each, 64 at most, one segment per block and no "
        "row numbers are possible",
        what, shape.shares, segments, shape.tokens, kMaxCluster);
  }
}

}  // namespace outrider::cuda
