// Ranks that are GPUs of one host: each stores its part of rows in memory of its own, which the
// others read. One thread each; a thread waits for the others' threads, a GPU for the others' GPUs.
//
// The host waits until the others have launched what stores their parts, then the stream waits for
// it. So a stream only ever waits for work that will end, ranks may share a GPU, and where a rank
// has ended or does not come the others are told so by their host's wait.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/rows/copy_columns.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/parallel/communicator.h"

namespace outrider::cuda {

/// Calls of Communicator move bytes of the host; GatherOnDevice those of the GPUs. They follow one
/// another on every rank in one order.
class PeerCommunicator : public Communicator {
 public:
  /// What the ranks share.
  struct Group;
  /// host: among the same ranks; ops: this rank's, which must outlive it.
  PeerCommunicator(std::shared_ptr<Group> group, std::unique_ptr<Communicator> host,
                   const CudaOps& ops);
  ~PeerCommunicator() override;

  RankPlace place() const override { return host_->place(); }
  void Store(std::span<const GatheredRows> rows) override { host_->Store(rows); }
  void Collect(std::span<const GatheredRows> rows) override { host_->Collect(rows); }
  void Broadcast(int32_t root, std::span<std::byte> bytes) override {
    host_->Broadcast(root, bytes);
  }
  void End(const std::string& reason) override { host_->End(reason); }
  void ThrowIfEnded() override { host_->ThrowIfEnded(); }

  /// Gather of rows in device memory, in the ranks' streams: what was launched before it has
  /// written `mine`, what is launched after it reads `all`. At most two rows of parts.
  void GatherOnDevice(std::span<const GatheredRows> rows);

 private:
  /// Memory for so many bytes of the parts that this rank stores in this call.
  std::byte* OwnPost(size_t bytes);
  /// Tells where this rank stores its part, and what it launched so far writes it; afterwards the
  /// stream waits for the others' parts, which are where `posted` says.
  void Exchange(std::byte* own, std::span<std::byte*> posted);

  std::shared_ptr<Group> group_;
  std::unique_ptr<Communicator> host_;
  const CudaOps& ops_;
  uint64_t call_ = 0;
  std::vector<ColumnCopy> copies_;  // kept to reuse memory
};

/// One for each rank, by rank, whose operations these are. GPUs get access to each other's memory.
/// A rank that another waits for longer than `seconds` counts as ended. Throws Error as
/// CheckArePeers.
std::vector<std::unique_ptr<Communicator>> MakePeerCommunicators(
    std::span<const CudaOps* const> ranks, double seconds);

/// Throws Error if one of these GPUs cannot reach the memory of another.
void CheckArePeers(std::span<const int> devices);

}  // namespace outrider::cuda
