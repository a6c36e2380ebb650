#include "outrider/ops/cuda/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/parallel/nccl_library.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider::cuda {

namespace {

constexpr size_t kLeastAllBytes = size_t{1} << 20;
// How long a call that another thread is in may take to return once a rank has ended.
constexpr std::chrono::seconds kPatienceOfEnd(1);

}  // namespace

struct NcclCommunicator::Group {
  /// One rank's end.
  struct Rank {
    std::timed_mutex mutex;
    NcclComm* comm = nullptr;  // null: aborted
  };

  explicit Group(size_t count) : ranks(count) {}
  ~Group() {
    for (Rank& rank : ranks) {
      if (rank.comm != nullptr) nccl.comm_destroy(rank.comm);
    }
  }

  NcclLibrary nccl;
  std::vector<std::unique_ptr<Communicator>> hosts;  // by rank
  std::vector<Rank> ranks;                           // by rank
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<Group> group, int32_t rank, const CudaOps& ops)
    : DeviceCommunicator(*group->hosts[static_cast<size_t>(rank)]),
      group_(std::move(group)),
      ops_(ops) {}

NcclCommunicator::~NcclCommunicator() { cudaStreamSynchronize(ops_.stream()); }

void NcclCommunicator::End(const std::string& reason) {
  DeviceCommunicator::End(reason);
  for (Group::Rank& rank : group_->ranks) {
    const std::unique_lock lock(rank.mutex, kPatienceOfEnd);
    // One that is in a call which does not return ends with the process.
    if (!lock.owns_lock() || rank.comm == nullptr) continue;
    group_->nccl.comm_abort(std::exchange(rank.comm, nullptr));
  }
}

void NcclCommunicator::AllGather(std::byte* all, size_t bytes) {
  Group::Rank& own = group_->ranks[static_cast<size_t>(place().rank)];
  const std::lock_guard lock(own.mutex);
  if (own.comm == nullptr) ThrowIfEnded();
  const std::byte* const mine = all + static_cast<size_t>(place().rank) * bytes;
  group_->nccl.Check(
      group_->nccl.all_gather(mine, all, bytes, NcclLibrary::kBytes, own.comm, ops_.stream()),
      "exchanging rows with other ranks");
}

void NcclCommunicator::GatherOnDevice(std::span<const GatheredRows> rows) {
  const auto ranks = static_cast<size_t>(place().ranks);
  const size_t bytes = MostBytes(rows);
  if (bytes == 0) return;
  std::byte* all = nullptr;
  if (records()) {
    OUTRIDER_CHECK(recorded_.back().bytes() >= ranks * bytes, "a gather was not measured");
    all = recorded_.back().As<std::byte>();
  } else {
    Meet();
    Measure(rows);
    if (posts_.bytes() < ranks * bytes) {
      ops_.Synchronize();
      const size_t room = std::max({ranks * bytes, 2 * posts_.bytes(), kLeastAllBytes});
      posts_ = DeviceMemory();
      posts_ = DeviceMemory(room, "rows of ranks");
    }
    all = posts_.As<std::byte>();
  }
  std::array<std::byte*, kMostRanks> posted = {};
  for (size_t rank = 0; rank < ranks; ++rank) posted[rank] = all + rank * bytes;
  stores_.clear();
  reads_.clear();
  ListStores(rows, posted[static_cast<size_t>(place().rank)], stores_);
  ListReads(rows, std::span(posted).first(ranks), reads_, reads_);
  CheckCuda(CopyColumns(stores_, ops_.stream()), "storing rows for other ranks");
  AllGather(all, bytes);
  CheckCuda(CopyColumns(reads_, ops_.stream()), "reading rows of other ranks");
}

void NcclCommunicator::ReserveRecorded(size_t bytes) {
  recorded_.emplace_back(static_cast<size_t>(place().ranks) * bytes, "rows of ranks");
}

std::vector<std::unique_ptr<Communicator>> MakeNcclCommunicators(
    std::span<const CudaOps* const> ranks, double seconds) {
  OUTRIDER_CHECK(ranks.size() <= kMostRanks);
  const auto group = std::make_shared<NcclCommunicator::Group>(ranks.size());
  const NcclLibrary& nccl = group->nccl;
  group->hosts = MakeThreadCommunicators(static_cast<int32_t>(ranks.size()), seconds);
  NcclId id;
  nccl.Check(nccl.get_unique_id(&id), "ranks over NCCL");
  // Each waits for the others.
  std::array<int, kMostRanks> results = {};
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ranks[rank]->UseOnThisThread();
      results[rank] = nccl.comm_init_rank(&group->ranks[rank].comm, static_cast<int>(ranks.size()),
                                          id, static_cast<int>(rank));
    });
  }
  threads.clear();
  for (const int result : results) nccl.Check(result, "ranks over NCCL");
  std::vector<std::unique_ptr<Communicator>> result;
  for (const CudaOps* ops : ranks) {
    result.push_back(
        std::make_unique<NcclCommunicator>(group, static_cast<int32_t>(result.size()), *ops));
  }
  return result;
}

}  // namespace outrider::cuda
