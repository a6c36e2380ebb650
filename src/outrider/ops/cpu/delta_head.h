// The rows of one request in one head of Kimi Delta Attention. A row is computed from the state
// before its block of kStateBlock tokens and from the rows of its block up to itself, each sum in
// one order: so prompt rows, generated rows and verify rows have the same bits, however they are
// cut into steps.
//
// With S the state before the block, e_i the decays of its rows by channel, and products of decays
// over rows of the block, multiplied in order:
//   P_t = e_0 .. e_t,  K_tj = k_j e_{j+1} .. e_t,
//   u_t = b_t (v_t - (S^T (k_t P_t) + sum over j < t of (k_t . K_tj) u_j)),
//   out_t = S^T (q_t P_t) + sum over j <= t of (q_t . K_tj) u_j,
//   next state = P_15 S + sum over j of K_15j u_j^T.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/kernels/kernel_table.h"
#include "outrider/kv/running_state.h"

namespace outrider::cpu {

/// A finished row, [D] each but for `write`.
struct DeltaRow {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* decay = nullptr;
  float write = 0;
};

class DeltaHead {
 public:
  /// At the beginning of a block; state [D, D] must stay as it is until the next EndBlock. Memory
  /// is reused from head to head.
  void Begin(const KernelTable& kernels, int32_t head_dim, const float* state);

  /// Takes a row of the block that was computed before.
  void Append(const float* k, const float* decay, const float* u);

  /// The next row of the block; u and out [D] are written.
  void Run(const DeltaRow& row, float* u, float* out);

  /// After kStateBlock rows: the state of the next block, which stays until the next but one.
  const float* EndBlock();

  const float* state() const { return state_; }

 private:
  /// Decays what the block holds so far.
  void Decay(const float* decay);
  float* KeyOf(int32_t row) { return keys_.data() + static_cast<size_t>(row) * width(); }
  float* ValueOf(int32_t row) { return values_.data() + static_cast<size_t>(row) * width(); }
  size_t width() const { return static_cast<size_t>(head_dim_); }

  const KernelTable* kernels_ = nullptr;
  int32_t head_dim_ = 0;
  int32_t rows_ = 0;  // of the block
  const float* state_ = nullptr;
  std::vector<float> product_;  // P of the last row, [D]
  std::vector<float> keys_;     // K of the last row, [kStateBlock, D]
  std::vector<float> values_;   // u, [kStateBlock, D]
  std::vector<float> states_[2];
  int next_ = 0;
  std::vector<const float*> sources_;  // [D + kStateBlock]
  std::vector<float> weights_;         // [D + kStateBlock]
};

}  // namespace outrider::cpu
