#include "outrider/execute/inline_executor.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/prefetch.h"
#include "outrider/base/stopwatch.h"
#include "outrider/batch/padded_drafts.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

namespace {

/// The first rows of memory that grows. What they held is lost when there were fewer.
Tensor FirstRows(const Ops& ops, std::unique_ptr<RowMemory>& memory, int64_t rows, int64_t cols) {
  if (memory == nullptr || memory->rows().rows < rows) {
    const int64_t room = std::max(rows, memory == nullptr ? 0 : 2 * memory->rows().rows);
    memory = ops.MakeRows(room, cols);
  }
  return memory->rows().Rows(0, rows);
}

}  // namespace

InlineExecutor::InlineExecutor(InlineExecutorParts parts)
    : parts_(std::move(parts)),
      logits_pass_(*parts_.model, *parts_.pool, Verifier(parts_.logprobs_mode, parts_.acceptance)),
      slots_(static_cast<size_t>(parts_.num_slots)),
      layout_(parts_.cache->config().groups),
      attention_(parts_.model->attention()),
      inputs_(parts_.model->device().ops.MakeStepInputs()) {
  parts_.model->device().ops.KeepTokens(parts_.num_slots * SlotPlaces::PerSlot(max_drafts()));
}

void InlineExecutor::Admit(const SlotAdmission& admission) {
  SlotAt(admission.slot).Admit(admission, eos_token_ids(), vocab_size(), 1 + max_drafts());
  ++num_taken_;
  if (parts_.drafter) parts_.drafter->Reset(admission.slot, admission.cached_tokens);
}

void InlineExecutor::Release(int32_t slot) {
  SlotAt(slot).Release();
  for (StepOutputs& outputs : outputs_) {
    for (UnreadResult& unread : outputs.unread) {
      if (unread.slot == &SlotAt(slot)) unread.slot = nullptr;
    }
  }
  if (--num_taken_ == 0) parts_.model->device().ops.Rest();
}

bool InlineExecutor::CanLaunchAhead() const {
  return !parts_.drafter && last_launched_ == last_ended_ + 1 && !ResultsAreThere();
}

bool InlineExecutor::ResultsAreThere() const {
  return last_ended_ < last_launched_ &&
         (OutputsOf(last_ended_ + 1).unread.empty() || logits_pass_.CanCollect());
}

void InlineExecutor::WhileLaunching(const std::function<void()>& look) {
  const Ops& ops = parts_.model->device().ops;
  if (!look) return ops.WhileLaunching({});
  ops.WhileLaunching([this, look] {
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      look();
    }
    seconds_.forward -= seconds;  // it is inside
  });
}

Ticket InlineExecutor::Launch(const StepPlan& plan, int32_t num_drafts) {
  OUTRIDER_CHECK(last_launched_ == last_ended_ ||
                 (last_launched_ == last_ended_ + 1 && !outputs().unread.empty()));
  ++last_launched_;
  wanted_drafts_ = num_drafts;
  LayOut(plan);
  if (!work_.empty()) {
    {
      const Stopwatch watch(seconds_.forward);
      Forward();
    }
    {
      const Stopwatch watch(seconds_.verify);
      Verify();
    }
    if (parts_.drafter && !outputs().unread.empty()) BeginDrafts();
  }
  return last_launched_;
}

std::span<const RequestResult> InlineExecutor::Wait(Ticket ticket) {
  OUTRIDER_CHECK(ticket == last_ended_ + 1 && ticket <= last_launched_);
  StepOutputs& outputs = OutputsOf(ticket);
  if (!outputs.unread.empty()) {
    const Stopwatch watch(seconds_.verify);
    Read(outputs);
  }
  return std::span(outputs.results).first(outputs.num_drafts.size());
}

std::span<const int32_t> InlineExecutor::WaitDrafts(Ticket ticket) {
  OUTRIDER_CHECK(ticket == last_ended_ + 1 && OutputsOf(ticket).unread.empty());
  if (parts_.drafter) {
    OUTRIDER_CHECK(ticket == last_launched_);
    const Stopwatch watch(seconds_.propose);
    Propose();
  }
  last_ended_ = ticket;
  return OutputsOf(ticket).num_drafts;
}

ExecutorSeconds InlineExecutor::seconds() const {
  ExecutorSeconds seconds = seconds_;
  seconds.kernels = parts_.model->busy_seconds();
  if (parts_.drafter) seconds.kernels += parts_.drafter->busy_seconds();
  seconds.idle = parts_.model->device().ops.idle_seconds();
  return seconds;
}

ReplayCounts InlineExecutor::passes() const {
  ReplayCounts passes = parts_.model->replay_counts();
  if (parts_.drafter) {
    const ReplayCounts own = parts_.drafter->replay_counts();
    passes.repeated += own.repeated;
    passes.launched += own.launched;
  }
  return passes;
}

RequestWork InlineExecutor::WorkOf(const PlannedRequest& planned, const RequestSlot& slot) const {
  const int32_t context = slot.num_computed;
  OUTRIDER_CHECK(planned.context_length <= context && context <= planned.most_context_length);
  const auto num_drafts = static_cast<int32_t>(planned.samples ? slot.drafts.size() : 0);
  OUTRIDER_CHECK(num_drafts <= planned.num_drafts);
  OUTRIDER_CHECK(!planned.samples || context + planned.num_tokens == slot.num_tokens());
  return {
      .slot = planned.slot,
      .phase = planned.phase,
      .context_length = context,
      .tokens = std::span(slot.tokens)
                    .subspan(static_cast<size_t>(context), static_cast<size_t>(planned.num_tokens)),
      .draft_tokens = std::span(slot.drafts).first(static_cast<size_t>(num_drafts)),
      .samples = planned.samples,
      .block_tables = planned.tables->blocks(),
      .prompt_logits = planned.phase != Phase::kDecode && slot.scores_prompt};
}

void InlineExecutor::LayOut(const StepPlan& plan) {
  work_.clear();
  work_slots_.clear();
  verified_.clear();
  publishes_.clear();
  plan_index_.clear();
  OUTRIDER_CHECK(outputs().unread.empty());
  std::vector<RequestResult>& results = outputs().results;
  std::vector<int32_t>& num_drafts = outputs().num_drafts;
  num_drafts.assign(plan.requests.size(), 0);
  while (results.size() < plan.requests.size()) {
    results.emplace_back().verified.tokens.reserve(static_cast<size_t>(max_drafts()) + 1);
  }
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    RequestSlot& slot = SlotAt(planned.slot);
    RequestResult& result = results[i];
    // Also of a token that is not read it is known whether it is the last.
    result.ran = slot.parameters != nullptr && !slot.ended &&
                 slot.num_tokens() < slot.parameters->max_total_tokens;
    result.drafts.clear();
    result.grammar_failed = result.grammar_complete = false;
    result.prompt_logprobs.clear();
    if (!result.ran) continue;
    work_.push_back(WorkOf(planned, slot));
    work_slots_.push_back(&slot);
    verified_.push_back(&result.verified);
    publishes_.push_back(planned.publishes ? 1 : 0);
    plan_index_.push_back(i);
    // The layout reads these next, for one request after the other.
    const RequestWork& work = work_.back();
    Prefetch(work.tokens.data());
    Prefetch(work.draft_tokens.data());
    for (size_t g = 0; g < work.block_tables.size(); ++g) {
      Prefetch(work.block_tables[g].data() +
               work.context_length / layout_.groups()[g].tokens_per_block);
    }
  }
  layout_.Assign(work_);
}

void InlineExecutor::Forward() {
  const Ops& ops = parts_.model->device().ops;
  attention_.Assign(layout_);
  inputs_->Assign(layout_, attention_, RowCount::kRounded);
  const int64_t rows = inputs_->num_rows();
  hidden_ = FirstRows(ops, hidden_memory_, rows, parts_.model->output_width());
  taps_.clear();
  if (parts_.drafter && !parts_.drafter->taps().empty()) {
    const std::span<const int32_t> layers = parts_.drafter->taps();
    const int64_t width = parts_.model->hidden_size();
    tapped_ = FirstRows(ops, tapped_memory_, rows, static_cast<int64_t>(layers.size()) * width);
    for (const int32_t layer : layers) {
      const auto column = static_cast<int64_t>(taps_.size()) * width;
      taps_.push_back({layer, tapped_.Columns(column, width)});
    }
  }
  parts_.model->Forward(*inputs_, *parts_.cache, hidden_, taps_);
}

void InlineExecutor::Verify() {
  const LogitsInput input{.layout = layout_,
                          .hidden = hidden_,
                          .work = work_,
                          .slots = work_slots_,
                          .max_drafts = max_drafts()};
  if (CanReadLater() && logits_pass_.VerifyLater(input, verified_)) return ReadLater();
  StepOutputs& before = OutputsOf(last_launched_ - 1);
  if (!before.unread.empty()) Read(before);
  logits_pass_.Verify(input, verified_);
  logits_pass_.ScorePrompts(input);
  for (const RequestRows& rows : layout_.requests()) Take(rows);
}

void InlineExecutor::Take(const RequestRows& rows) {
  const auto w = static_cast<size_t>(rows.work_index);
  RequestSlot& slot = *work_slots_[w];
  RequestResult& result = outputs().results[plan_index_[w]];
  const int32_t accepted = work_[w].samples ? result.verified.num_accepted : 0;
  slot.num_computed = StartOfDrafts(rows, accepted).frontier + 1;
  if (!work_[w].samples) return;
  for (const int32_t draft : work_[w].draft_tokens) {
    result.drafts.push_back(parts_.model->device().ops.ReadToken(draft));
  }
  slot.drafts.clear();
  slot.Take(slot.tokens.size(), eos_token_ids(), result);
}

bool InlineExecutor::CanReadLater() const {
  if (layout_.logits_rows().empty()) return false;
  return std::ranges::all_of(work_, [&](const RequestWork& work) {
    const RequestSlot& slot = slots_[static_cast<size_t>(work.slot)];
    return !work.prompt_logits && !slot.grammar && !slot.processors;
  });
}

void InlineExecutor::ReadLater() {
  for (const RequestRows& rows : layout_.requests()) {
    const auto w = static_cast<size_t>(rows.work_index);
    RequestSlot& slot = *work_slots_[w];
    const UnreadResult unread = {&slot, slot.tokens.size(), slot.parameters,
                                 &outputs().results[plan_index_[w]]};
    if (parts_.drafter) {
      outputs().unread.push_back(unread);
      continue;
    }
    slot.num_computed = rows.context_length + rows.query_length;
    if (!work_[w].samples) continue;
    outputs().unread.push_back(unread);
    slot.tokens.push_back(TokenOfPlace(SlotPlaces(rows.slot, max_drafts()).last_token()));
  }
}

void InlineExecutor::Read(StepOutputs& outputs) {
  logits_pass_.Collect();
  for (size_t i = 0; i < outputs.unread.size(); ++i) {
    const UnreadResult& unread = outputs.unread[i];
    // Of a request that has ended before, as of one that has left, it is for nobody.
    if (unread.slot == nullptr || unread.slot->ended) continue;
    if (parts_.drafter) {
      Take(layout_.requests()[i]);
    } else {
      unread.slot->Take(unread.index, eos_token_ids(), *unread.result);
    }
  }
  outputs.unread.clear();
}

void InlineExecutor::BeginDrafts() {
  const Stopwatch watch(seconds_.propose);
  draft_requests_.clear();
  for (const RequestRows& rows : layout_.requests()) {
    RequestSlot& slot = *work_slots_[static_cast<size_t>(rows.work_index)];
    DraftRequest request = DraftRequestOf(rows, StartOfDrafts(rows, rows.num_drafts).frontier);
    const SlotPlaces places(rows.slot, max_drafts());
    for (int32_t j = 0; j < rows.num_logits_rows; ++j) {
      slot.tokens.push_back(TokenOfPlace(places.drawn(j)));
    }
    request.tokens = slot.tokens;
    draft_requests_.push_back(request);
  }
  parts_.drafter->Begin(draft_requests_, wanted_drafts_, drafter_reads());
  for (const RequestRows& rows : layout_.requests()) {
    RequestSlot& slot = *work_slots_[static_cast<size_t>(rows.work_index)];
    slot.tokens.resize(slot.tokens.size() - static_cast<size_t>(rows.num_logits_rows));
  }
}

DraftRequest InlineExecutor::DraftRequestOf(const RequestRows& rows, int32_t frontier) {
  const auto w = static_cast<size_t>(rows.work_index);
  RequestSlot& slot = *work_slots_[w];
  const bool drawn = parts_.probabilistic_drafts && slot.sampling().temperature > 0;
  if (drawn && parts_.acceptance.method == RejectionMethod::kStandard) {
    slot.draft_probs.resize(static_cast<size_t>(max_drafts()) * static_cast<size_t>(vocab_size()));
  }
  return {.slot = rows.slot,
          .tokens = slot.tokens,
          .prompt_length = slot.parameters->prompt_length,
          .first_position = rows.context_length,
          .frontier = frontier,
          .first_row = rows.first_row,
          .num_rows = rows.query_length,
          .num_drafts = work_[w].samples ? slot.UsefulDrafts(wanted_drafts_) : 0,
          .block_tables = work_[w].block_tables,
          .sampling = drawn ? &slot.sampling() : nullptr,
          .draft_probs = slot.draft_probs.empty() ? nullptr : slot.draft_probs.data(),
          .seed = slot.parameters->seed};
}

void InlineExecutor::Propose() {
  draft_requests_.clear();
  draft_work_.clear();
  for (const RequestRows& rows : layout_.requests()) {
    const auto w = static_cast<size_t>(rows.work_index);
    const RequestSlot& slot = *work_slots_[w];
    if (slot.parameters == nullptr || slot.ended) continue;
    draft_requests_.push_back(DraftRequestOf(rows, slot.num_computed - 1));
    draft_work_.push_back(w);
  }
  const MatrixView<int32_t> drafts = DraftFor(wanted_drafts_);
  const Ops& ops = parts_.model->device().ops;
  for (size_t i = 0; i < draft_requests_.size(); ++i) {
    const int32_t* row = drafts.row(static_cast<int64_t>(i));
    const int32_t* end = std::find(row, row + draft_requests_[i].num_drafts, kNoDraft);
    RequestSlot& slot = *work_slots_[draft_work_[i]];
    slot.drafts.assign(row, end);
    // Drafts that the grammar refuses need no verify row; but the first that was drawn for
    // rejection sampling does, as what replaces it depends on what it was drawn from.
    if (slot.grammar) {
      ops.ReadTokens();
      for (int32_t& draft : slot.drafts) draft = ops.ReadToken(draft);
      const size_t refused = slot.draft_probs.empty() ? 0 : 1;
      const size_t allowed = slot.grammar->CountAllowed(slot.drafts);
      slot.drafts.resize(std::min(slot.drafts.size(), allowed + refused));
    }
    outputs().num_drafts[plan_index_[draft_work_[i]]] = static_cast<int32_t>(slot.drafts.size());
  }
  FinishEntries();
}

MatrixView<int32_t> InlineExecutor::DraftFor(int32_t depth) {
  const auto count = static_cast<int64_t>(draft_requests_.size());
  drafts_.resize(static_cast<size_t>(count * max_drafts()));
  const MatrixView<int32_t> drafts(drafts_.data(), count, max_drafts());
  parts_.drafter->Propose(draft_requests_, depth, drafter_reads(), drafts);
  return drafts;
}

void InlineExecutor::FinishEntries() {
  draft_requests_.clear();
  for (const RequestRows& rows : layout_.requests()) {
    const auto w = static_cast<size_t>(rows.work_index);
    const RequestSlot& slot = *work_slots_[w];
    if (slot.parameters == nullptr || !slot.ended || publishes_[w] == 0) continue;
    // The last token has no row, nor have drafts behind it.
    const int32_t frontier = std::min(slot.num_computed, slot.num_tokens() - 1) - 1;
    if (frontier < rows.context_length) continue;  // it ended without a token
    draft_requests_.push_back(DraftRequestOf(rows, frontier));
    draft_requests_.back().num_drafts = 0;
  }
  if (!draft_requests_.empty()) DraftFor(/*depth=*/0);
}

}  // namespace outrider
