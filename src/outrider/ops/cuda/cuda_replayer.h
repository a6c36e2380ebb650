// The GPU's Replayer: runs as CUDA graphs. The first run with a key is launched as it is, so that
// all memory is there; the second is recorded; later ones are one launch of the graph.
//
// Of several ranks all do the same: what the one does that has seen least of a run. In recorded
// steps GPUs wait for each other, so the hosts go on when all have launched theirs.
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
  /// Of runs in this arena. ranks: the others that run the same, or null.
  CudaReplayer(const CudaOps& ops, CudaArena& arena, DeviceCommunicator* ranks)
      : ops_(ops), arena_(arena), ranks_(ranks) {}
  ~CudaReplayer() override { Clear(); }
  CudaReplayer(const CudaReplayer&) = delete;
  CudaReplayer& operator=(const CudaReplayer&) = delete;

  void Run(const RunKey& key, std::span<const StepInputs* const> inputs,
           const std::function<void()>& run) override;
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
  void Launch(const std::function<void()>& run) const;

  cudaGraphExec_t Record(const std::function<void()>& run) const;
  void Clear();

  /// Another number whenever memory that runs refer to was moved.
  int64_t MemoryVersion() const {
    return arena_.memory_version() + ops_.results().memory_version();
  }

  const CudaOps& ops_;
  CudaArena& arena_;
  DeviceCommunicator* ranks_;
  int64_t memory_version_ = 0;  // that the graphs were recorded with
  std::map<std::vector<uint64_t>, Graph> graphs_;
  ReplayCounts counts_;
};

}  // namespace outrider::cuda
