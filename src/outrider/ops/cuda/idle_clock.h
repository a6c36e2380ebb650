// How long the device has nothing to do between the work of steps, by its own clock: from where the
// last results are copied to the host to the next launch, which the host may do before that.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace outrider::cuda {

class IdleClock {
 public:
  explicit IdleClock(cudaStream_t stream);
  ~IdleClock();
  IdleClock(const IdleClock&) = delete;
  IdleClock& operator=(const IdleClock&) = delete;

  /// What was launched ends here, as far as is known.
  void WorkEnds();
  /// Something is launched.
  void WorkBegins();
  /// Nothing is wanted of the device: the time until the next launch does not count.
  void Pause();

  /// The gaps that are over, summed up.
  double seconds();

 private:
  /// From an end to a beginning, or open.
  struct Gap {
    cudaEvent_t end = nullptr;
    cudaEvent_t beginning = nullptr;
  };

  Gap& At(size_t number) { return gaps_[number % gaps_.size()]; }
  /// Adds the first gap that was not read; false where it is not over.
  bool Read();

  cudaStream_t stream_;
  std::array<Gap, 4> gaps_;
  size_t num_gaps_ = 0;  // that have begun
  size_t num_read_ = 0;
  bool is_open_ = false;  // the last of them
  double seconds_ = 0;
};

}  // namespace outrider::cuda
