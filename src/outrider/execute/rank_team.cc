#include "outrider/execute/rank_team.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <functional>
#include <new>
#include <string>
#include <utility>

#include "outrider/base/end_process.h"
#include "outrider/base/error.h"
#include "outrider/base/processors.h"
#include "outrider/parallel/patience.h"

namespace outrider {

namespace {

// How long ranks have to end once one has.
constexpr double kSecondsToEnd = 1;
// How long a rank looks for its next part before it sleeps.
constexpr double kSecondsAwake = 0.002;

}  // namespace

RankTeam::RankTeam(std::vector<RankParts> parts, double seconds) : seconds_(seconds) {
  OUTRIDER_CHECK(!parts.empty());
  for (RankParts& part : parts) {
    part.model->device().ops.UseOnThisThread();
    ranks_.push_back(std::make_unique<Rank>(std::move(part)));
  }
  first().ops().UseOnThisThread();
  for (size_t i = 1; i < ranks_.size(); ++i) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.thread = std::thread([this, &worker, i] {
      pthread_setname_np(pthread_self(), fmt::format("rank {}", i).c_str());
      const std::vector<int>& processors = ranks_[i]->processors();
      const MemoryNodes nodes(MemoryNodesOf(processors));
      if (!processors.empty() && !PinThisThread(processors.front())) {
        spdlog::warn("rank {} could not be bound to processor {}", i, processors.front());
      }
      Work(worker, *ranks_[i]);
    });
  }
}

RankTeam::~RankTeam() {
  const uint32_t last = begun_.load();
  for (const auto& worker : workers_) {
    if (worker->done.load() == last) continue;
    EndProcessWithin(1);  // it hangs in what it does, and so would we
    break;
  }
  stopping_.store(true);
  begun_.fetch_add(1);
  begun_.notify_all();
  for (const auto& worker : workers_) worker->thread.join();
}

std::vector<RankParts> RankTeam::TakeApart() {
  std::vector<RankParts> parts;
  parts.reserve(ranks_.size());
  for (const auto& rank : ranks_) parts.push_back(std::move(*rank).TakeApart());
  return parts;
}

void RankTeam::Run(FunctionRef<void(Rank&)> part) {
  if (workers_.empty()) return part(first());
  part_ = &part;
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_all();
  bool failed = !RunPart(first());
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!WaitFor(i + 1, failed)) {
      ranks_[i + 1]->End(fmt::format("it has not answered for {} s", seconds_));
      failed = true;
    }
  }
  first().ThrowIfEnded();
}

bool RankTeam::RunPart(Rank& rank) {
  try {
    rank.ThrowIfEnded();
    rank.ops().UseOnThisThread();
    (*part_)(rank);
    rank.ThrowIfEnded();  // as its device may tell only now
    return true;
  } catch (const std::bad_alloc&) {
    rank.End("no memory is left");
  } catch (const std::exception& error) {
    rank.End(error.what());
  }
  return false;
}

bool RankTeam::WaitFor(size_t rank, bool ends) const {
  const Worker& worker = *workers_[rank - 1];
  const uint32_t last = begun_.load(std::memory_order_relaxed);
  Patience patience(ends ? kSecondsToEnd : seconds_, static_cast<int>(size()));
  const std::function<uint64_t()> progress = [&] { return ranks_[rank]->progress(); };
  while (worker.done.load(std::memory_order_acquire) != last) {
    if (!(ends ? patience.Wait() : patience.WaitWhileMoves(progress))) return false;
  }
  return true;
}

void RankTeam::Work(Worker& worker, Rank& rank) {
  for (uint32_t done = 0;; ++done) {
    Patience patience(kSecondsAwake, static_cast<int>(size()));
    while (begun_.load(std::memory_order_acquire) == done && patience.Wait()) {
    }
    begun_.wait(done, std::memory_order_acquire);
    if (stopping_.load()) return;
    RunPart(rank);
    worker.done.store(done + 1, std::memory_order_release);
  }
}

}  // namespace outrider
