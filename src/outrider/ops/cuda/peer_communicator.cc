#include "outrider/ops/cuda/peer_communicator.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider::cuda {

namespace {

constexpr size_t kLeastPostBytes = size_t{1} << 20;
// From this size of a rank's columns on, the others read them where they are.
constexpr size_t kLeastDirectBytes = size_t{4} << 20;
// What a rank gets up to this size goes with flags.
constexpr size_t kMostFlaggedBytes = size_t{1} << 20;
constexpr size_t kCountersBytes = (sizeof(ExchangeCounters) + 15) / 16 * 16;
static_assert(kMostExchangeRanks == kMostRanks);

/// Up to so many bytes of a rank's columns go with flags, a multiple of 16.
size_t MostFlaggedBytes(int32_t ranks) {
  return kMostFlaggedBytes / static_cast<size_t>(std::max(ranks - 1, 1)) / 16 * 16;
}

}  // namespace

struct PeerCommunicator::Group {
  /// What one rank stores. Call n uses what n % 2 says: before a rank writes it, all have read what
  /// call n - 2 left there.
  struct Post {
    std::array<DeviceMemory, 2> memory;
    std::array<DeviceEvent, 2> stored;
  };
  /// What one rank stores in recorded gathers. Steps that were recorded with one may still run when
  /// a larger one is made, so it stays.
  struct RecordedPost {
    size_t room = 0;      // bytes, a multiple of 16
    size_t flagged = 0;   // of them, that may go with flags
    DeviceMemory memory;  // ExchangeCounters, twice `room`, what comes with flags

    ExchangeCounters* counters() const { return memory.As<ExchangeCounters>(); }
    std::byte* first() const { return memory.As<std::byte>() + kCountersBytes; }
    std::byte* inbox() const { return first() + 2 * room; }
    /// From each rank.
    size_t inbox_bytes() const { return 2 * flagged; }
  };

  std::vector<std::unique_ptr<Communicator>> hosts;           // by rank
  double seconds = 0;                                         // that a GPU waits for another
  bool shares_gpu = false;                                    // ranks have a GPU in common
  std::vector<std::unique_ptr<Post>> posts;                   // by rank
  std::vector<std::unique_ptr<ChunkedGathers::Marks>> marks;  // by rank
  // By rank; as many of all ranks once they have met. The last ones are in use.
  std::array<std::vector<std::unique_ptr<RecordedPost>>, kMostRanks> recorded;
  PinnedMemory state_memory{sizeof(ExchangeState)};

  ExchangeState* state() const { return reinterpret_cast<ExchangeState*>(state_memory.data()); }
  /// What a kernel or a host has written.
  static uint32_t Look(const uint32_t& number) {
    return *static_cast<const volatile uint32_t*>(&number);
  }
};

PeerCommunicator::PeerCommunicator(std::shared_ptr<Group> group, int32_t rank, const CudaOps& ops,
                                   const ChunkOptions& options)
    : DeviceCommunicator(*group->hosts[static_cast<size_t>(rank)]),
      group_(std::move(group)),
      ops_(ops),
      chunked_(*this, group_->marks, ops.stream(), options) {}

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

void PeerCommunicator::Exchange(std::span<std::byte*> posted) {
  const auto rank = static_cast<size_t>(place().rank);
  const size_t turn = call_ % 2;
  group_->posts[rank]->stored[turn].Record(ops_.stream());
  Tell(posted);
  for (size_t i = 0; i < posted.size(); ++i) {
    if (i != rank) group_->posts[i]->stored[turn].Hold(ops_.stream());
  }
}

void PeerCommunicator::GatherDirectly(std::span<const GatheredRows> rows) {
  const int64_t count = rows.front().all.rows;
  chunked_.Give(0);
  chunked_.Begin(rows, RowChunks(count, std::max<int64_t>(count, 1), 1));
  chunked_.Await(0);
  chunked_.End();
}

void PeerCommunicator::GatherOnDevice(std::span<const GatheredRows> rows) {
  if (records()) return RecordGather(rows);
  Measure(rows);
  if (MostBytes(rows) >= kLeastDirectBytes) return GatherDirectly(rows);
  ++call_;
  std::byte* const own = OwnPost(BytesOf(rows, static_cast<size_t>(place().rank)));
  copies_.clear();
  ListStores(rows, own, copies_);
  CheckCuda(CopyColumns(copies_, ops_.stream()), "storing rows for other ranks");

  std::array<std::byte*, kMostRanks> posted = {};
  const auto used = std::span(posted).first(static_cast<size_t>(place().ranks));
  posted[static_cast<size_t>(place().rank)] = own;
  Exchange(used);
  copies_.clear();
  ListReads(rows, used, copies_, copies_);
  CheckCuda(CopyColumns(copies_, ops_.stream()), "reading rows of other ranks");
}

void PeerCommunicator::RecordGather(std::span<const GatheredRows> rows) {
  const RankPlace place = this->place();
  ExchangeParams params;
  params.rank = place.rank;
  params.ranks = place.ranks;
  params.bytes = static_cast<int64_t>(MostBytes(rows));
  params.with_flags = MostBytes(rows) <= MostFlaggedBytes(place.ranks);
  params.shares_gpu = group_->shares_gpu;
  std::array<std::byte*, kMostRanks> posted = {};
  const auto used = std::span(posted).first(static_cast<size_t>(place.ranks));
  for (size_t r = 0; r < used.size(); ++r) {
    const Group::RecordedPost& post = *group_->recorded[r].back();
    const size_t bytes = BytesOf(rows, r);
    OUTRIDER_CHECK(bytes <= post.room, "a gather was not measured");
    params.with_flags &= bytes > 0;
    params.counters[r] = post.counters();
    params.posts[r] = posted[r] = post.first();
    params.post_bytes = static_cast<int64_t>(post.room);
    params.inboxes[r] = post.inbox();
    params.inbox_bytes = static_cast<int64_t>(post.inbox_bytes());
  }
  for (const GatheredRows& g : rows) OUTRIDER_CHECK(g.all.data != nullptr, "all ranks want it");
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
  auto post = std::make_unique<Group::RecordedPost>();
  post->room = bytes;
  post->flagged = std::min(post->room, MostFlaggedBytes(place().ranks));
  const size_t inboxes = 2 * static_cast<size_t>(place().ranks) * post->inbox_bytes();
  post->memory = DeviceMemory(kCountersBytes + 2 * post->room + inboxes, "rows for other ranks");
  CheckCuda(cudaMemsetAsync(post->memory.data(), 0, post->memory.bytes(), ops_.stream()),
            "counters");
  ops_.Synchronize();
  group_->recorded[static_cast<size_t>(place().rank)].push_back(std::move(post));
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
    std::span<const CudaOps* const> ranks, double seconds, const ChunkOptions& options) {
  OUTRIDER_CHECK(ranks.size() <= kMostRanks);
  std::vector<int> devices;
  for (const CudaOps* ops : ranks) devices.push_back(ops->device());
  const auto group = std::make_shared<PeerCommunicator::Group>();
  *group->state() = {};
  group->seconds = seconds;
  for (size_t i = 0; i < devices.size(); ++i) {
    group->shares_gpu |= std::ranges::count(devices, devices[i]) > 1;
  }
  group->hosts = MakeThreadCommunicators(static_cast<int32_t>(ranks.size()), seconds);
  group->marks.resize(ranks.size());  // it stays where it is
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
    group->marks[result.size()] = std::make_unique<ChunkedGathers::Marks>();
    result.push_back(std::make_unique<PeerCommunicator>(group, static_cast<int32_t>(result.size()),
                                                        *ops, options));
  }
  ranks.front()->UseOnThisThread();
  return result;
}

}  // namespace outrider::cuda
