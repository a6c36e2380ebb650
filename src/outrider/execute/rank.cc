#include "outrider/execute/rank.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <utility>

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

Rank::Rank(RankParts parts)
    : parts_(std::move(parts)),
      logits_pass_(*parts_.model, *parts_.pool, Verifier(parts_.logprobs_mode, parts_.acceptance),
                   max_drafts()),
      attention_(parts_.model->attention()),
      inputs_(ops().MakeStepInputs()),
      routed_(RoutedShapeOf(parts_.model->config())) {
  if (parts_.ranks) {
    parts_.ranks->ShowProgress([pool = parts_.pool.get()] { return pool->progress(); });
  }
  ops().KeepTokens(parts_.num_slots * SlotPlaces::PerSlot(max_drafts()));
}

// The operations may serve another executor afterwards: they have nothing that was not waited for.
Rank::~Rank() {
  try {
    WaitForUnread(0);
  } catch (const std::exception& error) {
    spdlog::warn("rank {} leaves results that did not come: {}", index(), error.what());
  }
}

RankParts Rank::TakeApart() && {
  WaitForUnread(0);
  return std::move(parts_);
}

void Rank::Admit(int32_t slot, int32_t cached_tokens) {
  if (parts_.drafter) parts_.drafter->Reset(slot, cached_tokens);
}

int64_t Rank::page_bytes() const {
  return parts_.cache->page_bytes() + (parts_.drafter ? parts_.drafter->page_bytes() : 0);
}

void Rank::ReadPage(int32_t page, std::span<std::byte> to) {
  OUTRIDER_CHECK(HasPage(page));
  const std::span<std::byte> own = CachePage(page);
  ops().CopyToHost(own.data(), to.first(own.size()));
  if (parts_.drafter) parts_.drafter->ReadPage(page, to.subspan(own.size()));
}

void Rank::WritePage(int32_t page, std::span<const std::byte> from) {
  const auto bytes = static_cast<size_t>(parts_.cache->page_bytes());
  if (HasPage(page)) ops().CopyFromHost(from.first(bytes), CachePage(page).data());
  if (parts_.drafter) parts_.drafter->WritePage(page, from.subspan(bytes));
}

void Rank::Forward(const BatchLayout& layout, bool tells_experts) {
  attention_.Assign(layout);
  inputs_->Assign(layout, attention_, RowCount::kRounded);
  const int64_t rows = inputs_->num_rows();
  hidden_ = FirstRows(ops(), hidden_memory_, rows, parts_.model->output_width());
  taps_.clear();
  if (parts_.drafter && !parts_.drafter->taps().empty()) {
    const std::span<const int32_t> layers = parts_.drafter->taps();
    const int64_t width = parts_.model->hidden_size();
    tapped_ = FirstRows(ops(), tapped_memory_, rows, static_cast<int64_t>(layers.size()) * width);
    for (const int32_t layer : layers) {
      const auto column = static_cast<int64_t>(taps_.size()) * width;
      taps_.push_back({layer, tapped_.Columns(column, width)});
    }
  }
  TargetTaps taps = {.layers = taps_};
  if (tells_experts && is_first()) {
    experts_.clear();
    const size_t bytes = static_cast<size_t>(rows * routed_.RowSize()) * sizeof(int16_t);
    // Layers without experts leave the zeros of new memory.
    if (experts_on_device_.size() < bytes) {
      experts_on_device_ = ops().Allocate(std::max(bytes, 2 * experts_on_device_.size()));
    }
    taps.experts = {experts_on_device_.as<int16_t>(), routed_};
  }
  parts_.model->Forward(*inputs_, *parts_.cache, hidden_, taps);
}

std::span<const int16_t> Rank::ExpertsOf(int32_t first_row, int32_t rows) {
  if (experts_.empty()) {
    experts_.resize(static_cast<size_t>(inputs_->num_rows() * routed_.RowSize()));
    ops().CopyToHost(experts_on_device_.data(), std::as_writable_bytes(std::span(experts_)));
  }
  const auto size = static_cast<size_t>(routed_.RowSize());
  return std::span(experts_).subspan(static_cast<size_t>(first_row) * size,
                                     static_cast<size_t>(rows) * size);
}

void Rank::Verify(const StepLayout& step) {
  if (is_first()) return logits_pass_.Verify(step, hidden_);
  ReadTokens();
  logits_pass_.FollowVerify(step, hidden_);
}

std::optional<Ticket> Rank::LaunchVerify(const StepLayout& step) {
  if (is_first()) return logits_pass_.Launch(step, hidden_);
  WaitForUnread(1);
  const std::optional<Ticket> ticket = logits_pass_.Launch(step, hidden_);
  if (ticket) unread_.push_back(*ticket);
  return ticket;
}

void Rank::WaitForUnread(size_t left) {
  for (; unread_.size() > left; unread_.pop_front()) logits_pass_.Wait(unread_.front());
}

void Rank::ReadTokens() {
  WaitForUnread(0);
  ops().ReadTokens();
}

void Rank::ScorePrompts(const StepLayout& step) {
  if (is_first()) return logits_pass_.ScorePrompts(step, hidden_);
  logits_pass_.FollowScores(step, hidden_);
}

void Rank::Propose(std::span<const DraftRequest> requests, int32_t depth,
                   MatrixView<TokenRef> drafts) {
  if (!is_first()) {
    // Drafts that were launched are not read here.
    if (HasFinishedEntries()) {
      WaitForUnread(0);
    } else {
      ReadTokens();
    }
    drafts_.resize(static_cast<size_t>(drafts.rows * drafts.cols));
    drafts = {drafts_.data(), drafts.rows, drafts.cols};
  }
  if (const std::optional<Ticket> launched = std::exchange(launched_drafts_, std::nullopt)) {
    return parts_.drafter->Wait(*launched, requests, drafts);
  }
  parts_.drafter->Propose(requests, depth, drafter_reads(), drafts);
}

const SamplingParams* Rank::DraftSampling(const RequestSlot& slot) const {
  return parts_.probabilistic_drafts && slot.sampling().temperature > 0 ? &slot.sampling()
                                                                        : nullptr;
}

bool Rank::KeepsDraftProbs() const {
  return parts_.acceptance.method == RejectionMethod::kStandard;
}

double Rank::kernel_seconds() const {
  const double of_drafter = parts_.drafter ? parts_.drafter->busy_seconds() : 0;
  return parts_.model->busy_seconds() + of_drafter;
}

ReplayCounts Rank::passes() const {
  ReplayCounts passes = parts_.model->replay_counts();
  if (parts_.drafter) {
    const ReplayCounts own = parts_.drafter->replay_counts();
    passes.repeated += own.repeated;
    passes.launched += own.launched;
  }
  return passes;
}

}  // namespace outrider
