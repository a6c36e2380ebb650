// CudaOps: what an engine on the GPU refuses at its start (hopper_networks.h). Calls are bugs.
#include "outrider/base/error.h"
#include "outrider/ops/cuda/cuda_ops.h"

namespace outrider::cuda {

void CudaOps::WritePerHeadEntries(const Context& /*context*/, const MlaShape& /*shape*/,
                                  const KvUpWeight& /*w*/, const StepInputs& /*inputs*/,
                                  const EntryArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "per-head entries on the GPU");
}

void CudaOps::NormHeads(const Context& /*context*/, Tensor /*x*/, int32_t /*heads*/,
                        const float* /*weight*/, float /*eps*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

void CudaOps::WriteEntries(const Context& /*context*/, const StepInputs& /*inputs*/,
                           Tensor /*entries*/, LayerCache /*cache*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

const Routing& CudaOps::RouteByToken(const Context& /*context*/, const RouterSpec& /*spec*/,
                                     const StepInputs& /*inputs*/, int32_t /*first_row*/,
                                     Tensor /*logits*/, const int32_t* /*table*/) const {
  OUTRIDER_CHECK(false, "experts by token on the GPU");
}

void CudaOps::LayerNorm(const Context& /*context*/, Tensor /*x*/, const float* /*weight*/,
                        const float* /*bias*/, float /*eps*/, Tensor /*y*/) const {
  OUTRIDER_CHECK(false, "indexers on the GPU");
}

void CudaOps::AddPositionBias(const Context& /*context*/, const StepInputs& /*inputs*/,
                              const float* /*bias*/, int32_t /*ratio*/, Tensor /*x*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

void CudaOps::Compress(const Context& /*context*/, const CompressorShape& /*shape*/,
                       const StepInputs& /*inputs*/, const CompressArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

SelectedEntries CudaOps::SelectEntries(const Context& /*context*/, const StepInputs& /*inputs*/,
                                       const SelectEntriesArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

void CudaOps::CompressedAttention(const Context& /*context*/, const StepInputs& /*inputs*/,
                                  const CompressedAttentionArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "compressed entries on the GPU");
}

void CudaOps::HyperMix(const Context& /*context*/, const HyperShape& /*shape*/,
                       const HyperMixArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "hyper-connections on the GPU");
}

void CudaOps::HyperAdd(const Context& /*context*/, const HyperShape& /*shape*/, Tensor /*weights*/,
                       Tensor /*y*/, Tensor /*streams*/) const {
  OUTRIDER_CHECK(false, "hyper-connections on the GPU");
}

void CudaOps::HyperContract(const Context& /*context*/, const HyperShape& /*shape*/,
                            const HyperMixArgs& /*args*/) const {
  OUTRIDER_CHECK(false, "hyper-connections on the GPU");
}

void CudaOps::HyperMean(const Context& /*context*/, const HyperShape& /*shape*/, Tensor /*streams*/,
                        Tensor /*mean*/) const {
  OUTRIDER_CHECK(false, "hyper-connections on the GPU");
}

void CudaOps::EmbedTokens(const Context& /*context*/, const TokenTable& /*table*/,
                          std::span<const int32_t> /*tokens*/, Tensor /*x*/) const {
  OUTRIDER_CHECK(false, "a drafter of blocks on the GPU");
}

}  // namespace outrider::cuda
