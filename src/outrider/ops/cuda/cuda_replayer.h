// The GPU's Replayer: runs as CUDA graphs. The first run with a key is launched as it is, so that
// all memory is there; the second is recorded; later ones are one launch of the graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/replayer.h"

namespace outrider::cuda {

class CudaReplayer : public Replayer {
 public:
  /// records: else every run is launched as it is.
  CudaReplayer(const CudaOps& ops, bool records) : ops_(ops), records_(records) {}
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

  cudaGraphExec_t Record(const std::function<void()>& run) const;
  void Clear();

  const CudaOps& ops_;
  bool records_;
  int64_t memory_version_ = 0;  // CudaOps::memory_version, that the graphs were recorded with
  std::map<std::vector<uint64_t>, Graph> graphs_;
  ReplayCounts counts_;
};

}  // namespace outrider::cuda
