// The GPU's StepSampler. Tokens are drawn on the device, with the bits of the CPU's sampler: what
// comes back is a token per row. Requests whose sampling fields the kernel does not know are drawn
// by the host from their rows of logits, as on the CPU; which ones these are is told by a request's
// own fields alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/draw.h"
#include "outrider/ops/cpu/cpu_sampler.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/staged_arrays.h"

namespace outrider::cuda {

class CudaSampler : public StepSampler {
 public:
  CudaSampler(const CudaOps& ops, int num_threads, const Verifier& verifier)
      : ops_(ops), verifier_(verifier), host_(num_threads, verifier), arrays_(ops.stream()) {}

  void Verify(const Context& context, const HeadRows& rows,
              std::span<const VerifyRequest> requests) override;
  void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
            int32_t num_tokens, std::span<int32_t> tokens) override;
  /// Not reached: a drafter of blocks is refused at start (hopper_networks.h).
  void DrawFrom(const Context& context, Tensor logits, std::span<const DrawRequest> requests,
                std::span<int32_t> tokens) override;
  void Score(const Context& context, const HeadRows& rows,
             std::span<const ScoreRequest> requests) override {
    host_.Score(context, rows, requests);
  }

 private:
  /// Draws from logits that are read from the device.
  class HostSampler : public cpu::CpuSampler {
   public:
    using CpuSampler::CpuSampler;

   private:
    void MakeLogits(const Context& context, const HeadRows& rows,
                    MatrixView<float> logits) override;
  };

  /// The rows of logits of one request, on the device.
  struct DrawnRows {
    SlotSampling sampling = {};
    int32_t first_row = 0;  // of HeadRows::rows
    int32_t num_rows = 1;
    int64_t position = 0;  // of the token that the first row predicts
    MatrixView<const uint32_t> masks = {};
  };

  /// What the kernel draws for `request`; false: the host draws.
  bool Describe(const VerifyRequest& request, DrawnRows* drawn) const;
  /// Draws from all of drawn_rows_, among the first num_tokens tokens, and returns when drawn_ has
  /// the tokens, in their order.
  void DrawRows(const Context& context, const HeadRows& rows, int32_t num_tokens);
  void DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens, size_t first,
                size_t end, int32_t first_row, int32_t* tokens);

  const CudaOps& ops_;
  Verifier verifier_;
  HostSampler host_;
  StagedArrays arrays_;
  DeviceMemory tokens_;  // [rows of drawn_rows_]
  PinnedMemory host_tokens_;
  size_t room_ = 0;  // of both
  std::span<const int32_t> drawn_;
  // Kept to reuse memory.
  std::vector<DrawnRows> drawn_rows_;
  std::vector<size_t> drawn_requests_;
  std::vector<VerifyRequest> host_requests_;
  std::vector<size_t> host_draws_;
  std::vector<DrawRequest> host_draw_requests_;
  std::vector<int32_t> host_rows_;
  std::vector<int32_t> host_drafts_;
  std::vector<StepRequest> step_requests_;
  std::vector<SlotSampling> sampling_;
  std::vector<int32_t> logit_requests_;
  std::vector<int32_t> logit_positions_;
  std::vector<int32_t> logit_starts_;
  std::vector<int32_t> head_rows_;
  std::vector<int32_t> first_mask_;
  std::vector<uint32_t> masks_;
};

}  // namespace outrider::cuda
