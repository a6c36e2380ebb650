// The shapes of kernels that tests of the matrix products ask for.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "outrider/kernels/cuda/matmul/matmul.h"

namespace outrider::cuda {

inline constexpr auto kDeep = MatMulVariant::kDeep;
inline constexpr auto kPair = MatMulVariant::kPair;
inline constexpr auto kWide = MatMulVariant::kWide;

/// Every body, and each form of sharing rows.
inline constexpr MatMulShape kShapes[] = {
    {.tokens = 8},
    {.tokens = 16},
    {.tokens = 32},
    {.tokens = 64},
    {.tokens = 128},
    {.tokens = 8, .variant = kDeep},
    {.tokens = 16, .variant = kDeep},
    {.tokens = 32, .variant = kDeep},
    {.tokens = 64, .variant = kDeep},
    {.tokens = 192, .variant = kPair},
    {.tokens = 256, .variant = kPair},
    {.tokens = 128, .variant = kWide},
    {.tokens = 256, .variant = kWide},
    {.tokens = 128, .variant = kWide, .all_segments = true},
    {.tokens = 64, .variant = kDeep, .all_segments = true},
    {.tokens = 128, .all_segments = true},
    {.tokens = 32, .shares = 2},
    {.tokens = 64, .shares = 4},
    {.tokens = 64, .variant = kDeep, .shares = 2},
};

inline std::string Name(const MatMulShape* shape) {
  if (shape == nullptr) return "its own shape";
  const char* const variants[] = {"usual", "deep", "pair", "wide"};
  return fmt::format("{} tiles of {}, shared by {}{}", variants[static_cast<int>(shape->variant)],
                     shape->tokens, shape->shares, shape->all_segments ? ", all segments" : "");
}

/// Null, and those of kShapes that a weight has.
inline std::vector<const MatMulShape*> ShapesOf(const PackedWeight& w, bool numbered) {
  const bool bf16 = w.format == WeightFormat::kBf16;
  std::vector<const MatMulShape*> shapes = {nullptr};
  for (const MatMulShape& shape : kShapes) {
    const bool wide = shape.variant == kWide || shape.variant == kPair;
    if (!bf16 && (shape.shares > 1 || shape.tokens > 128)) continue;
    if (!bf16 && shape.all_segments && !wide) continue;
    if (numbered && (shape.shares > 1 || (wide && bf16))) continue;
    if (shape.shares * SegmentsOf(w).count > 8) continue;
    shapes.push_back(&shape);
  }
  return shapes;
}

}  // namespace outrider::cuda
