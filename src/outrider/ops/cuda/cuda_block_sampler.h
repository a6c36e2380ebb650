// The GPU's BlockSampler. All that a pass's draws read is copied to the device before the first
// draw. A step's draws read the tokens before them at their places (tokens_on_device.h). So the
// host waits for nothing between steps, and steps can be recorded. Every step has room for as many
// draws as the largest, rounded up (RoundedRows); the device has the true number.
//
// Where distributions of drafts are wanted (rejection sampling), the host draws all of them from
// rows of logits, as on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/ops/block_drafts.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/staged_arrays.h"
#include "outrider/sampling/sampler.h"

namespace outrider::cuda {

class CudaBlockSampler : public BlockSampler {
 public:
  CudaBlockSampler(const CudaOps& ops, int num_threads)
      : ops_(ops), arrays_(ops.stream()), samplers_(static_cast<size_t>(num_threads)) {}

  void Assign(const BlockDraws& draws) override;
  int64_t num_rows() const override { return std::ssize(draws_.steps) * room_; }
  RowRange rows_of(size_t step) const override {
    return {static_cast<int32_t>(step) * room_, room_};
  }
  bool launches_only() const override { return !host_draws_; }
  void AddTo(RunKey& key) const override;
  void ReadRows(const Context& context, Tensor hidden, Tensor x) const override;
  void EmbedBefore(const Context& context, const TokenTable& table, size_t step,
                   Tensor x) const override;
  void Draw(const Context& context, size_t step, Tensor logits) override;
  void TakeTokens(std::span<TokenRef> tokens) override;

 private:
  /// Lays out what the kernels read and begins to copy it.
  void Stage();
  /// The first draw of a step.
  int32_t FirstDraw(size_t step) const;
  void DrawOnHost(const Context& context, size_t step, Tensor logits);

  const CudaOps& ops_;
  StagedArrays arrays_;
  BlockDraws draws_;
  int32_t room_ = 0;  // of a step
  bool host_draws_ = false;
  // Where arrays begin: of all steps [steps, room], then those that steps share.
  size_t rows_at_ = 0;
  size_t before_at_ = 0;
  size_t places_at_ = 0;
  size_t positions_at_ = 0;
  size_t moved_places_at_ = 0;
  size_t sampling_at_ = 0;
  size_t counts_at_ = 0;               // [steps]
  size_t numbers_at_ = 0;              // [room + 1]: 0, 1, 2 ..
  size_t zeros_at_ = 0;                // [room]
  std::vector<Sampler> samplers_;      // the host's, one per thread
  std::vector<TokenRef> host_tokens_;  // by draw, of draws on the host
  // By step [steps, room]; kept to reuse memory.
  std::vector<int32_t> rows_;
  std::vector<TokenRef> before_;
  std::vector<int32_t> places_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> moved_places_;
  std::vector<RequestSampling> sampling_;
  std::vector<int32_t> numbers_;
  std::vector<float> host_logits_;
};

}  // namespace outrider::cuda
