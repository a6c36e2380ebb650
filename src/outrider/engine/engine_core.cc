// Longer than most files: all that happens to a request on its way goes through one state.
#include "outrider/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/random.h"
#include "outrider/base/stopwatch.h"

namespace outrider {

namespace {

/// The seed of a request that brings none.
uint64_t DerivedSeed(uint64_t engine_seed, RequestId id) {
  const auto r = Philox4x32(
      engine_seed, {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 0x5eed, 0});
  return (static_cast<uint64_t>(r[0]) << 32) | r[1];
}

}  // namespace

EngineCore::EngineCore(EngineParts parts)
    : parts_(std::move(parts)),
      vocab_size_(parts_.executor->vocab_size()),
      eos_token_ids_(parts_.executor->eos_token_ids().begin(),
                     parts_.executor->eos_token_ids().end()),
      weight_version_(std::make_shared<const std::string>(parts_.weight_version)),
      executor_pages_(parts_),
      scheduler_(parts_.scheduler),
      hasher_(parts_.scheduler.cache.TokensPerKey(), parts_.scheduler.tokens_ahead),
      by_slot_(static_cast<size_t>(parts_.scheduler.max_num_seqs), nullptr) {
  OUTRIDER_CHECK(parts_.executor->max_in_flight() <= Scheduler::kMostInFlight);
  counters_.kv_block_size = parts_.scheduler.cache.TokensPerKey();
  counters_.num_kv_blocks = parts_.scheduler.cache.num_pages * parts_.scheduler.cache_ranks;
  counters_.max_num_seqs = parts_.scheduler.max_num_seqs;
  counters_.max_num_batched_tokens = parts_.scheduler.max_num_batched_tokens;
  counters_.max_speculative_tokens = parts_.scheduler.max_drafts;
  counters_.gpu = parts_.gpu;
  if (parts_.page_store) {
    OUTRIDER_CHECK(parts_.page_store->page_bytes() == parts_.executor->page_bytes());
    host_cache_.emplace(std::move(parts_.page_store), executor_pages_);
    scheduler_.SetHostCache(&*host_cache_);
  }
}

EngineParts EngineCore::ReleaseParts() && {
  OUTRIDER_CHECK(requests_.empty());
  while (num_in_flight_ > 0) Step();
  return std::move(parts_);
}

void EngineCore::Add(RequestId id, GenerationRequest request, OutputSink sink) {
  Held held{id, std::move(request), std::move(sink)};
  if (pause_) {
    held_.push_back(std::move(held));
  } else {
    Admit(std::move(held));
  }
}

void EngineCore::Admit(Held held) {
  const RequestId id = held.id;
  const uint64_t seed = held.request.sampling.seed.value_or(DerivedSeed(parts_.seed, id));
  auto state = std::make_unique<RequestState>(
      id, std::move(held.request), std::move(held.sink), parts_.tokenizer, eos_token_ids_,
      parts_.scheduler.max_model_len, seed, parts_.routed.value_or(RoutedShape{}));
  state->SetWeightVersion(weight_version_);
  if (parts_.prefix_caching) StartKeys(*state);
  scheduler_.Add({.id = id,
                  .prompt_length = state->prompt_length(),
                  .max_total_tokens = state->max_total_tokens(),
                  .priority = state->priority(),
                  .keys = state->block_keys ? &*state->block_keys : nullptr,
                  .most_shared = state->most_shared()});
  requests_.emplace(id, std::move(state));
}

void EngineCore::StartKeys(RequestState& state) {
  if (!state.block_keys) state.block_keys.emplace();
  BlockKeys& keys = *state.block_keys;
  keys.root = hasher_
                  .Start(num_updates_ == 0
                             ? state.cache_salt()
                             : fmt::format("weights {}/{}", *weight_version_, state.cache_salt()))
                  .root;
  keys.blocks.clear();
  keys.blocks.reserve(
      static_cast<size_t>(state.max_total_tokens() / parts_.scheduler.cache.TokensPerKey()));
  hasher_.Extend(state.tokens(), keys);
}

void EngineCore::AbortAll() {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, state] : requests_) ids.push_back(id);
  for (const RequestId id : ids) Abort(id);
}

void EngineCore::Abort(RequestId id) {
  const auto held = std::ranges::find(held_, id, &Held::id);
  if (held != held_.end()) {
    Admit(std::move(*held));
    held_.erase(held);
  }
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->Abort();
  CountFinish(FinishReason::kAbort);
  LeaveSlot(*it->second);
  Remove(*it->second);
}

void EngineCore::SetKvEventSink(KvEventSink sink) {
  OUTRIDER_CHECK(requests_.empty());
  kv_event_sink_ = std::move(sink);
  kv_events_.emplace(parts_.scheduler.cache.TokensPerKey());
  scheduler_.SetPrefixLog(kv_events_->pool_log());
}

void EngineCore::TellKvEvents() {
  if (!kv_events_) return;
  std::vector<KvEvent> events = kv_events_->TakeEvents();
  if (!events.empty()) kv_event_sink_(std::move(events));
}

void EngineCore::Fail(const std::string& reason) {
  num_in_flight_ = 0;
  if (pause_) Resume([] {});
  for (const auto& [id, state] : requests_) {
    state->Fail(reason);
    CountFinish(FinishReason::kError);
    scheduler_.Remove(id);
  }
  requests_.clear();
  std::ranges::fill(by_slot_, nullptr);
}

void EngineCore::LeaveSlot(RequestState& state) {
  if (!state.slot) return;
  parts_.executor->Release(*state.slot);
  by_slot_[static_cast<size_t>(*state.slot)] = nullptr;
  state.slot.reset();
}

void EngineCore::Remove(RequestState& state) {
  const RequestId id = state.id();
  scheduler_.Remove(id);
  requests_.erase(id);
}

void EngineCore::CountFinish(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      ++counters_.finished_stop;
      break;
    case FinishReason::kLength:
      ++counters_.finished_length;
      break;
    case FinishReason::kAbort:
      ++counters_.finished_abort;
      break;
    case FinishReason::kError:
      ++counters_.finished_error;
      break;
  }
}

void EngineCore::ReadCounters(EngineCounters& c) const {
  c = counters_;
  c.num_requests_running = scheduler_.num_running();
  c.num_requests_waiting = scheduler_.num_waiting() + static_cast<int64_t>(held_.size());
  c.paused = pause_ && pause_->at_rest;
  c.weights_asleep = asleep_.weights;
  c.cache_asleep = asleep_.kv_cache;
  c.weight_version = *weight_version_;
  c.kv_cache_usage = scheduler_.CacheUsage();
  if (host_cache_) c.host_cache = host_cache_->counts();
}

bool EngineCore::Step() {
  if (parts_.executor == nullptr) return ComeToRest();
  const ExecutorSeconds before = parts_.executor->seconds();
  double step_seconds = 0;
  StepRecord record;
  {
    const Stopwatch watch(step_seconds);
    while (MayLaunch() && num_in_flight_ < parts_.executor->max_in_flight() && LaunchStep()) {
    }
    if (num_in_flight_ == 0) return ComeToRest();
    FinishStep(record);
  }
  record.seconds = CountSeconds(step_seconds, before);
  counters_.step_tokens.Add(record.prompt_rows + record.emitted_tokens);
  const int32_t verify_rows = record.decode_rows + record.draft_rows;
  if (verify_rows > 0) counters_.verify_tokens.Add(verify_rows);
  if (step_log_.has_listeners()) step_log_.Add(record);
  return true;
}

double EngineCore::CountSeconds(double step_seconds, const ExecutorSeconds& before) {
  const ExecutorSeconds after = parts_.executor->seconds();
  const double forward = after.forward - before.forward;
  const double verify = after.verify - before.verify;
  const double propose = after.propose - before.propose;
  counters_.model_seconds += forward;
  counters_.sample_seconds += verify;
  counters_.draft_seconds += propose;
  // Where steps overlap, one may have run for longer than the host waited for it, and the next for
  // less. The counters do not fall.
  step_seconds_ += step_seconds;
  kernel_seconds_ += after.kernels - before.kernels;
  counters_.plan_seconds =
      std::max(counters_.plan_seconds, step_seconds_ - counters_.model_seconds -
                                           counters_.sample_seconds - counters_.draft_seconds);
  counters_.host_seconds = std::max(counters_.host_seconds, step_seconds_ - kernel_seconds_);
  if (counters_.gpu) {
    counters_.gpu->idle_seconds += after.idle - before.idle;
    const ReplayCounts passes = parts_.executor->passes();
    counters_.gpu->passes_repeated = passes.repeated;
    counters_.gpu->passes_launched = passes.launched;
  }
  return std::max(step_seconds, forward + verify + propose);
}

bool EngineCore::LaunchStep() {
  const StepPlan& plan = scheduler_.Plan();
  ApplyPlan(plan);
  if (plan.requests.empty()) return false;
  const int32_t num_drafts = ChooseDraftLength(plan);
  in_flight_[static_cast<size_t>(num_in_flight_++)] = {
      .plan = &plan, .ticket = parts_.executor->Launch(plan, num_drafts), .num_drafts = num_drafts};
  return true;
}

void EngineCore::ApplyPlan(const StepPlan& plan) {
  for (const RequestId id : plan.preempted) {
    RequestState& state = *requests_.at(id);
    LeaveSlot(state);
    state.Preempted();
    ++counters_.num_preemptions;
  }
  for (const Admission& admission : plan.admitted) {
    RequestState& state = *requests_.at(admission.id);
    const bool asks = state.block_keys && state.most_shared() > 0;
    if (state.Scheduled(admission.cached_tokens) && asks) CountPrefix(state, admission);
    state.slot = admission.slot;
    by_slot_[static_cast<size_t>(admission.slot)] = &state;
    parts_.executor->Admit({.slot = admission.slot,
                            .parameters = state.parameters(),
                            .tokens = state.tokens(),
                            .cached_tokens = admission.cached_tokens});
  }
  if (kv_events_ && host_cache_) TellReturned(plan);
}

void EngineCore::CountPrefix(const RequestState& state, const Admission& admission) {
  const int64_t in_pool = admission.cached_tokens - admission.returned_tokens;
  counters_.prefix_cache_queries += state.prompt_length();
  counters_.prefix_cache_hits += in_pool;
  if (!host_cache_) return;
  counters_.host_cache_queries += state.prompt_length() - in_pool;
  counters_.host_cache_hits += admission.returned_tokens;
}

void EngineCore::TellReturned(const StepPlan& plan) {
  std::vector<KvEventLog::Writer> writers;
  for (const Admission& admission : plan.admitted) {
    const RequestState& state = *requests_.at(admission.id);
    if (!state.block_keys) continue;
    writers.push_back({state.tokens(), *state.block_keys, state.cache_salt()});
  }
  kv_events_->TakePublished(writers);
}

int32_t EngineCore::ChooseDraftLength(const StepPlan& plan) {
  if (parts_.scheduler.max_drafts == 0) return 0;
  const auto decodes = static_cast<int32_t>(
      std::ranges::count_if(plan.requests, [](const PlannedRequest& r) { return r.samples; }));
  return parts_.draft_length_policy ? parts_.draft_length_policy->Choose(decodes)
                                    : parts_.draft_schedule.TokensFor(decodes);
}

void EngineCore::FinishStep(StepRecord& record) {
  const StepInFlight step = in_flight_.front();
  const StepPlan& plan = *step.plan;
  const std::span<const RequestResult> results = parts_.executor->Wait(step.ticket);
  EmitTokens(plan, results);
  const std::span<const int32_t> num_drafts = parts_.executor->WaitDrafts(step.ticket);
  ++counters_.num_steps;
  const bool wanted = counters_.num_speculative_tokens > 0;
  counters_.num_speculative_tokens = step.num_drafts;
  Commit(plan, results, num_drafts);
  TellKvEvents();
  std::shift_left(in_flight_.begin(), in_flight_.end(), 1);
  --num_in_flight_;
  record = DescribeStep(plan, results);
  if (parts_.draft_length_policy) ObserveStep(plan, results, wanted);
}

void EngineCore::EmitTokens(const StepPlan& plan, std::span<const RequestResult> results) {
  outcomes_.assign(plan.requests.size(), {});
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    if (results[i].ran && planned.phase != Phase::kDecode) {
      counters_.prompt_tokens += planned.num_tokens;
    }
    RequestState* const state = by_slot_[static_cast<size_t>(planned.slot)];
    if (state == nullptr || state->id() != planned.id) continue;
    // Ends by token or length are known to both sides, so they are known here first.
    OUTRIDER_CHECK(results[i].ran);
    outcomes_[i].state = state;
    state->TakeExperts(results[i]);
    if (!planned.samples) continue;
    const int32_t accepted = results[i].verified.num_accepted;
    counters_.speculation.AddStep(static_cast<int32_t>(results[i].drafts.size()), accepted);
    outcomes_[i].num_emitted = state->Emit(results[i]);
    counters_.generation_tokens += outcomes_[i].num_emitted;
    // Else its drafter's entries may be wanted for what it publishes.
    if (state->finished() && !planned.publishes) LeaveSlot(*state);
  }
}

void EngineCore::Commit(const StepPlan& plan, std::span<const RequestResult> results,
                        std::span<const int32_t> num_drafts) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    if (outcomes_[i].state == nullptr) continue;
    const PlannedRequest& planned = plan.requests[i];
    RequestState& state = *outcomes_[i].state;
    const int32_t emitted = outcomes_[i].num_emitted;
    const bool failed = state.finish_reason() == FinishReason::kError;
    if (!state.finished() || (planned.publishes && !failed && emitted > 0)) {
      if (state.block_keys) hasher_.Extend(state.tokens(), *state.block_keys);
      // Drafts that were accepted after the end of a request are none of its tokens.
      const int32_t accepted =
          planned.samples ? std::min(results[i].verified.num_accepted, emitted - 1) : 0;
      scheduler_.Commit(planned, accepted, emitted, num_drafts[i]);
      if (kv_events_ && state.block_keys) {
        const KvEventLog::Writer writer = {state.tokens(), *state.block_keys, state.cache_salt()};
        kv_events_->TakePublished({&writer, 1});
      }
    }
    if (state.finished()) End(state);
  }
}

void EngineCore::End(RequestState& state) {
  CountFinish(*state.finish_reason());
  if (parts_.draft_length_policy) {
    parts_.draft_length_policy->ObserveEnd(state.prompt_length() - state.cached_tokens(),
                                           state.num_tokens() - state.prompt_length());
  }
  LeaveSlot(state);
  Remove(state);
}

void EngineCore::ObserveStep(const StepPlan& plan, std::span<const RequestResult> results,
                             bool wanted) {
  const auto k = static_cast<size_t>(parts_.scheduler.max_drafts);
  tried_.assign(k, 0);
  accepted_.assign(k, 0);
  int32_t verified = 0;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    if (outcomes_[i].state == nullptr || !plan.requests[i].samples) continue;
    if (plan.requests[i].phase == Phase::kDecode) ++verified;
    // Drafts that were accepted after the end of the request gained nothing.
    const auto num_drafts = static_cast<int32_t>(results[i].drafts.size());
    const int32_t gained = std::min(results[i].verified.num_accepted, outcomes_[i].num_emitted - 1);
    for (int32_t d = 0; d < num_drafts && d <= gained; ++d) {
      ++tried_[static_cast<size_t>(d)];
      if (d < gained) ++accepted_[static_cast<size_t>(d)];
    }
  }
  parts_.draft_length_policy->ObserveStep(tried_, accepted_);
  if (wanted) parts_.draft_length_policy->ObserveLookups(verified, tried_.front());
}

StepRecord EngineCore::DescribeStep(const StepPlan& plan,
                                    std::span<const RequestResult> results) const {
  StepRecord record = {.step = counters_.num_steps,
                       .num_speculative_tokens = counters_.num_speculative_tokens,
                       .running = scheduler_.num_running(),
                       .waiting = scheduler_.num_waiting(),
                       .kv_cache_usage = scheduler_.CacheUsage()};
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    if (!results[i].ran) continue;
    if (planned.phase == Phase::kDecode) {
      ++record.decode_requests;
      record.decode_rows += planned.num_tokens;
      record.draft_rows += static_cast<int32_t>(results[i].drafts.size());
    } else {
      ++record.prompt_requests;
      record.prompt_rows += planned.num_tokens;
    }
    if (outcomes_[i].state == nullptr || !planned.samples) continue;
    record.accepted_drafts += results[i].verified.num_accepted;
    record.emitted_tokens += outcomes_[i].num_emitted;
  }
  return record;
}

}  // namespace outrider
