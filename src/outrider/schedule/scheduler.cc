#include "outrider/schedule/scheduler.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

namespace {

template <typename Entries, typename E>
void InsertByArrival(Entries& entries, E* entry) {
  const auto place = std::lower_bound(entries.begin(), entries.end(), entry->id,
                                      [](const E* e, RequestId id) { return e->id < id; });
  entries.insert(place, entry);
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config) : config_(config), pool_(config.num_blocks) {
  OUTRIDER_CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0);
  // The oldest request can always run to its end: that is what makes preemption safe.
  OUTRIDER_CHECK(BlocksFor(config.max_model_len, config.block_size) <= config.num_blocks);
  for (int32_t s = config.max_num_seqs - 1; s >= 0; --s) free_slots_.push_back(s);
}

void Scheduler::Add(RequestId id, int32_t prompt_length) {
  OUTRIDER_CHECK(prompt_length > 0 && prompt_length < config_.max_model_len);
  auto entry = std::make_unique<Entry>();
  entry->id = id;
  entry->prompt_length = prompt_length;
  entry->num_tokens = prompt_length;
  waiting_.push_back(entry.get());
  const bool inserted = entries_.emplace(id, std::move(entry)).second;
  OUTRIDER_CHECK(inserted);
}

void Scheduler::Remove(RequestId id) {
  const auto it = entries_.find(id);
  OUTRIDER_CHECK(it != entries_.end());
  Entry* entry = it->second.get();
  if (entry->slot >= 0) {
    Release(*entry);
    std::erase(running_, entry);
  } else {
    std::erase(waiting_, entry);
  }
  entries_.erase(it);
}

const StepPlan& Scheduler::Plan() {
  plan_.preempted.clear();
  plan_.requests.clear();
  plan_.admitted.clear();
  budget_ = config_.max_num_batched_tokens;
  PlanDecodes();
  budget_ = std::max(budget_, std::min(kMinPromptTokens, config_.max_num_batched_tokens));
  PlanPrompts();
  AdmitWaiting();
  return plan_;
}

bool Scheduler::Reserve(Entry& entry, int32_t positions) {
  return entry.blocks.Reserve(pool_,
                              std::min(positions + config_.lookahead_tokens, config_.max_model_len),
                              config_.block_size);
}

void Scheduler::PlanDecodes() {
  // Preemption takes from the end of running_, and never an entry before the current one.
  for (size_t i = 0; i < running_.size(); ++i) {
    Entry& entry = *running_[i];
    if (!entry.Decodes()) continue;
    const int32_t rows = 1 + entry.num_drafts;
    bool reserved = Reserve(entry, entry.num_computed + rows);
    while (!reserved && running_.back() != &entry) {
      Preempt(*running_.back());
      reserved = Reserve(entry, entry.num_computed + rows);
    }
    if (!reserved) {
      Preempt(entry);
      return;
    }
    plan_.requests.push_back({.id = entry.id,
                              .slot = entry.slot,
                              .phase = Phase::kDecode,
                              .context_length = entry.num_computed,
                              .num_tokens = 1,
                              .num_drafts = entry.num_drafts,
                              .samples = true,
                              .block_table = &entry.blocks});
    budget_ -= rows;
  }
}

void Scheduler::PlanPrompts() {
  for (const Entry* entry : running_) {
    if (budget_ == 0) return;
    if (!entry->Decodes()) PlanChunk(*entry);
  }
}

void Scheduler::AdmitWaiting() {
  // After a preemption the pool is exhausted: what would be let in now would be thrown out again.
  if (!plan_.preempted.empty()) return;
  while (!waiting_.empty() && budget_ > 0 && !free_slots_.empty()) {
    Entry& entry = *waiting_.front();
    if (!Reserve(entry, entry.num_tokens + 1)) return;
    waiting_.pop_front();
    entry.slot = free_slots_.back();
    free_slots_.pop_back();
    InsertByArrival(running_, &entry);
    plan_.admitted.push_back(entry.id);
    PlanChunk(entry);
  }
}

void Scheduler::PlanChunk(const Entry& entry) {
  const bool prompt = entry.num_computed < entry.prompt_length;
  const int32_t end = prompt ? entry.prompt_length : entry.num_tokens;
  const int32_t count = std::min(end - entry.num_computed, budget_);
  // Tokens that were generated before a preemption are known: only the last one is sampled.
  const bool samples = entry.num_computed + count == entry.num_tokens;
  Phase phase = Phase::kDecode;
  if (prompt) phase = samples ? Phase::kPromptEnd : Phase::kPromptChunk;
  plan_.requests.push_back({.id = entry.id,
                            .slot = entry.slot,
                            .phase = phase,
                            .context_length = entry.num_computed,
                            .num_tokens = count,
                            .num_drafts = 0,
                            .samples = samples,
                            .block_table = &entry.blocks});
  budget_ -= count;
}

void Scheduler::Preempt(Entry& entry) {
  plan_.preempted.push_back(entry.id);
  Release(entry);
  entry.num_computed = 0;
  entry.num_drafts = 0;
  std::erase(running_, &entry);
  InsertByArrival(waiting_, &entry);
}

void Scheduler::Release(Entry& entry) {
  entry.blocks.Clear(pool_);
  free_slots_.push_back(entry.slot);
  entry.slot = -1;
}

void Scheduler::Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
                       int32_t num_drafts) {
  Entry& entry = *entries_.at(planned.id);
  OUTRIDER_CHECK(num_accepted >= 0 && num_accepted <= planned.num_drafts);
  OUTRIDER_CHECK(entry.num_computed == planned.context_length);
  entry.num_computed += planned.num_tokens + num_accepted;
  entry.num_tokens += num_emitted;
  entry.num_drafts = num_drafts;
  OUTRIDER_CHECK(entry.num_computed < entry.num_tokens || !planned.samples);
}

}  // namespace outrider
