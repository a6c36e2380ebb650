// Longer than most files: a step is walked from its plan to its commit in one place.
#include "outrider/engine/engine_core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/prefetch.h"
#include "outrider/base/random.h"
#include "outrider/base/stopwatch.h"
#include "outrider/batch/padded_drafts.h"
#include "outrider/sampling/token_mask.h"

namespace outrider {

namespace {

// Logits are made and sampled for about this many rows at a time, which bounds their memory.
constexpr int32_t kLogitsTile = 64;

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
      hasher_(parts_.scheduler.block_size, parts_.scheduler.tokens_ahead),
      verifier_(parts_.logprobs_mode, parts_.acceptance),
      by_slot_(static_cast<size_t>(parts_.scheduler.max_num_seqs), nullptr),
      layout_(parts_.scheduler.block_size) {
  counters_.kv_block_size = parts_.scheduler.block_size;
  counters_.num_kv_blocks = parts_.scheduler.num_blocks;
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
        static_cast<size_t>(state->max_total_tokens() / parts_.scheduler.block_size));
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
  const double draft_before = counters_.draft_seconds;
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
  if (parts_.draft_length_policy) {
    ObserveStep(*plan, step_seconds, counters_.draft_seconds - draft_before);
  }
  return true;
}

void EngineCore::ObserveStep(const StepPlan& plan, double seconds, double draft_seconds) {
  const auto k = static_cast<size_t>(parts_.drafter->max_drafts());
  tried_.assign(k, 0);
  accepted_.assign(k, 0);
  DraftStep step{.seconds = seconds - draft_seconds,
                 .draft_seconds = draft_seconds,
                 .depth = counters_.num_speculative_tokens,
                 .module_rows = parts_.drafter->module_rows(),
                 .tried = tried_,
                 .accepted = accepted_};
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    // What was generated before a preemption is computed again like a prompt.
    if (planned.phase != Phase::kDecode || planned.num_tokens > 1) {
      step.prompt_rows += planned.num_tokens;
      continue;
    }
    step.verify_rows += 1 + planned.num_drafts;
    step.tokens += outcomes_[i].num_emitted;
    // Drafts that were accepted after the end of the request gained nothing.
    const int32_t gained =
        std::min(outcomes_[i].verified.num_accepted, outcomes_[i].num_emitted - 1);
    for (int32_t d = 0; d < planned.num_drafts && d <= gained; ++d) {
      ++tried_[static_cast<size_t>(d)];
      if (d < gained) ++accepted_[static_cast<size_t>(d)];
    }
  }
  parts_.draft_length_policy->Observe(step);
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
    record.accepted_drafts += outcomes_[i].verified.num_accepted;
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
    VerifyRows();
    ScorePrompts();
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
         .block_table = planned.block_table->blocks(),
         .prompt_logits = planned.phase != Phase::kDecode && state.needs_prompt_logits()});
    // The layout reads these next, for one request after the other.
    Prefetch(work_.back().tokens.data());
    Prefetch(work_.back().draft_tokens.data());
    Prefetch(work_.back().block_table.data() +
             planned.context_length / parts_.scheduler.block_size);
    if (planned.phase != Phase::kDecode) counters_.prompt_tokens += planned.num_tokens;
  }
  layout_.Assign(work_);
  while (outcomes_.size() < plan.requests.size()) {
    const int32_t k = parts_.drafter ? parts_.drafter->max_drafts() : 0;
    outcomes_.emplace_back().verified.tokens.reserve(static_cast<size_t>(k) + 1);
  }
}

void EngineCore::Forward() {
  const int64_t width = parts_.model->hidden_size();
  hidden_.resize(static_cast<size_t>(layout_.num_rows() * width));
  parts_.model->Forward(layout_, *parts_.cache, {hidden_.data(), layout_.num_rows(), width});
}

void EngineCore::VerifyRows() {
  const auto requests = layout_.requests();
  size_t first = 0;
  while (first < requests.size()) {
    size_t end = first;
    int32_t rows = 0;
    while (end < requests.size() &&
           (rows == 0 || rows + requests[end].num_logits_rows <= kLogitsTile)) {
      rows += requests[end++].num_logits_rows;
    }
    if (rows > 0) VerifyTile(first, end - first);
    first = end;
  }
}

void EngineCore::VerifyTile(size_t first, size_t count) {
  const auto requests = layout_.requests().subspan(first, count);
  const int32_t first_logits_row = requests.front().first_logits_row;
  const int32_t rows =
      requests.back().first_logits_row + requests.back().num_logits_rows - first_logits_row;
  const MatrixView<const float> hidden(hidden_.data(), layout_.num_rows(),
                                       parts_.model->hidden_size());
  const std::span<const int32_t> logits_rows = layout_.logits_rows().subspan(
      static_cast<size_t>(first_logits_row), static_cast<size_t>(rows));
  const bool needs_logits = std::any_of(requests.begin(), requests.end(), [&](const auto& r) {
    return r.num_logits_rows > 0 && NeedsLogits(*states_[static_cast<size_t>(r.work_index)]);
  });
  MatrixView<float> logits;
  if (needs_logits) {
    const int64_t vocab = parts_.model->vocab_size();
    logits_.resize(static_cast<size_t>(rows * vocab));
    logits = {logits_.data(), rows, vocab};
    parts_.model->Logits(hidden, logits_rows, logits);
  } else {
    likeliest_.resize(static_cast<size_t>(rows));
    parts_.model->ArgMaxTokens(hidden, logits_rows, likeliest_);
  }
  const MatrixView<const uint32_t> masks = FillMasks(requests, rows);
  for (const RequestRows& request : requests) {
    if (request.num_logits_rows == 0) continue;
    const auto index = static_cast<size_t>(request.work_index);
    RequestState& state = *states_[index];
    const int32_t first_row = request.first_logits_row - first_logits_row;
    verifier_.Verify(
        {.params = &state.sampling(),
         .seed = state.seed(),
         .tokens = state.tokens(),
         .prompt_length = static_cast<size_t>(state.prompt_length()),
         .processors = state.processors(),
         .masks = state.grammar() == nullptr ? MatrixView<const uint32_t>()
                                             : masks.Rows(first_row, request.num_logits_rows),
         .logits = needs_logits ? logits.Rows(first_row, request.num_logits_rows) : logits,
         .likeliest = needs_logits ? std::span<const int32_t>()
                                   : std::span<const int32_t>(likeliest_)
                                         .subspan(static_cast<size_t>(first_row),
                                                  static_cast<size_t>(request.num_logits_rows)),
         .drafts = work_[index].draft_tokens,
         .draft_probs = state.draft_probs.empty() ? nullptr : state.draft_probs.data()},
        &outcomes_[index].verified);
  }
}

bool EngineCore::NeedsLogits(RequestState& state) const {
  return verifier_.NeedsLogits(state.sampling(),
                               state.grammar() != nullptr || state.processors() != nullptr);
}

// The masks of a tile's rows of logits; those of requests with a grammar are filled.
MatrixView<const uint32_t> EngineCore::FillMasks(std::span<const RequestRows> requests,
                                                 int32_t num_rows) {
  masked_.clear();
  for (const RequestRows& request : requests) {
    RequestState& state = *states_[static_cast<size_t>(request.work_index)];
    if (request.num_logits_rows > 0 && state.grammar() != nullptr) masked_.push_back(&request);
  }
  if (masked_.empty()) return {};
  const size_t words = MaskWords(parts_.model->vocab_size());
  masks_.resize(static_cast<size_t>(num_rows) * words);
  const MatrixView<uint32_t> masks(masks_.data(), num_rows, static_cast<int64_t>(words));
  const int32_t first_row = requests.front().first_logits_row;
  parts_.pool->ParallelFor(static_cast<int64_t>(masked_.size()), [&](int64_t i, int) {
    const RequestRows& request = *masked_[static_cast<size_t>(i)];
    const auto index = static_cast<size_t>(request.work_index);
    states_[index]->grammar()->FillMasks(
        work_[index].draft_tokens,
        masks.Rows(request.first_logits_row - first_row, request.num_logits_rows));
  });
  return masks;
}

// The log-probabilities of prompt tokens, for requests that ask for them.
void EngineCore::ScorePrompts() {
  for (const RequestRows& rows : layout_.requests()) {
    if (rows.num_prompt_logits_rows == 0) continue;
    RequestState& state = *states_[static_cast<size_t>(rows.work_index)];
    if (rows.context_length == 0) state.prompt_logprobs().clear();
    ScorePromptRows(rows, state);
  }
}

void EngineCore::ScorePromptRows(const RequestRows& rows, RequestState& state) {
  const int64_t vocab = parts_.model->vocab_size();
  const int64_t width = parts_.model->hidden_size();
  std::vector<PositionLogprobs>& scores = state.prompt_logprobs();
  for (int32_t first = 0; first < rows.num_prompt_logits_rows; first += kLogitsTile) {
    const int32_t count = std::min(kLogitsTile, rows.num_prompt_logits_rows - first);
    score_rows_.resize(static_cast<size_t>(count));
    std::iota(score_rows_.begin(), score_rows_.end(), rows.first_row + first);
    logits_.resize(static_cast<size_t>(count * vocab));
    const MatrixView<float> logits(logits_.data(), count, vocab);
    parts_.model->Logits({hidden_.data(), layout_.num_rows(), width}, score_rows_, logits);
    const size_t done = scores.size();
    scores.resize(done + static_cast<size_t>(count));
    parts_.pool->ParallelFor(count, [&](int64_t i, int) {
      const auto next = static_cast<size_t>(rows.context_length + first + i + 1);
      scores[done + static_cast<size_t>(i)] =
          ComputeLogprobs({logits.row(i), static_cast<size_t>(vocab)}, state.tokens()[next],
                          *state.sampling().prompt_logprobs);
    });
  }
}

void EngineCore::EmitTokens(const StepPlan& plan) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    Outcome& outcome = outcomes_[i];
    outcome.num_emitted = 0;
    outcome.num_drafts = 0;
    if (!planned.samples) continue;
    RequestState& state = *states_[i];
    counters_.speculation.AddStep(planned.num_drafts, outcome.verified.num_accepted);
    outcome.num_emitted = state.Emit(outcome.verified, work_[i].draft_tokens);
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
    const int32_t accepted = planned.samples ? outcomes_[index].verified.num_accepted : 0;
    if (parts_.probabilistic_drafts && state.sampling().temperature > 0) {
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
         .block_table = planned.block_table->blocks(),
         .draft_probs = state.draft_probs.empty() ? nullptr : state.draft_probs.data(),
         .temperature = state.sampling().temperature,
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
    // Drafts that the grammar refuses need no verify row.
    if (state.grammar() != nullptr) {
      state.drafts.resize(state.grammar()->CountAllowed(state.drafts));
    }
    outcomes_[index].num_drafts = static_cast<int32_t>(state.drafts.size());
  }
}

int32_t EngineCore::ChooseDraftLength(int32_t decodes) {
  if (!parts_.draft_length_policy) return parts_.draft_schedule.TokensFor(decodes);
  rows_put_off_.assign(static_cast<size_t>(parts_.drafter->max_drafts()) + 1, 0);
  for (const RequestRows& rows : layout_.requests()) {
    if (states_[static_cast<size_t>(rows.work_index)]->finished()) continue;
    for (int32_t depth = 1; depth <= parts_.drafter->max_drafts(); ++depth) {
      rows_put_off_[static_cast<size_t>(depth)] += parts_.drafter->rows_put_off(rows.slot, depth);
    }
  }
  return parts_.draft_length_policy->Choose(decodes, rows_put_off_);
}

void EngineCore::Commit(const StepPlan& plan) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    RequestState& state = *states_[i];
    if (state.finished()) {
      CountFinish(*state.finish_reason());
      Remove(planned.id);
      continue;
    }
    const Outcome& outcome = outcomes_[i];
    if (state.block_keys) hasher_.Extend(state.tokens(), *state.block_keys);
    scheduler_.Commit(planned, planned.samples ? outcome.verified.num_accepted : 0,
                      outcome.num_emitted, outcome.num_drafts);
  }
}

}  // namespace outrider
