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
    : config_(config), by_slot_(static_cast<size_t>(config.max_num_seqs), nullptr) {
  OUTRIDER_CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 &&
                 config.cache_ranks > 0);
  for (int32_t rank = 0; rank < config.cache_ranks; ++rank) {
    caches_.emplace_back(config.cache, RankPlace{rank, config.cache_ranks});
    ranks_.push_back(rank);
  }
  // The oldest request can always run to its end: that is what makes preemption safe.
  const int32_t most_rows = std::max(config.max_num_batched_tokens, 1 + config.max_drafts);
  OUTRIDER_CHECK(
      config.cache.MostPages(config.max_model_len, most_rows + 1 + config.lookahead_tokens) <=
      config.cache.num_pages);
  for (int32_t s = config.max_num_seqs - 1; s >= 0; --s) free_slots_.push_back(s);
}

void Scheduler::Add(const NewRequest& request) {
  OUTRIDER_CHECK(request.prompt_length > 0 && request.prompt_length < config_.max_model_len);
  auto entry = std::make_unique<Entry>();
  entry->id = request.id;
  entry->priority = request.priority;
  entry->keys = request.keys;
  entry->most_shared = request.most_shared;
  entry->prompt_length = request.prompt_length;
  entry->max_total_tokens =
      request.max_total_tokens == 0 ? config_.max_model_len : request.max_total_tokens;
  OUTRIDER_CHECK(entry->max_total_tokens > entry->prompt_length &&
                 entry->max_total_tokens <= config_.max_model_len);
  entry->num_tokens = request.prompt_length;
  entry->tables = CacheOf(*entry).MakeTables(config_.max_model_len);
  for (const CacheCoordinator& cache : caches_) {
    if (MostShared(*entry) == 0) break;
    entry->likely_hit =
        std::max(entry->likely_hit, cache.FindPrefix(entry->keys->blocks, MostShared(*entry)));
  }
  InsertByTurn(waiting_, entry.get());
  const bool inserted = entries_.emplace(request.id, std::move(entry)).second;
  OUTRIDER_CHECK(inserted);
}

void Scheduler::Remove(RequestId id) {
  const auto it = entries_.find(id);
  OUTRIDER_CHECK(it != entries_.end());
  Entry* entry = it->second.get();
  num_in_flight_ -= entry->steps_in_flight;
  if (entry->slot >= 0) {
    Release(*entry);
    std::erase(running_, entry);
  } else {
    std::erase(waiting_, entry);
  }
  entries_.erase(it);
}

const StepPlan& Scheduler::Plan() {
  last_plan_ = (last_plan_ + 1) % plans_.size();
  plan().preempted.clear();
  plan().requests.clear();
  plan().admitted.clear();
  if (!ReservePages()) return plan();
  budget_ = config_.max_num_batched_tokens;
  PlanDecodes();
  budget_ = std::max(budget_, std::min(kMinPromptTokens, config_.max_num_batched_tokens));
  PlanPrompts();
  return plan();
}

int32_t Scheduler::MostDrafts(const Entry& entry) const {
  if (entry.samples_in_flight == 0) return entry.num_drafts;
  // The last of the remaining tokens is the bonus token of the verify step.
  return std::clamp(entry.max_total_tokens - entry.LeastTokens() - 1, 0, config_.max_drafts);
}

bool Scheduler::Reserve(Entry& entry, int32_t rows, int32_t full_end) {
  const auto bounded = [&](int32_t end) {
    return std::min(end + config_.lookahead_tokens, config_.max_model_len);
  };
  const int32_t end = bounded(entry.MostComputed() + rows);
  return CacheOf(entry).Reserve(entry.tables, entry.LeastComputed(), end,
                                std::max(end, bounded(full_end)));
}

bool Scheduler::ReservePages() {
  // Preemption takes from the end of running_, and never an entry before the current one.
  for (size_t i = 0; i < running_.size();) {
    Entry& entry = *running_[i];
    if (entry.Ends()) {
      ++i;
      continue;
    }
    const int32_t rows = entry.Decodes()
                             ? 1 + MostDrafts(entry)
                             : std::min(entry.ChunkTokens(), config_.max_num_batched_tokens);
    bool reserved = Reserve(entry, rows, 0);
    if (!reserved && num_in_flight_ > 0) return false;
    while (!reserved) {
      Entry& last = LastOf(entry.rank);
      plan().preempted.push_back(last.id);
      Preempt(last);
      if (&last == &entry) break;
      reserved = Reserve(entry, rows, 0);
    }
    if (reserved) ++i;
  }
  return true;
}

Scheduler::Entry& Scheduler::LastOf(int32_t rank) {
  for (size_t i = running_.size(); i-- > 0;) {
    if (running_[i]->rank == rank) return *running_[i];
  }
  OUTRIDER_CHECK(false);
}

void Scheduler::AddToPlan(Entry& entry, PlannedRequest planned) {
  OUTRIDER_CHECK(entry.steps_in_flight < kMostInFlight);
  planned.id = entry.id;
  planned.slot = entry.slot;
  planned.context_length = entry.LeastComputed();
  planned.most_context_length = entry.MostComputed();
  planned.tables = &entry.tables;
  const int32_t most_computed =
      planned.most_context_length + planned.num_tokens + planned.num_drafts;
  planned.publishes =
      entry.keys != nullptr && CacheOf(entry).HasUnpublished(
                                   entry.tables, std::min(most_computed, PublishableTokens(entry)));
  plan().requests.push_back(planned);
  ++num_in_flight_;
  ++entry.steps_in_flight;
  entry.tokens_in_flight += planned.num_tokens;
  entry.drafts_in_flight += planned.num_drafts;
  entry.samples_in_flight += planned.samples ? 1 : 0;
}

void Scheduler::PlanDecodes() {
  for (Entry* entry : running_) {
    if (!entry->Decodes() || entry->Ends()) continue;
    const int32_t num_drafts = MostDrafts(*entry);
    AddToPlan(
        *entry,
        {.phase = Phase::kDecode, .num_tokens = 1, .num_drafts = num_drafts, .samples = true});
    budget_ -= 1 + num_drafts;
  }
}

int64_t Scheduler::PagesToAdmit(const Entry& entry) const {
  const int32_t behind = 1 + config_.lookahead_tokens;
  return config_.cache.MostPages(std::min(entry.num_tokens + behind, config_.max_model_len),
                                 config_.max_num_batched_tokens + behind);
}

void Scheduler::FindPrompts() {
  prompts_.clear();
  for (Entry* entry : running_) {
    if (!entry->Decodes()) prompts_.push_back(entry);
  }
  const auto num_running = static_cast<std::ptrdiff_t>(prompts_.size());
  // After a preemption the pool is exhausted: what would be let in now would be thrown out again.
  admits_ = plan().preempted.empty();
  if (!admits_) return;
  const size_t count = std::min(waiting_.size(), free_slots_.size());
  prompts_.insert(prompts_.end(), waiting_.begin(),
                  waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  std::inplace_merge(prompts_.begin(), prompts_.begin() + num_running, prompts_.end(), Before);
}

void Scheduler::PlanPrompts() {
  FindPrompts();
  for (size_t i = 0; i < prompts_.size() && budget_ > 0; ++i) {
    if (prompts_[i] == nullptr) continue;
    Entry& entry = *prompts_[i];
    if (entry.slot < 0) {
      admits_ = admits_ && Admit(entry, budget_);
      if (!admits_) continue;
    }
    if (entry.RowsLeft() > budget_) PlanShortPrompts(i);
    PlanChunk(entry, budget_);
  }
}

void Scheduler::PlanShortPrompts(size_t first) {
  const Entry& long_one = *prompts_[first];
  short_prompts_.clear();
  for (size_t i = first + 1; i < prompts_.size(); ++i) {
    const Entry* entry = prompts_[i];
    if (entry == nullptr || entry->priority != long_one.priority) continue;
    if (entry->slot < 0 && !admits_) continue;
    if (entry->RowsLeft() < long_one.RowsLeft() / 2) short_prompts_.push_back(&prompts_[i]);
  }
  std::ranges::stable_sort(short_prompts_, {}, [](Entry* const* p) { return (*p)->RowsLeft(); });
  int32_t share = budget_ / 2;
  for (Entry** prompt : short_prompts_) {
    if (share == 0) return;
    Entry& entry = **prompt;
    if (entry.slot < 0 && !(LeavesRoom(entry) && Admit(entry, share))) continue;
    share -= PlanChunk(entry, share);
    *prompt = nullptr;
  }
}

bool Scheduler::LeavesRoom(const Entry& entry) const {
  const Entry& next = *waiting_.front();
  if (&entry == &next) return true;
  int32_t most_free = 0;  // of a rank: enough for both, wherever this one goes
  for (const CacheCoordinator& cache : caches_) {
    most_free = std::max(most_free, cache.pool().num_free());
  }
  return free_slots_.size() > 1 && most_free - PagesToAdmit(entry) >= PagesToAdmit(next);
}

std::optional<CacheCoordinator::SharedPrefix> Scheduler::TakePages(Entry& entry,
                                                                   int32_t most_rows) {
  // Again where the host cache failed to give pages back, which has fewer then.
  for (;;) {
    CacheCoordinator::SharedPrefix shared;
    if (MostShared(entry) > 0) {
      shared = CacheOf(entry).SharePrefix(entry.tables, entry.keys->blocks, MostShared(entry));
    }
    entry.num_computed = shared.tokens;
    const int32_t rows = std::min(entry.ChunkTokens(), most_rows) + 1;
    const bool reserved = Reserve(entry, rows, entry.num_tokens + 1);
    if (reserved && CacheOf(entry).Return(entry.tables)) return shared;
    CacheOf(entry).Clear(entry.tables);
    entry.num_computed = 0;
    if (!reserved) return std::nullopt;
  }
}

void Scheduler::SortRanksFor(const Entry& entry) {
  if (ranks_.size() == 1) return;
  std::vector<int64_t> worth;  // by rank
  for (const CacheCoordinator& cache : caches_) {
    const int32_t found =
        MostShared(entry) == 0 ? 0 : cache.FindPrefix(entry.keys->blocks, MostShared(entry));
    const int64_t pages = found == 0 ? 0 : config_.cache.MostPages(found, found);
    worth.push_back(cache.pool().num_free() + kPagesOfAHit * pages);
  }
  std::ranges::sort(ranks_, [&](int32_t a, int32_t b) {
    const auto of_a = worth[static_cast<size_t>(a)];
    const auto of_b = worth[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
}

bool Scheduler::Admit(Entry& entry, int32_t most_rows) {
  SortRanksFor(entry);
  std::optional<CacheCoordinator::SharedPrefix> shared;
  for (const int32_t rank : ranks_) {
    entry.rank = rank;
    shared = TakePages(entry, most_rows);
    if (shared) break;
  }
  if (!shared) return false;
  entry.slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[static_cast<size_t>(entry.slot)] = &entry;
  plan().admitted.push_back(
      {entry.id, entry.slot, shared->tokens, shared->tokens - shared->in_pool});
  waiting_.erase(std::ranges::find(waiting_, &entry));
  InsertByTurn(running_, &entry);
  return true;
}

int32_t Scheduler::MostShared(const Entry& entry) const {
  if (entry.keys == nullptr) return 0;
  return std::clamp(entry.prompt_length - std::max(config_.tokens_ahead, 1), 0, entry.most_shared);
}

int32_t Scheduler::PublishableTokens(const Entry& entry) const {
  if (config_.publish_answers) return entry.max_total_tokens;
  // The drafter computes the last tokens_ahead - 1 prompt positions as if they were generated.
  return entry.prompt_length - std::max(config_.tokens_ahead - 1, 0);
}

void Scheduler::Publish(Entry& entry) {
  if (entry.keys == nullptr) return;
  const int32_t final_tokens = std::min(
      {entry.num_computed, PublishableTokens(entry), entry.num_tokens - config_.tokens_ahead});
  CacheOf(entry).Publish(entry.tables, entry.keys->blocks, std::max(final_tokens, 0));
}

int32_t Scheduler::PlanChunk(Entry& entry, int32_t most_rows) {
  const bool prompt = entry.LeastComputed() < entry.prompt_length;
  const int32_t count = std::min(entry.ChunkTokens(), most_rows);
  // Tokens that were generated before a preemption are known: only the last one is sampled.
  const bool samples = entry.LeastComputed() + count == entry.num_tokens;
  Phase phase = Phase::kDecode;
  if (prompt) phase = samples ? Phase::kPromptEnd : Phase::kPromptChunk;
  if (prompt && entry.keys != nullptr) {
    CacheOf(entry).MakeCheckpoints(entry.tables, entry.keys->blocks, entry.LeastComputed(),
                                   entry.LeastComputed() + count, MostShared(entry));
  }
  AddToPlan(entry, {.phase = phase, .num_tokens = count, .num_drafts = 0, .samples = samples});
  budget_ -= count;
  return count;
}

double Scheduler::CacheUsage() const {
  double usage = 0;
  for (const CacheCoordinator& cache : caches_) usage += cache.pool().Usage();
  return usage / static_cast<double>(caches_.size());
}

void Scheduler::PreemptAll() {
  while (!running_.empty()) Preempt(*running_.back());
}

void Scheduler::Preempt(Entry& entry) {
  OUTRIDER_CHECK(num_in_flight_ == 0);
  Release(entry);
  entry.num_computed = 0;
  entry.num_drafts = 0;
  std::erase(running_, &entry);
  InsertByTurn(waiting_, &entry);
}

void Scheduler::Release(Entry& entry) {
  CacheOf(entry).Clear(entry.tables);
  free_slots_.push_back(entry.slot);
  by_slot_[static_cast<size_t>(entry.slot)] = nullptr;
  entry.slot = -1;
}

void Scheduler::Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
                       int32_t num_drafts) {
  Entry& entry = *by_slot_.at(static_cast<size_t>(planned.slot));
  OUTRIDER_CHECK(entry.id == planned.id);
  OUTRIDER_CHECK(num_accepted >= 0 && num_accepted <= planned.num_drafts);
  OUTRIDER_CHECK(num_drafts >= 0 && num_drafts <= config_.max_drafts);
  OUTRIDER_CHECK(planned.context_length <= entry.num_computed &&
                 entry.num_computed <= planned.most_context_length);
  --num_in_flight_;
  --entry.steps_in_flight;
  entry.tokens_in_flight -= planned.num_tokens;
  entry.drafts_in_flight -= planned.num_drafts;
  entry.samples_in_flight -= planned.samples ? 1 : 0;
  OUTRIDER_CHECK(entry.steps_in_flight >= 0);
  entry.num_computed += planned.num_tokens + num_accepted;
  entry.num_tokens += num_emitted;
  entry.num_drafts = num_drafts;
  OUTRIDER_CHECK(entry.num_computed < entry.num_tokens || !planned.samples);
  Publish(entry);
  CacheOf(entry).Advance(entry.tables, entry.num_computed);
}

}  // namespace outrider
