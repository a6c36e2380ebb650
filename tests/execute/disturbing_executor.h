// An executor around another that disturbs it without changing what it gives: pages that a request
// gets hold NaN until they are written, and the host and the device stop at random moments.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/execute/step_runner.h"
#include "outrider/kv/cache_coordinator.h"
#include "outrider/kv/page_number.h"

namespace outrider {

/// What the device of a rank is asked to do.
struct Disturbances {
  // Every bit: NaN.
  std::function<void(size_t rank, std::byte* memory, size_t bytes)> fill_with_ones;
  // The device waits for a moment, the host does not; may be null.
  std::function<void(size_t rank)> stall;
};

class DisturbingExecutor : public Executor {
 public:
  /// Over a StepRunner of `ranks`.
  DisturbingExecutor(std::vector<RankParts> ranks, uint32_t seed, Disturbances disturbances)
      : cache_(*ranks.front().cache),
        cache_ranks_(ranks.front().model->attention().cache_place().ranks),
        random_(seed),
        disturbances_(std::move(disturbances)),
        known_pages_(static_cast<size_t>(ranks.front().num_slots)) {
    for (const RankParts& rank : ranks) caches_.push_back(rank.cache.get());
    inner_ = std::make_unique<StepRunner>(std::move(ranks));
  }

  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override { return inner_->eos_token_ids(); }
  int32_t max_in_flight() const override { return inner_->max_in_flight(); }
  bool CanLaunchAhead() const override { return inner_->CanLaunchAhead(); }
  void Admit(const SlotAdmission& admission) override {
    std::vector<size_t>& known = known_pages_[static_cast<size_t>(admission.slot)];
    known.clear();
    for (const CacheGroupSpec& group : cache_.config().groups) {
      known.push_back(static_cast<size_t>(admission.cached_tokens / group.tokens_per_block));
    }
    inner_->Admit(admission);
  }
  void Release(int32_t slot) override { inner_->Release(slot); }
  int64_t page_bytes() const override { return inner_->page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) override { inner_->ReadPage(page, to); }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    inner_->WritePage(page, from);
  }
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override {
    for (const PlannedRequest& request : plan.requests) PoisonNewPages(request);
    Stall();
    return inner_->Launch(plan, num_drafts);
  }
  std::span<const RequestResult> Wait(Ticket ticket) override {
    Stall();
    return inner_->Wait(ticket);
  }
  std::span<const int32_t> WaitDrafts(Ticket ticket) override {
    Stall();
    return inner_->WaitDrafts(ticket);
  }
  ExecutorSeconds seconds() const override { return inner_->seconds(); }
  ReplayCounts passes() const override { return inner_->passes(); }

 private:
  void PoisonNewPages(const PlannedRequest& request) {
    std::vector<size_t>& known = known_pages_[static_cast<size_t>(request.slot)];
    for (size_t g = 0; g < known.size(); ++g) {
      const std::vector<int32_t>& table = request.tables->blocks()[g];
      for (; known[g] < table.size(); ++known[g]) {
        const int32_t page = table[known[g]];
        if (page == CacheTables::kNoPage) continue;  // the window is past it
        for (size_t rank = 0; rank < caches_.size(); ++rank) {
          if (cache_ranks_ > 1 && !std::cmp_equal(RankOfPage(page, cache_ranks_), rank)) continue;
          const std::span<std::byte> memory = caches_[rank]->page(OwnPage(page, cache_ranks_));
          disturbances_.fill_with_ones(rank, memory.data(), memory.size());
        }
      }
    }
  }

  void Stall() {
    const uint32_t kind = random_() % 16;
    if (kind == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1000));
    if (kind != 1 || !disturbances_.stall) return;
    disturbances_.stall(caches_.size() == 1 ? 0 : random_() % caches_.size());
  }

  KvCache& cache_;  // of the first rank
  std::vector<KvCache*> caches_;
  int32_t cache_ranks_;  // that have caches of their own requests, or 1
  std::mt19937 random_;
  Disturbances disturbances_;
  std::vector<std::vector<size_t>> known_pages_;  // by slot and group
  std::unique_ptr<StepRunner> inner_;
};

}  // namespace outrider
