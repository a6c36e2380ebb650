#include "outrider/draft/module_drafter.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

ModuleDrafter::ModuleDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
                             const ModuleDrafterOptions& options, int32_t num_modules,
                             const DrafterReach& reach)
    : model_(std::move(model)),
      cache_(cache),
      options_(options),
      num_modules_(num_modules),
      reach_(reach),
      slots_(static_cast<size_t>(options.num_slots)),
      target_rows_(*model_, cache, options.kept_rows, options.num_slots, reach.rerun_tokens),
      no_rows_(model_->device().ops.MakeStepInputs()) {
  OUTRIDER_CHECK(options.k >= 1);
  OUTRIDER_CHECK(num_modules >= 1 && num_modules <= model_->num_modules());
  for (SlotState& state : slots_) state.next.resize(static_cast<size_t>(num_modules));
}

void ModuleDrafter::Reset(int32_t slot, int32_t computed) {
  SlotState& state = slots_[static_cast<size_t>(slot)];
  state.first = computed;
  state.frontier = computed - 1;
  state.depth = 0;
  state.drafts.clear();
  std::fill(state.next.begin(), state.next.end(), 0);  // TakeStep skips what is final
}

int32_t ModuleDrafter::LastRightToken(const SlotState& state, const DraftRequest& request) const {
  int32_t right = state.last_known;
  for (const TokenRef draft : state.drafts) {
    const auto next = static_cast<size_t>(right) + 1;
    if (next >= request.tokens.size()) break;
    if (request.tokens[next].token() != model_->device().ops.ReadToken(draft)) break;
    ++right;
  }
  return right;
}

void ModuleDrafter::TakeStep(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  OUTRIDER_CHECK(r.first_position == state.frontier + 1, "slot {} jumps from {} to {}", r.slot,
                 state.frontier, r.first_position);
  target_rows_.TakeStep(r);
  // The modules of the last pass read drafts, which were right up to this token.
  Advance(state, r, LastRightToken(state, r), r.first_position);
  state.frontier = r.frontier;
  SkipFinished(r);
}

void ModuleDrafter::SkipFinished(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  for (int32_t m = 0; m < num_modules_; ++m) {
    int32_t& next = state.next[static_cast<size_t>(m)];
    next = target_rows_.SkipFinished(r, m, next, r.first_position);
  }
}

void ModuleDrafter::Advance(SlotState& state, const DraftRequest& r, int32_t right, int32_t end) {
  if (state.depth == 0) return;
  const int32_t first = state.next[static_cast<size_t>(state.depth) - 1];
  for (int32_t m = 0; m < state.depth; ++m) {
    int32_t& next = state.next[static_cast<size_t>(m)];
    next = std::max(next, std::min(right - m, end));
  }
  target_rows_.MarkFinished(r, first, state.next);
}

void ModuleDrafter::CatchUp(const DraftRequest& r, int32_t depth) {
  const SlotState& state = SlotAt(r.slot);
  const int32_t& start = state.next[static_cast<size_t>(depth) - 1];
  SkipFinished(r);  // what others have caught up with
  for (; start < state.first || r.first_position - start > kMostRowsBehind; SkipFinished(r)) {
    DraftRequest part = r;
    part.frontier = std::min(start + kCatchUpRows, r.first_position) - 1;
    part.first_position = part.frontier + 1;
    part.num_rows = 0;
    part.num_drafts = 0;
    RunPass({.requests = {&part, 1}, .depth = depth});
    FinishPass(part, depth, {});
  }
}

void ModuleDrafter::FinishPass(const DraftRequest& r, int32_t depth,
                               std::span<const TokenRef> drafts) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  state.depth = depth;
  state.last_known = static_cast<int32_t>(r.tokens.size()) - 1;
  state.drafts.assign(drafts.begin(), drafts.end());
  Advance(state, r, state.last_known, r.frontier + 1);
}

std::optional<Ticket> ModuleDrafter::Launch(std::span<const DraftRequest> requests, int32_t depth,
                                            Tensor target) {
  OUTRIDER_CHECK(launched_slots_.empty());
  depth = DepthOf(depth);
  const int32_t modules = std::min(depth, num_modules_);
  if (modules == 0 || !CanLaunch(modules)) return std::nullopt;
  for (const DraftRequest& r : requests) {
    SkipFinished(r);
    const SlotState& state = SlotAt(r.slot);
    const int32_t start = state.next[static_cast<size_t>(modules) - 1];
    if (start < state.first || r.first_position - start > kMostRowsBehind) return std::nullopt;
  }
  for (const DraftRequest& r : requests) launched_slots_.push_back(r.slot);
  launched_depth_ = depth;
  launched_rows_ = model_->ReadTarget(target);
  LaunchPass({.requests = requests, .depth = modules, .target = launched_rows_});
  return ++last_launched_;
}

void ModuleDrafter::Wait(Ticket ticket, std::span<const DraftRequest> requests,
                         MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(ticket == last_launched_ && !launched_slots_.empty());
  launched_.clear();
  for (const DraftRequest& r : requests) {
    size_t at = launched_.empty() ? 0 : launched_.back() + 1;
    while (launched_slots_.at(at) != r.slot) ++at;
    launched_.push_back(at);
  }
  launched_slots_.clear();
  Draft(requests, launched_depth_, launched_rows_, drafts);
}

void ModuleDrafter::Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
                            MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(depth >= 0 && depth <= options_.k && launched_slots_.empty());
  launched_.clear();
  Draft(requests, DepthOf(depth), model_->ReadTarget(target), drafts);
}

void ModuleDrafter::Draft(std::span<const DraftRequest> requests, int32_t depth, Tensor rows,
                          MatrixView<TokenRef> drafts) {
  const int32_t modules = std::min(depth, num_modules_);
  for (const DraftRequest& r : requests) {
    OUTRIDER_CHECK(r.num_drafts <= depth);
    TakeStep(r);
  }
  target_rows_.CopyFrom(*model_, rows);
  if (modules > 0 && !requests.empty()) {
    for (const DraftRequest& r : requests) CatchUp(r, modules);
    RunPass({requests, modules, rows, drafts, launched_});
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    target_rows_.KeepLast(requests[i]);
    FinishPass(requests[i], modules,
               {drafts.row(static_cast<int64_t>(i)), static_cast<size_t>(requests[i].num_drafts)});
  }
  target_rows_.CopyFrom(*model_, rows);
}

}  // namespace outrider
