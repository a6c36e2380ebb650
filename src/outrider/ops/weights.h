// Weights as a device packs them: shapes, and what only the device's operations can read.
#pragma once

#include <cstdint>

#include "outrider/parallel/share.h"

namespace outrider {

/// How ranks share a matrix W [N, K] of y = x W^T.
struct WeightCut {
  /// How the rows of W are cut. kHeads, kInner: y has the columns of this rank. kRows: y has all N,
  /// which the product brings together.
  Cut rows = Cut::kNone;
  /// How the columns of x are cut, which are brought together before the product: kNone, kHeads or
  /// kInner.
  Cut input = Cut::kNone;
};

/// A matrix W [rows, cols] of y = x W^T: rows, the columns of y; cols, those of the whole x.
struct Weight {
  int64_t rows = 0;
  int64_t cols = 0;
  const void* packed = nullptr;  // of the rank's rows of W
  WeightCut cut = {};
};

/// A row of numbers per token.
struct TokenTable {
  int64_t rows = 0;
  int64_t cols = 0;
  const void* packed = nullptr;
};

/// W_UK [P, L] and W_UV [V, L] of every head (multi-head latent attention).
struct KvUpWeight {
  const void* packed = nullptr;
};

/// Gate, up and down matrices of routed experts, and of the MLP that every row goes through. Of
/// several ranks each has its inner columns of all gate and up matrices, and its rows of all down
/// matrices (Cut::kInner, Cut::kRows).
struct ExpertWeights {
  int64_t experts = 0;
  int64_t width = 0;         // of a routed expert, as far as the rank has it
  int64_t shared_width = 0;  // of the shared MLP, as far as the rank has it; 0: there is none
  const void* packed = nullptr;
};

}  // namespace outrider
