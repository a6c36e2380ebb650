#include "outrider/ops/cuda/idle_clock.h"

#include "outrider/kernels/cuda/host/device_memory.h"

namespace outrider::cuda {

IdleClock::IdleClock(cudaStream_t stream) : stream_(stream) {
  for (Gap& gap : gaps_) {
    CheckCuda(cudaEventCreate(&gap.end), "an event");
    CheckCuda(cudaEventCreate(&gap.beginning), "an event");
  }
}

IdleClock::~IdleClock() {
  for (const Gap& gap : gaps_) {
    cudaEventDestroy(gap.end);
    cudaEventDestroy(gap.beginning);
  }
}

void IdleClock::WorkEnds() {
  if (!is_open_) {
    // The memory of a gap that nobody asked for in time is wanted.
    if (num_gaps_ - num_read_ == gaps_.size() && !Read()) ++num_read_;
    ++num_gaps_;
    is_open_ = true;
  }
  CheckCuda(cudaEventRecord(At(num_gaps_ - 1).end, stream_), "recording an event");
}

void IdleClock::WorkBegins() {
  if (!is_open_) return;
  is_open_ = false;
  CheckCuda(cudaEventRecord(At(num_gaps_ - 1).beginning, stream_), "recording an event");
}

void IdleClock::Pause() {
  if (is_open_) --num_gaps_;
  is_open_ = false;
}

double IdleClock::seconds() {
  while (num_read_ < num_gaps_ - (is_open_ ? 1 : 0) && Read()) {
  }
  return seconds_;
}

bool IdleClock::Read() {
  const Gap& gap = At(num_read_);
  const cudaError_t done = cudaEventQuery(gap.beginning);
  if (done == cudaErrorNotReady) return false;
  CheckCuda(done, "an event");
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, gap.end, gap.beginning), "an event");
  seconds_ += static_cast<double>(milliseconds) / 1000;
  ++num_read_;
  return true;
}

}  // namespace outrider::cuda
