#include "outrider/engine/engine_core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/prefetch.h"
#include "outrider/base/random.h"
#include "outrider/base/stopwatch.h"
#include "outrider/batch/padded_drafts.h"

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
      scheduler_(parts_.scheduler),
      hasher_(parts_.scheduler.cache.TokensPerKey(), parts_.scheduler.tokens_ahead),
      logits_pass_(*parts_.model, *parts_.pool, Verifier(parts_.logprobs_mode, parts_.acceptance)),
      by_slot_(static_cast<size_t>(parts_.scheduler.max_num_seqs), nullptr),
      layout_(parts_.scheduler.cache.groups) {
  counters_.kv_block_size = parts_.scheduler.cache.TokensPerKey();
  counters_.num_kv_blocks = parts_.scheduler.cache.num_pages;
}

void EngineCore::Add(RequestId id, GenerationRequest request, OutputSink sink) {
  const uint64_t seed = request.sampling.seed.value_or(DerivedSeed(parts_.seed, id));
  auto state = std::make_unique<RequestState>(
      id, std::move(request), std::move(sink), parts_.tokenizer,
      parts_.model->config().eos_token_ids, parts_.scheduler.max_model_len,
      parts_.model->vocab_size(), seed);
  if (parts_.prefix_caching && !state->needs_prompt_logits()) {
    BlockKeys& keys = state->block_keys.emplace(hasher_.Start(state->cache_salt()));
    keys.blocks.reserve(
        static_cast<size_t>(state->max_total_tokens() / parts_.scheduler.cache.TokensPerKey()));
    hasher_.Extend(state->tokens(), keys);
  }
  scheduler_.Add({.id = id,
                  .prompt_length = state->prompt_length(),
                  .priority = state->priority(),
                  .keys = state->block_keys ? &*state->block_keys : nullptr});
  requests_.emplace(id, std::move(state));
}

void EngineCore::Abort(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->Abort();
  CountFinish(FinishReason::kAbort);
  Remove(id);
}

void EngineCore::Remove(RequestId id) {
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
  c.num_requests_waiting = scheduler_.num_waiting();
  c.kv_cache_usage = scheduler_.pool().Usage();
}

bool EngineCore::Step() {
  const double model_before = parts_.model->busy_seconds();
  double step_seconds = 0;
  const StepPlan* const plan = RunStep(step_seconds);
  if (plan == nullptr) return false;
  ++counters_.num_steps;
  counters_.host_seconds += step_seconds - (parts_.model->busy_seconds() - model_before);
  const StepRecord record = DescribeStep(*plan, step_seconds);
  counters_.step_tokens.Add(record.prompt_rows + record.emitted_tokens);
  const int32_t verify_rows = record.decode_rows + record.draft_rows;
  if (verify_rows > 0) counters_.verify_tokens.Add(verify_rows);
  if (step_log_.has_listeners()) step_log_.Add(record);
  if (parts_.draft_length_policy) ObserveStep(*plan);
  return true;
}

void EngineCore::ObserveStep(const StepPlan& plan) {
  const auto k = static_cast<size_t>(parts_.drafter->max_drafts());
  tried_.assign(k, 0);
  accepted_.assign(k, 0);
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    if (!planned.samples) continue;
    // Drafts that were accepted after the end of the request gained nothing.
    const int32_t gained = std::min(verified_[i].num_accepted, outcomes_[i].num_emitted - 1);
    for (int32_t d = 0; d < planned.num_drafts && d <= gained; ++d) {
      ++tried_[static_cast<size_t>(d)];
      if (d < gained) ++accepted_[static_cast<size_t>(d)];
    }
  }
  parts_.draft_length_policy->ObserveStep(tried_, accepted_);
}

StepRecord EngineCore::DescribeStep(const StepPlan& plan, double seconds) const {
  StepRecord record = {.step = counters_.num_steps,
                       .seconds = seconds,
                       .num_speculative_tokens = counters_.num_speculative_tokens,
                       .running = scheduler_.num_running(),
                       .waiting = scheduler_.num_waiting(),
                       .kv_cache_usage = scheduler_.pool().Usage()};
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    if (planned.phase == Phase::kDecode) {
      ++record.decode_requests;
      record.decode_rows += planned.num_tokens;
      record.draft_rows += planned.num_drafts;
    } else {
      ++record.prompt_requests;
      record.prompt_rows += planned.num_tokens;
    }
    if (!planned.samples) continue;
    record.accepted_drafts += verified_[i].num_accepted;
    record.emitted_tokens += outcomes_[i].num_emitted;
  }
  return record;
}

const StepPlan* EngineCore::RunStep(double& step_seconds) {
  const Stopwatch step_watch(step_seconds);
  const StepPlan* plan = nullptr;
  {
    const Stopwatch watch(counters_.plan_seconds);
    plan = &scheduler_.Plan();
    ApplyPlan(*plan);
  }
  if (plan->requests.empty()) return nullptr;
  {
    const Stopwatch watch(counters_.model_seconds);
    Forward();
  }
  {
    const Stopwatch watch(counters_.sample_seconds);
    const LogitsInput input{
        .layout = layout_,
        .hidden = {hidden_.data(), layout_.num_rows(), parts_.model->hidden_size()},
        .work = work_,
        .states = states_};
    logits_pass_.Verify(input, verified_);
    logits_pass_.ScorePrompts(input);
  }
  {
    const Stopwatch watch(counters_.plan_seconds);
    EmitTokens(*plan);
  }
  if (parts_.drafter) {
    const Stopwatch watch(counters_.draft_seconds);
    ProposeDrafts(*plan);
  }
  const Stopwatch watch(counters_.plan_seconds);
  Commit(*plan);
  return plan;
}

void EngineCore::ApplyPlan(const StepPlan& plan) {
  for (const RequestId id : plan.preempted) {
    RequestState& state = StateOf(id);
    state.drafts.clear();
    state.Preempted();
    ++counters_.num_preemptions;
  }
  for (const Admission& admission : plan.admitted) {
    RequestState& state = StateOf(admission.id);
    if (state.Scheduled(admission.cached_tokens) && state.block_keys) {
      counters_.prefix_cache_queries += state.prompt_length();
      counters_.prefix_cache_hits += admission.cached_tokens;
    }
    by_slot_[static_cast<size_t>(admission.slot)] = &state;
    if (parts_.drafter) parts_.drafter->Reset(admission.slot, admission.cached_tokens);
  }
  work_.clear();
  states_.clear();
  for (const PlannedRequest& planned : plan.requests) {
    RequestState& state = *by_slot_[static_cast<size_t>(planned.slot)];
    states_.push_back(&state);
    const std::span<const int32_t> tokens(state.tokens());
    work_.push_back(
        {.slot = planned.slot,
         .phase = planned.phase,
         .context_length = planned.context_length,
         .tokens = tokens.subspan(static_cast<size_t>(planned.context_length),
                                  static_cast<size_t>(planned.num_tokens)),
         .draft_tokens = std::span(state.drafts).first(static_cast<size_t>(planned.num_drafts)),
         .samples = planned.samples,
         .block_tables = planned.tables->blocks(),
         .prompt_logits = planned.phase != Phase::kDecode && state.needs_prompt_logits()});
    // The layout reads these next, for one request after the other.
    Prefetch(work_.back().tokens.data());
    Prefetch(work_.back().draft_tokens.data());
    for (int32_t g = 0; g < planned.tables->num_groups(); ++g) {
      Prefetch(planned.tables->blocks(g).data() +
               planned.context_length / layout_.groups()[static_cast<size_t>(g)].tokens_per_block);
    }
    if (planned.phase != Phase::kDecode) counters_.prompt_tokens += planned.num_tokens;
  }
  layout_.Assign(work_);
  while (verified_.size() < plan.requests.size()) {
    const int32_t k = parts_.drafter ? parts_.drafter->max_drafts() : 0;
    verified_.emplace_back().tokens.reserve(static_cast<size_t>(k) + 1);
  }
  outcomes_.resize(std::max(outcomes_.size(), plan.requests.size()));
}

void EngineCore::Forward() {
  const int64_t width = parts_.model->hidden_size();
  hidden_.resize(static_cast<size_t>(layout_.num_rows() * width));
  parts_.model->Forward(layout_, *parts_.cache, {hidden_.data(), layout_.num_rows(), width});
}

void EngineCore::EmitTokens(const StepPlan& plan) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    Outcome& outcome = outcomes_[i];
    outcome = {};
    if (!planned.samples) continue;
    RequestState& state = *states_[i];
    const int32_t accepted = verified_[i].num_accepted;
    counters_.speculation.AddStep(planned.num_drafts, accepted);
    outcome.num_emitted = state.Emit(verified_[i], work_[i].draft_tokens);
    counters_.generation_tokens += outcome.num_emitted;
  }
}

void EngineCore::ProposeDrafts(const StepPlan& plan) {
  draft_requests_.clear();
  draft_plan_index_.clear();
  const int32_t k = parts_.drafter->max_drafts();
  int32_t decodes = 0;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    if (plan.requests[i].samples && !states_[i]->finished()) ++decodes;
  }
  const int32_t wanted = ChooseDraftLength(decodes);
  counters_.num_speculative_tokens = wanted;
  for (const RequestRows& rows : layout_.requests()) {
    const auto index = static_cast<size_t>(rows.work_index);
    const PlannedRequest& planned = plan.requests[index];
    RequestState& state = *states_[index];
    if (state.finished()) continue;
    const int32_t accepted = planned.samples ? verified_[index].num_accepted : 0;
    const bool drawn = parts_.probabilistic_drafts && state.sampling().temperature > 0;
    if (drawn && parts_.acceptance.method == RejectionMethod::kStandard) {
      state.draft_probs.resize(static_cast<size_t>(k) *
                               static_cast<size_t>(parts_.model->vocab_size()));
    }
    draft_requests_.push_back(
        {.slot = rows.slot,
         .tokens = state.tokens(),
         .prompt_length = state.prompt_length(),
         .first_position = rows.context_length,
         .frontier = StartOfDrafts(rows, accepted).frontier,
         .first_row = rows.first_row,
         .num_rows = rows.query_length,
         .num_drafts = planned.samples ? state.UsefulDrafts(wanted) : 0,
         .block_tables = planned.tables->blocks(),
         .sampling = drawn ? &state.sampling() : nullptr,
         .draft_probs = state.draft_probs.empty() ? nullptr : state.draft_probs.data(),
         .seed = state.seed()});
    draft_plan_index_.push_back(index);
  }
  const auto count = static_cast<int64_t>(draft_requests_.size());
  drafts_.resize(static_cast<size_t>(count * k));
  const MatrixView<int32_t> drafts(drafts_.data(), count, k);
  const int64_t width = parts_.model->hidden_size();
  parts_.drafter->Propose(draft_requests_, wanted, {hidden_.data(), layout_.num_rows(), width},
                          drafts);
  for (size_t i = 0; i < draft_requests_.size(); ++i) {
    const size_t index = draft_plan_index_[i];
    const int32_t* row = drafts.row(static_cast<int64_t>(i));
    const int32_t* end = std::find(row, row + draft_requests_[i].num_drafts, kNoDraft);
    RequestState& state = *states_[index];
    state.drafts.assign(row, end);
    // Drafts that the grammar refuses need no verify row; but the first that was drawn for
    // rejection sampling does, as what replaces it depends on what it was drawn from.
    if (state.grammar() != nullptr) {
      const size_t refused = state.draft_probs.empty() ? 0 : 1;
      const size_t allowed = state.grammar()->CountAllowed(state.drafts);
      state.drafts.resize(std::min(state.drafts.size(), allowed + refused));
    }
    outcomes_[index].num_drafts = static_cast<int32_t>(state.drafts.size());
  }
}

int32_t EngineCore::ChooseDraftLength(int32_t decodes) {
  return parts_.draft_length_policy ? parts_.draft_length_policy->Choose(decodes)
                                    : parts_.draft_schedule.TokensFor(decodes);
}

void EngineCore::Commit(const StepPlan& plan) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    RequestState& state = *states_[i];
    if (state.finished()) {
      CountFinish(*state.finish_reason());
      if (parts_.draft_length_policy) {
        parts_.draft_length_policy->ObserveEnd(state.prompt_length() - state.cached_tokens(),
                                               state.num_tokens() - state.prompt_length());
      }
      Remove(planned.id);
      continue;
    }
    const Outcome& outcome = outcomes_[i];
    if (state.block_keys) hasher_.Extend(state.tokens(), *state.block_keys);
    scheduler_.Commit(planned, planned.samples ? verified_[i].num_accepted : 0, outcome.num_emitted,
                      outcome.num_drafts);
  }
}

}  // namespace outrider
