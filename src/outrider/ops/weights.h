// Weights as a device packs them: shapes, and what only the device's operations can read.
#pragma once

#include <cstdint>

namespace outrider {

/// A matrix W [rows, cols] of y = x W^T.
struct Weight {
  int64_t rows = 0;
  int64_t cols = 0;
  const void* packed = nullptr;
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

/// Gate, up and down matrices of routed experts, and of the MLP that every row goes through.
struct ExpertWeights {
  int64_t experts = 0;
  int64_t width = 0;         // of a routed expert
  int64_t shared_width = 0;  // 0: there is no shared MLP
  const void* packed = nullptr;
};

}  // namespace outrider
