#include "outrider/draft/block_drafter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/ops/logits_tile.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

BlockDrafter::BlockDrafter(std::unique_ptr<BlockDraftModel> model, KvCache& cache,
                           const BlockDrafterOptions& options)
    : model_(std::move(model)),
      cache_(cache),
      options_(options),
      entry_rows_(*model_, cache.config().groups),
      block_rows_(*model_, cache.config().groups),
      no_rows_(model_->device().ops.MakeStepInputs()),
      previous_(*model_),
      hidden_(*model_) {
  OUTRIDER_CHECK(options.k >= 1 && options.k <= model_->block_size());
}

int32_t BlockDrafter::PlaceInCache(std::span<const std::vector<int32_t>> block_tables) const {
  int32_t tokens = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < block_tables.size(); ++g) {
    tokens = std::min(tokens, static_cast<int32_t>(block_tables[g].size()) *
                                  cache_.config().groups[g].tokens_per_block);
  }
  return tokens;
}

void BlockDrafter::LayOutEntries(std::span<const DraftRequest> requests, bool all_rows) {
  entry_windows_.clear();
  for (const DraftRequest& r : requests) {
    const int32_t end =
        all_rows ? std::max(r.frontier + 1, r.first_position + r.num_rows) : r.frontier + 1;
    entry_windows_.push_back({&r, r.first_position, end, r.prompt_length});
  }
  // The tokens of the target's rows are not read.
  entry_rows_.Assign(entry_windows_, [](size_t, int32_t) { return 0; });
}

bool BlockDrafter::CanLaunchBlocks(std::span<const DraftRequest> requests) const {
  // The host would wait for confidences.
  if (cut_.cuts()) return false;
  return std::ranges::all_of(requests, [&](const DraftRequest& r) {
    const int32_t end = r.frontier + 1 + model_->block_size();
    return r.num_drafts == 0 || (r.sampling == nullptr && PlaceInCache(r.block_tables) >= end);
  });
}

TokenRef BlockDrafter::LastToken(const DraftRequest& r) const {
  return moves_ ? TokenRef::At(SlotPlaces(r.slot, options_.k).last_token()) : r.tokens.back();
}

void BlockDrafter::LayOutBlocks(std::span<const DraftRequest> requests, bool moves) {
  moves_ = moves;
  block_windows_.clear();
  blocks_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& r = requests[i];
    if (r.num_drafts == 0) continue;
    // Where a request may get no longer, its block ends where its place in the cache does.
    const int32_t block_end =
        std::min(r.frontier + 1 + model_->block_size(), PlaceInCache(r.block_tables));
    OUTRIDER_CHECK(block_end - r.frontier - 1 >= r.num_drafts);
    block_windows_.push_back(
        {.request = &r,
         .start = r.frontier + 1,
         .end = block_end,
         .role_boundary = 0,
         .moved_place = moves ? SlotPlaces(r.slot, options_.k).rejected() : -1});
    blocks_.push_back(i);
  }
  block_rows_.Assign(block_windows_, [&](size_t w, int32_t p) {
    const DraftWindow& window = block_windows_[w];
    return p == window.start ? LastToken(*window.request) : TokenRef(model_->noise_token());
  });
}

Tensor BlockDrafter::ReadEntries(std::span<const DraftRequest> requests, Tensor target) {
  const Tensor main = model_->ReadTarget(target);
  copies_.clear();
  bool in_place = true;
  for (size_t w = 0; w < entry_windows_.size(); ++w) {
    const DraftRequest& r = requests[w];
    for (int32_t p = entry_windows_[w].start; p < entry_windows_[w].end; ++p) {
      const int32_t from = r.first_row + p - r.first_position;
      const int32_t to = entry_rows_.RowOf(w, p);
      in_place = in_place && from == to;
      copies_.Add(from, to);
    }
  }
  // All rows of a step are laid out as the step is.
  if (in_place && entry_rows_.num_rows() <= main.rows) return main.Rows(0, entry_rows_.num_rows());
  const Tensor previous = previous_.Rows(entry_rows_.num_rows());
  model_->CopyRows(main, previous, copies_);
  return previous;
}

std::optional<Ticket> BlockDrafter::Launch(std::span<const DraftRequest> requests, int32_t depth,
                                           Tensor target) {
  OUTRIDER_CHECK(depth >= 0 && depth <= options_.k && last_launched_ == last_waited_);
  LayOutEntries(requests, /*all_rows=*/true);
  const Tensor previous = ReadEntries(requests, target);
  model_->Forward({0, entry_rows_.inputs(), *no_rows_, previous, {}}, cache_);
  launched_slots_.clear();
  if (CanLaunchBlocks(requests)) {
    LayOutBlocks(requests, /*moves=*/true);
    for (const DraftRequest& r : requests) launched_slots_.push_back(r.slot);
    launched_drafts_.assign(requests.size() * static_cast<size_t>(options_.k), TokenRef());
    RunBlocks(requests, {launched_drafts_.data(), std::ssize(requests), options_.k});
  }
  return ++last_launched_;
}

void BlockDrafter::Wait(Ticket ticket, std::span<const DraftRequest> requests,
                        MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(ticket == ++last_waited_ && ticket == last_launched_);
  if (launched_slots_.empty()) {
    LayOutBlocks(requests, /*moves=*/false);
    return RunBlocks(requests, drafts);
  }
  size_t at = 0;
  for (size_t i = 0; i < requests.size(); ++i, ++at) {
    while (launched_slots_.at(at) != requests[i].slot) ++at;
    const auto row = launched_drafts_.begin() + static_cast<ptrdiff_t>(at) * options_.k;
    OUTRIDER_CHECK(std::find(row, row + requests[i].num_drafts, TokenRef()) ==
                   row + requests[i].num_drafts);
    std::copy_n(row, requests[i].num_drafts, drafts.row(static_cast<int64_t>(i)));
  }
}

void BlockDrafter::RunBlocks(std::span<const DraftRequest> requests, MatrixView<TokenRef> drafts) {
  if (blocks_.empty()) return;
  const Tensor hidden = hidden_.Rows(block_rows_.num_rows());
  DrawBlocks(requests, {0, *no_rows_, block_rows_.inputs(), {}, hidden}, drafts);
}

void BlockDrafter::Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
                           MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(depth >= 0 && depth <= options_.k && last_launched_ == last_waited_);
  if (requests.empty()) return;
  LayOutEntries(requests, options_.form == DraftForm::kPadded);
  LayOutBlocks(requests, /*moves=*/false);
  const Tensor previous = ReadEntries(requests, target);
  const Tensor hidden = hidden_.Rows(block_rows_.num_rows());
  const ModulePass pass = {0, entry_rows_.inputs(), block_rows_.inputs(), previous, hidden};
  if (blocks_.empty()) return model_->Forward(pass, cache_);
  DrawBlocks(requests, pass, drafts);
}

void BlockDrafter::DrawBlocks(std::span<const DraftRequest> requests, const ModulePass& pass,
                              MatrixView<TokenRef> drafts) {
  const auto k = static_cast<size_t>(options_.k);
  confidences_.assign(blocks_.size() * k, 0);
  const size_t tile =
      std::max<size_t>(1, static_cast<size_t>(LogitsTileRows(model_->vocab_size())) / k);
  for (size_t first = 0; first < blocks_.size(); first += tile) {
    LayOutDraws(requests, first, std::min(tile, blocks_.size() - first));
    tokens_.resize(rows_.size());
    const BlockDraws draws = {rows_, before_, draws_, steps_};
    if (first == 0) {
      model_->ForwardAndDraw(pass, cache_, draws, tokens_);
    } else {
      model_->DrawBlocks(pass.hidden, draws, tokens_);
    }
    chances_.assign(rows_.size(), 0);
    if (cut_.cuts()) model_->ReadConfidences(chances_);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto [block, step] = drawn_[i];
      drafts.row(static_cast<int64_t>(blocks_[block]))[step] = tokens_[i];
      confidences_[block * k + static_cast<size_t>(step)] = chances_[i];
    }
  }
  num_drafts_.clear();
  for (const size_t i : blocks_) num_drafts_.push_back(requests[i].num_drafts);
  cut_.Shorten({confidences_.data(), static_cast<int64_t>(blocks_.size()), options_.k},
               num_drafts_);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const size_t i = blocks_[b];
    if (num_drafts_[b] == requests[i].num_drafts) continue;
    drafts.row(static_cast<int64_t>(i))[num_drafts_[b]] = TokenRef();
  }
}

void BlockDrafter::LayOutDraws(std::span<const DraftRequest> requests, size_t first, size_t count) {
  rows_.clear();
  before_.clear();
  draws_.clear();
  steps_.clear();
  drawn_.clear();
  last_draws_.assign(count, -1);
  for (int32_t d = 0; d < options_.k; ++d) {
    const auto begin = static_cast<int32_t>(rows_.size());
    for (size_t b = first; b < first + count; ++b) {
      const DraftRequest& r = requests[blocks_[b]];
      if (d >= r.num_drafts) continue;
      int32_t& last = last_draws_[b - first];
      before_.push_back({.token = LastToken(r), .draw = last});
      last = static_cast<int32_t>(rows_.size());
      rows_.push_back(block_rows_.RowOf(b, block_windows_[b].start + d));
      draws_.push_back(DraftOf(r, d, options_.k, model_->vocab_size()));
      drawn_.emplace_back(b, d);
    }
    if (std::cmp_equal(rows_.size(), begin)) return;
    steps_.push_back(static_cast<int32_t>(rows_.size()) - begin);
  }
}

}  // namespace outrider
