#include "outrider/ops/cuda/peer_communicator.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider::cuda {

namespace {

constexpr int64_t kAlignment = 16;
constexpr size_t kLeastPostBytes = size_t{1} << 20;

/// Bytes from one stored row to the next.
int64_t PostStride(const GatheredRows& g, size_t rank) {
  return (g.columns[rank].count + kAlignment - 1) / kAlignment * kAlignment;
}
int64_t PostBytes(const GatheredRows& g, size_t rank) { return g.all.rows * PostStride(g, rank); }

void Append(std::vector<ColumnCopy>& copies, MatrixView<const std::byte> from,
            MatrixView<std::byte> to) {
  OUTRIDER_CHECK(from.rows == to.rows && from.cols == to.cols);
  if (from.rows == 0 || from.cols == 0) return;
  copies.push_back({.from = from.data,
                    .to = to.data,
                    .from_stride = from.stride,
                    .to_stride = to.stride,
                    .width = from.cols,
                    .rows = from.rows});
}

}  // namespace

struct PeerCommunicator::Group {
  /// What one rank stores. Call n uses what n % 2 says: before a rank writes it, all have read what
  /// call n - 2 left there.
  struct Post {
    std::array<DeviceMemory, 2> memory;
    std::array<DeviceEvent, 2> stored;
  };
  std::vector<std::unique_ptr<Post>> posts;  // by rank
};

PeerCommunicator::PeerCommunicator(std::shared_ptr<Group> group, std::unique_ptr<Communicator> host,
                                   const CudaOps& ops)
    : group_(std::move(group)), host_(std::move(host)), ops_(ops) {}

PeerCommunicator::~PeerCommunicator() {
  cudaStreamSynchronize(ops_.stream());  // it may still read what the others have stored
}

std::byte* PeerCommunicator::OwnPost(size_t bytes) {
  Group::Post& own = *group_->posts[static_cast<size_t>(place().rank)];
  DeviceMemory& memory = own.memory[call_ % 2];
  if (memory.bytes() < bytes) {
    // The stream has waited for the others' parts of the call before, behind which they have read
    // all of the one before that.
    ops_.Synchronize();
    const size_t room = std::max({bytes, 2 * memory.bytes(), kLeastPostBytes});
    memory = DeviceMemory();
    memory = DeviceMemory(room, "rows for other ranks");
  }
  return memory.As<std::byte>();
}

void PeerCommunicator::Exchange(std::byte* own, std::span<std::byte*> posted) {
  const auto rank = static_cast<size_t>(place().rank);
  const size_t turn = call_ % 2;
  group_->posts[rank]->stored[turn].Record(ops_.stream());
  posted[rank] = own;
  constexpr int64_t kBytes = sizeof(std::byte*);
  std::vector<Share> columns;
  for (size_t i = 0; i < posted.size(); ++i) {
    columns.push_back({static_cast<int64_t>(i) * kBytes, kBytes});
  }
  const MatrixView<std::byte> all(reinterpret_cast<std::byte*>(posted.data()), 1,
                                  static_cast<int64_t>(posted.size_bytes()));
  host_->Gather(std::array{GatheredRows{all.Columns(columns[rank].first, kBytes), all, columns}});
  for (size_t i = 0; i < posted.size(); ++i) {
    if (i != rank) group_->posts[i]->stored[turn].Hold(ops_.stream());
  }
}

void PeerCommunicator::GatherOnDevice(std::span<const GatheredRows> rows) {
  OUTRIDER_CHECK(rows.size() <= 2);
  const RankPlace place = this->place();
  const auto rank = static_cast<size_t>(place.rank);
  ++call_;
  size_t bytes = 0;
  for (const GatheredRows& g : rows) bytes += static_cast<size_t>(PostBytes(g, rank));
  std::byte* const own = OwnPost(bytes);
  const auto part = [](const GatheredRows& g, size_t of, std::byte* data) {
    return MatrixView<std::byte>(data, g.all.rows, g.columns[of].count, PostStride(g, of));
  };
  copies_.clear();
  std::byte* next = own;
  for (const GatheredRows& g : rows) {
    Append(copies_, g.mine, part(g, rank, next));
    next += PostBytes(g, rank);
  }
  CheckCuda(CopyColumns(copies_, ops_.stream()), "storing rows for other ranks");

  std::array<std::byte*, kMostRanks> posted = {};
  Exchange(own, std::span(posted).first(static_cast<size_t>(place.ranks)));
  copies_.clear();
  for (size_t from = 0; from < static_cast<size_t>(place.ranks); ++from) {
    next = posted[from];
    for (const GatheredRows& g : rows) {
      const Share columns = g.columns[from];
      const MatrixView<std::byte> stored = part(g, from, next);
      next += PostBytes(g, from);
      if (g.all.data == nullptr) continue;
      const MatrixView<std::byte> to = g.all.Columns(columns.first, columns.count);
      if (from != rank) {
        Append(copies_, stored, to);
      } else if (to.data != g.mine.data) {
        Append(copies_, g.mine, to);
      }
    }
  }
  CheckCuda(CopyColumns(copies_, ops_.stream()), "reading rows of other ranks");
}

void CheckArePeers(std::span<const int> devices) {
  for (const int a : devices) {
    for (const int b : devices) {
      if (a == b) continue;
      int reaches = 0;
      CheckCuda(cudaDeviceCanAccessPeer(&reaches, a, b), "whether GPUs reach each other's memory");
      if (reaches != 0) continue;
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("GPU {} cannot read the memory of GPU {}: --tensor-parallel-size "
                              "needs GPUs of one host with peer access (NVLink, or PCIe where the "
                              "driver allows it); choose others with CUDA_VISIBLE_DEVICES",
                              a, b));
    }
  }
}

std::vector<std::unique_ptr<Communicator>> MakePeerCommunicators(
    std::span<const CudaOps* const> ranks, double seconds) {
  OUTRIDER_CHECK(ranks.size() <= kMostRanks);
  std::vector<int> devices;
  for (const CudaOps* ops : ranks) devices.push_back(ops->device());
  CheckArePeers(devices);
  const auto group = std::make_shared<PeerCommunicator::Group>();
  std::vector<std::unique_ptr<Communicator>> result;
  for (auto& host : MakeThreadCommunicators(static_cast<int32_t>(ranks.size()), seconds)) {
    const CudaOps& ops = *ranks[result.size()];
    ops.UseOnThisThread();
    for (const int device : devices) {
      if (device == ops.device()) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();  // it is as it should be
      } else {
        CheckCuda(error, "access to the memory of another GPU");
      }
    }
    group->posts.push_back(std::make_unique<PeerCommunicator::Group::Post>());
    result.push_back(std::make_unique<PeerCommunicator>(group, std::move(host), ops));
  }
  ranks.front()->UseOnThisThread();
  return result;
}

}  // namespace outrider::cuda
