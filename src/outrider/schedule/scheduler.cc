#include "outrider/schedule/scheduler.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

bool Scheduler::Before(const Entry* a, const Entry* b) {
  return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
}

void Scheduler::InsertByTurn(auto& entries, Entry* entry) {
  entries.insert(std::lower_bound(entries.begin(), entries.end(), entry, Before), entry);
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      by_slot_(static_cast<size_t>(config.max_num_seqs), nullptr) {
  OUTRIDER_CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0);
  // The oldest request can always run to its end: that is what makes preemption safe.
  OUTRIDER_CHECK(BlocksFor(config.max_model_len, config.block_size) <= config.num_blocks);
  for (int32_t s = config.max_num_seqs - 1; s >= 0; --s) free_slots_.push_back(s);
}

void Scheduler::Add(const NewRequest& request) {
  OUTRIDER_CHECK(request.prompt_length > 0 && request.prompt_length < config_.max_model_len);
  auto entry = std::make_unique<Entry>();
  entry->id = request.id;
  entry->priority = request.priority;
  entry->keys = request.keys;
  entry->prompt_length = request.prompt_length;
  entry->num_tokens = request.prompt_length;
  entry->blocks.ExpectTokens(config_.max_model_len, config_.block_size);
  InsertByTurn(waiting_, entry.get());
  const bool inserted = entries_.emplace(request.id, std::move(entry)).second;
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
    if (!Admit(entry)) return;
    waiting_.pop_front();
    InsertByTurn(running_, &entry);
    PlanChunk(entry);
  }
}

bool Scheduler::Admit(Entry& entry) {
  int32_t shared = 0;
  if (entry.keys != nullptr) {
    const std::span<const BlockKey> keys(entry.keys->blocks);
    shared = entry.blocks.ShareBlocks(
        pool_, keys.first(static_cast<size_t>(ShareablePromptBlocks(entry))));
  }
  if (!Reserve(entry, entry.num_tokens + 1)) {
    entry.blocks.Clear(pool_);
    return false;
  }
  entry.slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[static_cast<size_t>(entry.slot)] = &entry;
  entry.num_computed = shared * config_.block_size;
  entry.num_published = shared;
  plan_.admitted.push_back({entry.id, entry.slot, entry.num_computed});
  return true;
}

int32_t Scheduler::ShareablePromptBlocks(const Entry& entry) const {
  const int32_t end = entry.prompt_length - std::max(config_.tokens_ahead, 1);
  const auto known = static_cast<int32_t>(entry.keys->blocks.size());
  return std::min(std::max(end, 0) / config_.block_size, known);
}

void Scheduler::Publish(Entry& entry) {
  if (entry.keys == nullptr) return;
  const int32_t ahead = config_.tokens_ahead;
  // The drafter computes the last ahead - 1 prompt positions as if they were generated.
  const int32_t last =
      config_.exact_prefix ? entry.prompt_length - std::max(ahead - 1, 0) : entry.num_computed;
  for (;;) {
    const int32_t end = (entry.num_published + 1) * config_.block_size;
    if (end > std::min(entry.num_computed, last) || end + ahead > entry.num_tokens) return;
    const auto index = static_cast<size_t>(entry.num_published++);
    pool_.Publish(entry.blocks.blocks()[index], entry.keys->blocks.at(index));
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
  entry.num_published = 0;
  std::erase(running_, &entry);
  InsertByTurn(waiting_, &entry);
}

void Scheduler::Release(Entry& entry) {
  entry.blocks.Clear(pool_);
  free_slots_.push_back(entry.slot);
  by_slot_[static_cast<size_t>(entry.slot)] = nullptr;
  entry.slot = -1;
}

void Scheduler::Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
                       int32_t num_drafts) {
  Entry& entry = *by_slot_.at(static_cast<size_t>(planned.slot));
  OUTRIDER_CHECK(entry.id == planned.id);
  OUTRIDER_CHECK(num_accepted >= 0 && num_accepted <= planned.num_drafts);
  OUTRIDER_CHECK(entry.num_computed == planned.context_length);
  entry.num_computed += planned.num_tokens + num_accepted;
  entry.num_tokens += num_emitted;
  entry.num_drafts = num_drafts;
  OUTRIDER_CHECK(entry.num_computed < entry.num_tokens || !planned.samples);
  Publish(entry);
}

}  // namespace outrider
