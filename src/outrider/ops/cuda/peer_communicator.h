// Ranks that are GPUs of one host and reach each other's memory: each stores its part of rows in
// memory of its own, which the others read; where it is large they read it where it is. One thread
// each; a thread waits for the others' threads, a GPU for the others' GPUs.
//
// The host waits until the others have launched what stores their parts, then the stream waits for
// it. So a stream only ever waits for work that will end, and where a rank has ended or does not
// come the others are told so by their host's wait.
//
// While a step is recorded no host waits: a kernel of each GPU waits for the others' kernels
// (exchange_rows.h). So before recorded steps run the hosts agree that all have one, and afterwards
// that all have launched it (cuda_replayer.h): no call of a host that waits for a GPU comes before
// what that GPU waits for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/rows/exchange_rows.h"
#include "outrider/ops/cuda/chunked_gathers.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_communicator.h"

namespace outrider::cuda {

class PeerCommunicator : public DeviceCommunicator {
 public:
  /// What the ranks share.
  struct Group;
  /// ops: this rank's, which must outlive it.
  PeerCommunicator(std::shared_ptr<Group> group, int32_t rank, const CudaOps& ops,
                   const ChunkOptions& options);
  ~PeerCommunicator() override;

  void End(const std::string& reason) override;
  void ThrowIfEnded() override;
  void GatherOnDevice(std::span<const GatheredRows> rows) override;
  ChunkedGathers* chunked_gathers() override { return may_be_recorded() ? nullptr : &chunked_; }

 private:
  void ReserveRecorded(size_t bytes) override;
  /// Memory for `bytes` of the parts that this rank stores in this call.
  std::byte* OwnPost(size_t bytes);
  /// Tells where this rank's part is, and what it launched so far writes it; afterwards the stream
  /// waits for the others' parts, which are where `posted`, by rank, says.
  void Exchange(std::span<std::byte*> posted);
  /// A gather of much: parts are read where they are. Ends when the others have read this rank's.
  void GatherDirectly(std::span<const GatheredRows> rows);
  void RecordGather(std::span<const GatheredRows> rows);

  std::shared_ptr<Group> group_;
  const CudaOps& ops_;
  uint64_t call_ = 0;  // of gathers that are neither recorded nor direct
  ChunkedGathers chunked_;
  // Kept to reuse memory.
  std::vector<ColumnCopy> copies_;
  std::vector<ColumnCopy> own_copies_;
};

/// Two of these GPUs of which the first cannot reach the memory of the second.
std::optional<std::pair<int, int>> FindStrangers(std::span<const int> devices);

/// One for each rank, by rank, whose operations these are. GPUs get access to each other's memory.
/// A rank that another waits for longer than `seconds` counts as ended. Options are the same of all
/// ranks that share a model.
std::vector<std::unique_ptr<Communicator>> MakePeerCommunicators(
    std::span<const CudaOps* const> ranks, double seconds, const ChunkOptions& options = {});

}  // namespace outrider::cuda
