// The GPU's Replayer, with CUDA graphs. The first run with a key is launched operation by
// operation, so that all memory is there. The second run is recorded. Later ones are one launch of
// the graph.
//
// Several ranks treat a run alike: as the rank needs it that has seen it least. GPUs wait for each
// other in recorded steps, so a host goes on only when all hosts have launched theirs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_communicator.h"
#include "outrider/ops/replayer.h"

namespace outrider::cuda {

class CudaReplayer : public Replayer {
 public:
  /// Runs use this arena. ranks: those that run the same steps, or null.
  CudaReplayer(const CudaOps& ops, CudaArena& arena, DeviceCommunicator* ranks)
      : ops_(ops), arena_(arena), ranks_(ranks) {}
  ~CudaReplayer() override { Clear(); }
  CudaReplayer(const CudaReplayer&) = delete;
  CudaReplayer& operator=(const CudaReplayer&) = delete;

  void Run(const Context& context, const RunKey& key, std::span<const StepInputs* const> inputs,
           const Pass& run) override;
  ReplayCounts counts() const override { return counts_; }

 private:
  struct Graph {
    bool seen = false;
    cudaGraphExec_t executable = nullptr;
  };
  /// What is done with a run.
  enum Turn : int32_t { kLaunch, kRecord, kRepeat };

  /// The first that any rank needs.
  Turn TurnOf(const Graph& graph) const;
  void Launch(const Context& context, const Pass& run) const;

  cudaGraphExec_t Record(const Context& context, const Pass& run) const;
  void Clear();

  /// Changes whenever memory that runs refer to was moved.
  int64_t MemoryVersion() const {
    return arena_.memory_version() + ops_.results().memory_version() +
           (ranks_ == nullptr ? 0 : ranks_->recorded_version());
  }

  const CudaOps& ops_;
  CudaArena& arena_;
  DeviceCommunicator* ranks_;
  int64_t memory_version_ = 0;  // that the graphs were recorded with
  std::map<std::vector<uint64_t>, Graph> graphs_;
  ReplayCounts counts_;
};

}  // namespace outrider::cuda
