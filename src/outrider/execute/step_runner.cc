#include "outrider/execute/step_runner.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/batch/padded_drafts.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

namespace {

std::vector<RankParts> OneRank(RankParts parts) {
  std::vector<RankParts> ranks;
  ranks.push_back(std::move(parts));
  return ranks;
}

}  // namespace

StepRunner::StepRunner(RankParts parts) : StepRunner(OneRank(std::move(parts))) {}

StepRunner::StepRunner(std::vector<RankParts> parts, double rank_seconds)
    : ranks_(std::move(parts), rank_seconds),
      slots_(first().num_slots(), eos_token_ids(), vocab_size(), first().max_drafts()),
      step_(first().cache().config().groups) {}

void StepRunner::Admit(const SlotAdmission& admission) {
  slots_.Admit(admission);
  ranks_.Run([&](Rank& rank) { rank.Admit(admission.slot, admission.cached_tokens); });
}

void StepRunner::Release(int32_t slot) {
  slots_.Release(slot);
  for (StepOutputs& outputs : outputs_) {
    for (UnreadResult& unread : outputs.unread) {
      if (unread.slot == &slots_.At(slot)) unread.slot = nullptr;
    }
  }
  if (slots_.AllFree()) first().ops().PauseIdleClock();
}

void StepRunner::ReadPage(int32_t page, std::span<std::byte> to) {
  const auto bytes = static_cast<size_t>(first().page_bytes());
  ranks_.Run([&](Rank& rank) {
    if (first().divides_cache()) {
      if (rank.HasPage(page)) rank.ReadPage(page, to);
      return;
    }
    rank.ReadPage(page, to.subspan(static_cast<size_t>(rank.index()) * bytes, bytes));
  });
}

void StepRunner::WritePage(int32_t page, std::span<const std::byte> from) {
  const auto bytes = static_cast<size_t>(first().page_bytes());
  ranks_.Run([&](Rank& rank) {
    if (first().divides_cache()) return rank.WritePage(page, from);
    rank.WritePage(page, from.subspan(static_cast<size_t>(rank.index()) * bytes, bytes));
  });
}

bool StepRunner::CanLaunchAhead() const {
  return last_launched_ == last_ended_ + 1 && !OutputsOf(last_launched_).for_drafter &&
         !Ready(last_launched_);
}

bool StepRunner::Ready(Ticket ticket) const {
  const StepOutputs& outputs = OutputsOf(ticket);
  return outputs.unread.empty() || first().Ready(outputs.verify);
}

void StepRunner::WhileLaunching(const std::function<void()>& look) {
  if (!look) return first().SetBetweenLaunches({});
  first().SetBetweenLaunches([this, look] {
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      look();
    }
    seconds_.forward -= seconds;  // it is inside
  });
}

Ticket StepRunner::Launch(const StepPlan& plan, int32_t num_drafts) {
  OUTRIDER_CHECK(
      last_launched_ == last_ended_ ||
      (last_launched_ == last_ended_ + 1 && !outputs().unread.empty() && !outputs().for_drafter));
  ++last_launched_;
  wanted_drafts_ = num_drafts;
  LayOut(plan);
  if (!step_.empty()) {
    {
      const Stopwatch watch(seconds_.forward);
      ranks_.Run([&](Rank& rank) { rank.Forward(step_.rows(), step_.tells_experts()); });
    }
    {
      const Stopwatch watch(seconds_.verify);
      Verify();
    }
    if (outputs().for_drafter && !outputs().unread.empty()) LaunchDrafts();
  }
  return last_launched_;
}

std::span<const RequestResult> StepRunner::Wait(Ticket ticket) {
  OUTRIDER_CHECK(ticket == last_ended_ + 1 && ticket <= last_launched_);
  StepOutputs& outputs = OutputsOf(ticket);
  if (!outputs.unread.empty()) {
    const Stopwatch watch(seconds_.verify);
    ReadTokens(outputs);
  }
  return std::span(outputs.results).first(outputs.num_drafts.size());
}

std::span<const int32_t> StepRunner::WaitDrafts(Ticket ticket) {
  OUTRIDER_CHECK(ticket == last_ended_ + 1 && OutputsOf(ticket).unread.empty());
  if (OutputsOf(ticket).for_drafter) {
    OUTRIDER_CHECK(ticket == last_launched_);
    const Stopwatch watch(seconds_.propose);
    Propose();
  }
  last_ended_ = ticket;
  return OutputsOf(ticket).num_drafts;
}

ExecutorSeconds StepRunner::seconds() const {
  ExecutorSeconds seconds = seconds_;
  seconds.kernels = first().kernel_seconds();
  seconds.idle = first().ops().idle_seconds();
  return seconds;
}

void StepRunner::LayOut(const StepPlan& plan) {
  StepOutputs& outputs = this->outputs();
  OUTRIDER_CHECK(outputs.unread.empty());
  outputs.num_drafts.assign(plan.requests.size(), 0);
  while (outputs.results.size() < plan.requests.size()) {
    outputs.results.emplace_back().verified.tokens.reserve(
        static_cast<size_t>(first().max_drafts()) + 1);
  }
  step_.Assign(plan, slots_, outputs.results);
  outputs.for_drafter = NeedsDrafter();
  outputs.entries_finished = false;
  if (outputs.for_drafter || !first().has_drafter()) return;
  for (const RequestRows& rows : step_.requests()) {
    step_.slot(rows).draft_limit = DraftLimit::kSchedule;
  }
}

bool StepRunner::NeedsDrafter() const {
  if (!first().has_drafter()) return false;
  if (first().drafter_keeps_state() || wanted_drafts_ > 0) return true;
  // Only the device would know how many of them were right.
  return std::ranges::any_of(step_.requests(),
                             [](const RequestRows& rows) { return rows.num_drafts > 0; });
}

void StepRunner::Verify() {
  if (CanLeaveTokens()) {
    std::optional<Ticket> ticket;
    ranks_.Run([&](Rank& rank) {
      const std::optional<Ticket> own = rank.LaunchVerify(step_);
      if (rank.index() == 0) ticket = own;
    });
    if (ticket) return LeaveTokens(*ticket);
  }
  StepOutputs& before = OutputsOf(last_launched_ - 1);
  if (!before.unread.empty()) ReadTokens(before);
  ranks_.Run([&](Rank& rank) {
    rank.Verify(step_);
    rank.ScorePrompts(step_);
  });
  for (const RequestRows& rows : step_.requests()) Take(rows);
}

void StepRunner::Take(const RequestRows& rows) {
  const RequestWork& work = step_.work(rows);
  RequestSlot& slot = step_.slot(rows);
  RequestResult& result = step_.result(rows);
  const int32_t accepted = work.samples ? result.verified.num_accepted : 0;
  const DraftStart start = StartOfDrafts(rows, accepted);
  slot.num_computed = start.frontier + 1;
  if (slot.parameters->experts_from) {
    const std::span<const int16_t> experts =
        first().ExpertsOf(rows.first_row, rows.query_length - start.num_rejected);
    result.experts.assign(experts.begin(), experts.end());
    result.experts_from = rows.context_length;
  }
  if (!work.samples) return;
  for (const TokenRef draft : work.draft_tokens) {
    result.drafts.push_back(first().ops().ReadVerifiedToken(draft));
  }
  slot.drafts.clear();
  slots_.Take(slot, slot.tokens.size(), result);
}

bool StepRunner::CanLeaveTokens() {
  if (step_.rows().logits_rows().empty()) return false;
  // A rank's own requests are laid out by where their rows are.
  if (first().divides_cache() && outputs().for_drafter) return false;
  // Experts are taken with the tokens, before another step writes its own.
  if (step_.tells_experts() && !outputs().for_drafter) return false;
  return std::ranges::all_of(step_.requests(), [&](const RequestRows& rows) {
    const RequestSlot& slot = step_.slot(rows);
    return !step_.work(rows).prompt_logits && !slot.grammar && !slot.processors;
  });
}

void StepRunner::LeaveTokens(Ticket verify) {
  outputs().verify = verify;
  for (const RequestRows& rows : step_.requests()) {
    RequestSlot& slot = step_.slot(rows);
    const UnreadResult unread = {&slot, slot.tokens.size(), slot.parameters, &step_.result(rows)};
    if (outputs().for_drafter) {
      outputs().unread.push_back(unread);
      continue;
    }
    slot.num_computed = rows.context_length + rows.query_length;
    if (!step_.work(rows).samples) continue;
    outputs().unread.push_back(unread);
    slot.tokens.push_back(TokenRef::At(SlotPlaces(rows.slot, first().max_drafts()).last_token()));
  }
}

void StepRunner::ReadTokens(StepOutputs& outputs) {
  first().Wait(outputs.verify);
  for (size_t i = 0; i < outputs.unread.size(); ++i) {
    const UnreadResult& unread = outputs.unread[i];
    // Nobody wants what a request that has ended before, or has left, would get.
    if (unread.slot == nullptr || unread.slot->ended) continue;
    if (outputs.for_drafter) {
      Take(step_.requests()[i]);
    } else {
      slots_.Take(*unread.slot, unread.index, *unread.result);
    }
  }
  outputs.unread.clear();
}

void StepRunner::LaunchDrafts() {
  const Stopwatch watch(seconds_.propose);
  draft_requests_.clear();
  for (const RequestRows& rows : step_.requests()) {
    RequestSlot& slot = step_.slot(rows);
    DraftRequest request = DraftRequestOf(rows, StartOfDrafts(rows, rows.num_drafts).frontier);
    const SlotPlaces places(rows.slot, first().max_drafts());
    for (int32_t j = 0; j < rows.num_logits_rows; ++j) {
      slot.tokens.push_back(TokenRef::At(places.drawn(j)));
    }
    request.tokens = slot.tokens;
    draft_requests_.push_back(request);
  }
  ranks_.Run([&](Rank& rank) { rank.LaunchDrafts(draft_requests_, wanted_drafts_); });
  outputs().entries_finished = first().HasFinishedEntries();
  for (const RequestRows& rows : step_.requests()) {
    RequestSlot& slot = step_.slot(rows);
    slot.tokens.resize(slot.tokens.size() - static_cast<size_t>(rows.num_logits_rows));
  }
}

DraftRequest StepRunner::DraftRequestOf(const RequestRows& rows, int32_t frontier) {
  const RequestWork& work = step_.work(rows);
  RequestSlot& slot = step_.slot(rows);
  const SamplingParams* const sampling = first().DraftSampling(slot);
  if (sampling != nullptr && first().KeepsDraftProbs()) {
    slot.draft_probs.resize(static_cast<size_t>(first().max_drafts()) *
                            static_cast<size_t>(vocab_size()));
  }
  return {.slot = rows.slot,
          .tokens = slot.tokens,
          .prompt_length = slot.parameters->prompt_length,
          .first_position = rows.context_length,
          .frontier = frontier,
          .first_row = rows.first_row,
          .num_rows = rows.query_length,
          .num_drafts = work.samples ? slot.UsefulDrafts(wanted_drafts_) : 0,
          .always_drafts = slot.parameters->always_drafts,
          .block_tables = work.block_tables,
          .sampling = sampling,
          .draft_probs = slot.draft_probs.empty() ? nullptr : slot.draft_probs.data(),
          .seed = slot.parameters->seed};
}

void StepRunner::Propose() {
  draft_requests_.clear();
  draft_rows_.clear();
  for (const RequestRows& rows : step_.requests()) {
    const RequestSlot& slot = step_.slot(rows);
    if (slot.parameters == nullptr || slot.ended) continue;
    draft_requests_.push_back(DraftRequestOf(rows, slot.num_computed - 1));
    draft_rows_.push_back(&rows);
  }
  const MatrixView<TokenRef> drafts = DraftFor(wanted_drafts_);
  const Ops& ops = first().ops();
  for (size_t i = 0; i < draft_requests_.size(); ++i) {
    const TokenRef* row = drafts.row(static_cast<int64_t>(i));
    const TokenRef* end = std::find(row, row + draft_requests_[i].num_drafts, TokenRef());
    RequestSlot& slot = step_.slot(*draft_rows_[i]);
    slot.drafts.assign(row, end);
    const auto proposed = static_cast<int32_t>(slot.drafts.size());
    // Drafts that the grammar refuses need no verify row; but the first that was drawn for
    // rejection sampling does, as what replaces it depends on what it was drawn from.
    if (slot.grammar) {
      ops.ReadTokens();
      for (TokenRef& draft : slot.drafts) draft = ops.ReadToken(draft);
      const size_t refused = slot.draft_probs.empty() ? 0 : 1;
      const size_t allowed = slot.grammar->CountAllowed(KnownTokens(slot.drafts));
      slot.drafts.resize(std::min(slot.drafts.size(), allowed + refused));
    }
    const auto allowed_drafts = static_cast<int32_t>(slot.drafts.size());
    slot.draft_limit = LimitOf({.most = first().max_drafts(),
                                .scheduled = wanted_drafts_,
                                .requested = slot.RequestedDrafts(wanted_drafts_),
                                .useful = draft_requests_[i].num_drafts,
                                .proposed = proposed,
                                .allowed = allowed_drafts});
    outputs().num_drafts[step_.plan_index(*draft_rows_[i])] = allowed_drafts;
  }
  FinishEntries();
}

MatrixView<TokenRef> StepRunner::DraftFor(int32_t depth) {
  const auto count = static_cast<int64_t>(draft_requests_.size());
  const int32_t k = first().max_drafts();
  drafts_.resize(static_cast<size_t>(count * k));
  const MatrixView<TokenRef> drafts(drafts_.data(), count, k);
  ranks_.Run([&](Rank& rank) { rank.Propose(draft_requests_, depth, drafts); });
  return drafts;
}

void StepRunner::FinishEntries() {
  if (outputs().entries_finished) return;
  draft_requests_.clear();
  for (const RequestRows& rows : step_.requests()) {
    const RequestSlot& slot = step_.slot(rows);
    if (slot.parameters == nullptr || !slot.ended || !step_.publishes(rows)) continue;
    // The last token has no row, nor have drafts behind it.
    const int32_t frontier = std::min(slot.num_computed, slot.num_tokens() - 1) - 1;
    if (frontier < rows.context_length) continue;  // it ended without a token
    draft_requests_.push_back(DraftRequestOf(rows, frontier));
    draft_requests_.back().num_drafts = 0;
  }
  if (draft_requests_.empty()) return;
  // The drafter compares their last drafts with their tokens, and others have drawn since.
  first().ops().ReadTokens();
  DraftFor(/*depth=*/0);
}

}  // namespace outrider
