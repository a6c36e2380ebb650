// Ranks that are GPUs of one host without access to each other's memory: NCCL carries what they
// exchange, by all-gathers, which add nothing. One thread each.
//
// NCCL's kernels wait for each other without an end. So the hosts meet before each of them, as in
// PeerCommunicator, and when a rank ends all calls are aborted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_communicator.h"

namespace outrider::cuda {

class NcclCommunicator : public DeviceCommunicator {
 public:
  /// What the ranks share.
  struct Group;
  /// ops: this rank's, which must outlive it.
  NcclCommunicator(std::shared_ptr<Group> group, int32_t rank, const CudaOps& ops);
  ~NcclCommunicator() override;

  void End(const std::string& reason) override;
  void GatherOnDevice(std::span<const GatheredRows> rows) override;

 private:
  void ReserveRecorded(size_t bytes) override;
  void AllGather(std::byte* all, size_t bytes);

  std::shared_ptr<Group> group_;
  const CudaOps& ops_;
  DeviceMemory posts_;  // of all ranks, one after another
  // Memory for the posts of recorded gathers. Recorded steps refer to it, so it stays when larger
  // memory is made.
  std::vector<DeviceMemory> recorded_;
  // Kept to reuse memory.
  std::vector<ColumnCopy> stores_;
  std::vector<ColumnCopy> reads_;
};

/// One for each rank, by rank, whose operations these are; `seconds` as MakePeerCommunicators.
/// Throws Error where NCCL is not there (NcclLibrary) or does not take the GPUs.
std::vector<std::unique_ptr<Communicator>> MakeNcclCommunicators(
    std::span<const CudaOps* const> ranks, double seconds);

}  // namespace outrider::cuda
