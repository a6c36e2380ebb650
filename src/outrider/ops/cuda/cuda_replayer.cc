#include "outrider/ops/cuda/cuda_replayer.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

// A graph takes memory of the device; with more than this many all are recorded anew as needed.
constexpr size_t kMostGraphs = 512;

}  // namespace

void CudaReplayer::Run(const Context& context, const RunKey& key,
                       std::span<const StepInputs* const> inputs, const Pass& run) {
  ops_.WorkBegins();
  const bool recordable = std::ranges::all_of(inputs, [](const StepInputs* rows) {
    return rows->num_rows() == 0 || Cast(*rows).rounded();
  });
  if (!recordable) {
    ++counts_.launched;
    return run(context);
  }
  if (memory_version_ != MemoryVersion() || graphs_.size() > kMostGraphs) {
    Clear();
    memory_version_ = MemoryVersion();
  }
  RunKey whole = key;
  for (const StepInputs* rows : inputs) {
    if (rows->num_rows() > 0) Cast(*rows).AddTo(whole);
    whole.Add(rows->num_rows());
  }
  Graph& graph = graphs_[{whole.numbers().begin(), whole.numbers().end()}];
  const Turn turn = TurnOf(graph);
  if (turn == kLaunch) {
    ++counts_.launched;
    graph.seen = true;
    return Launch(context, run);
  }
  if (turn == kRecord) {
    ++counts_.launched;
    if (graph.executable != nullptr) cudaGraphExecDestroy(std::exchange(graph.executable, nullptr));
    graph.executable = Record(context, run);
  } else {
    ++counts_.repeated;
  }
  CheckCuda(cudaGraphLaunch(graph.executable, ops_.stream()), "a recorded step");
  if (ranks_ != nullptr) ranks_->Meet();  // all have launched it
  // The work space holds a plan of these inputs now.
  arena_.ForgetPlans();
}

CudaReplayer::Turn CudaReplayer::TurnOf(const Graph& graph) const {
  const Turn own = graph.executable != nullptr ? kRepeat : graph.seen ? kRecord : kLaunch;
  return ranks_ == nullptr ? own : static_cast<Turn>(ranks_->LeastOf(own));
}

void CudaReplayer::Launch(const Context& context, const Pass& run) const {
  if (ranks_ == nullptr) return run(context);
  ranks_->BeginMeasuring();
  run(context);
  ranks_->EndMeasuring();
}

cudaGraphExec_t CudaReplayer::Record(const Context& context, const Pass& run) const {
  arena_.ForgetPlans();
  if (ranks_ != nullptr) ranks_->BeginRecording();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CheckCuda(cudaStreamBeginCapture(ops_.stream(), cudaStreamCaptureModeThreadLocal),
            "recording a step");
  try {
    run(context);
  } catch (...) {
    if (ranks_ != nullptr) ranks_->EndRecording();
    cudaStreamEndCapture(ops_.stream(), &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  if (ranks_ != nullptr) ranks_->EndRecording();
  CheckCuda(cudaStreamEndCapture(ops_.stream(), &graph), "recording a step");
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CheckCuda(error, "recording a step");
  OUTRIDER_CHECK(memory_version_ == MemoryVersion(), "memory was made while recording");
  if (ranks_ != nullptr) {
    // No GPU waits for another's while a host makes memory for its own.
    CheckCuda(cudaGraphUpload(executable, ops_.stream()), "recording a step");
    ops_.Synchronize();
    ranks_->Meet();
  }
  return executable;
}

void CudaReplayer::Clear() {
  cudaStreamSynchronize(ops_.stream());  // an error shows in the next call
  for (auto& [key, graph] : graphs_) {
    if (graph.executable != nullptr) cudaGraphExecDestroy(graph.executable);
  }
  graphs_.clear();
}

}  // namespace outrider::cuda
