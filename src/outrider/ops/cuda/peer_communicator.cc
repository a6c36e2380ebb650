#include "outrider/ops/cuda/peer_communicator.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider::cuda {

namespace {

constexpr size_t kLeastPostBytes = size_t{1} << 20;
constexpr size_t kCountersBytes = (sizeof(ExchangeCounters) + 15) / 16 * 16;
static_assert(kMostExchangeRanks == kMostRanks);

}  // namespace

struct PeerCommunicator::Group {
  /// What one rank stores. Call n uses what n % 2 says: before a rank writes it, all have read what
  /// call n - 2 left there.
  struct Post {
    std::array<DeviceMemory, 2> memory;
    std::array<DeviceEvent, 2> stored;
  };
  /// What one rank stores in recorded gathers. Steps that were recorded with one refer to it, so
  /// it stays when a larger one is made.
  struct RecordedPost {
    size_t room = 0;      // bytes, a multiple of 16
    DeviceMemory memory;  // ExchangeCounters, then twice `room`

    ExchangeCounters* counters() const { return memory.As<ExchangeCounters>(); }
    std::byte* first() const { return memory.As<std::byte>() + kCountersBytes; }
  };

  std::vector<std::unique_ptr<Communicator>> hosts;  // by rank
  double seconds = 0;                                // that a GPU waits for another
  std::vector<std::unique_ptr<Post>> posts;          // by rank
  // By rank; as many of all ranks once they have met. The last ones are in use.
  std::array<std::vector<std::unique_ptr<RecordedPost>>, kMostRanks> recorded;
  PinnedMemory state_memory{sizeof(ExchangeState)};

  ExchangeState* state() const { return reinterpret_cast<ExchangeState*>(state_memory.data()); }
  /// What a kernel or a host has written.
  static uint32_t Look(const uint32_t& number) {
    return *static_cast<const volatile uint32_t*>(&number);
  }
};

PeerCommunicator::PeerCommunicator(std::shared_ptr<Group> group, int32_t rank, const CudaOps& ops)
    : DeviceCommunicator(*group->hosts[static_cast<size_t>(rank)]),
      group_(std::move(group)),
      ops_(ops) {}

PeerCommunicator::~PeerCommunicator() {
  cudaStreamSynchronize(ops_.stream());  // it may still read what the others have stored
}

void PeerCommunicator::End(const std::string& reason) {
  DeviceCommunicator::End(reason);
  // Kernels that wait for this rank go on.
  *static_cast<volatile uint32_t*>(&group_->state()->ended) = 1;
}

void PeerCommunicator::ThrowIfEnded() {
  const uint32_t late = Group::Look(group_->state()->late);
  if (late > 0) {
    group_->hosts[late - 1]->End(fmt::format("its GPU has not answered for {} s", group_->seconds));
  }
  DeviceCommunicator::ThrowIfEnded();
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
  ThrowIfEnded();
  Gather(std::array{GatheredRows{all.Columns(columns[rank].first, kBytes), all, columns}});
  for (size_t i = 0; i < posted.size(); ++i) {
    if (i != rank) group_->posts[i]->stored[turn].Hold(ops_.stream());
  }
}

void PeerCommunicator::GatherOnDevice(std::span<const GatheredRows> rows) {
  if (records()) return RecordGather(rows);
  ++call_;
  Measure(rows);
  std::byte* const own = OwnPost(BytesOf(rows, static_cast<size_t>(place().rank)));
  copies_.clear();
  ListStores(rows, own, copies_);
  CheckCuda(CopyColumns(copies_, ops_.stream()), "storing rows for other ranks");

  std::array<std::byte*, kMostRanks> posted = {};
  const auto used = std::span(posted).first(static_cast<size_t>(place().ranks));
  Exchange(own, used);
  copies_.clear();
  ListReads(rows, used, copies_, copies_);
  CheckCuda(CopyColumns(copies_, ops_.stream()), "reading rows of other ranks");
}

void PeerCommunicator::RecordGather(std::span<const GatheredRows> rows) {
  const RankPlace place = this->place();
  ExchangeParams params;
  params.rank = place.rank;
  params.ranks = place.ranks;
  std::array<std::byte*, kMostRanks> posted = {};
  const auto used = std::span(posted).first(static_cast<size_t>(place.ranks));
  for (size_t r = 0; r < used.size(); ++r) {
    const Group::RecordedPost& post = *group_->recorded[r].back();
    OUTRIDER_CHECK(BytesOf(rows, r) <= post.room, "a gather was not measured");
    params.counters[r] = post.counters();
    posted[r] = post.first();
    params.turn_bytes = static_cast<int64_t>(post.room);
  }
  params.state = group_->state();
  params.patience_ns = static_cast<uint64_t>(group_->seconds * 1e9);
  std::vector<ColumnCopy> stores;
  ListStores(rows, posted[static_cast<size_t>(place.rank)], stores);
  copies_.clear();
  own_copies_.clear();
  ListReads(rows, used, own_copies_, copies_);
  params.stores = stores;
  params.own = own_copies_;
  params.loads = copies_;
  CheckCuda(ExchangeRows(params, ops_.stream()), "exchanging rows with other ranks");
}

void PeerCommunicator::ReserveRecorded(size_t bytes) {
  auto& own = group_->recorded[static_cast<size_t>(place().rank)];
  if (!own.empty() && own.back()->room >= bytes) return;
  auto post = std::make_unique<Group::RecordedPost>();
  post->room = std::max(2 * bytes, kLeastPostBytes);
  post->memory = DeviceMemory(kCountersBytes + 2 * post->room, "rows for other ranks");
  CheckCuda(cudaMemsetAsync(post->memory.data(), 0, kCountersBytes, ops_.stream()), "counters");
  ops_.Synchronize();
  own.push_back(std::move(post));
  Meet();  // the others' are there
}

std::optional<std::pair<int, int>> FindStrangers(std::span<const int> devices) {
  for (const int a : devices) {
    for (const int b : devices) {
      if (a == b) continue;
      int reaches = 0;
      CheckCuda(cudaDeviceCanAccessPeer(&reaches, a, b), "whether GPUs reach each other's memory");
      if (reaches == 0) return std::pair(a, b);
    }
  }
  return std::nullopt;
}

std::vector<std::unique_ptr<Communicator>> MakePeerCommunicators(
    std::span<const CudaOps* const> ranks, double seconds) {
  OUTRIDER_CHECK(ranks.size() <= kMostRanks);
  std::vector<int> devices;
  for (const CudaOps* ops : ranks) devices.push_back(ops->device());
  const auto group = std::make_shared<PeerCommunicator::Group>();
  *group->state() = {};
  group->seconds = seconds;
  group->hosts = MakeThreadCommunicators(static_cast<int32_t>(ranks.size()), seconds);
  std::vector<std::unique_ptr<Communicator>> result;
  for (const CudaOps* ops : ranks) {
    ops->UseOnThisThread();
    for (const int device : devices) {
      if (device == ops->device()) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();  // it is as it should be
      } else {
        CheckCuda(error, "access to the memory of another GPU");
      }
    }
    group->posts.push_back(std::make_unique<PeerCommunicator::Group::Post>());
    result.push_back(
        std::make_unique<PeerCommunicator>(group, static_cast<int32_t>(result.size()), *ops));
  }
  ranks.front()->UseOnThisThread();
  return result;
}

}  // namespace outrider::cuda
