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
      previous_(*model_, model_->input_width()),
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

bool BlockDrafter::CanLaunch(std::span<const DraftRequest> requests) const {
  return std::ranges::all_of(requests, [&](const DraftRequest& r) {
    const int32_t end = r.frontier + 1 + model_->block_size();
    return r.num_drafts == 0 || (r.draft_probs == nullptr && PlaceInCache(r.block_tables) >= end);
  });
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

Tensor BlockDrafter::RowsOfEntries(std::span<const DraftRequest> requests, Tensor target) {
  const Tensor read = model_->ReadTarget(target);
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
  if (in_place && entry_rows_.num_rows() <= read.rows) return read.Rows(0, entry_rows_.num_rows());
  const Tensor previous = previous_.Rows(entry_rows_.num_rows());
  model_->CopyRows(read, previous, copies_);
  return previous;
}

std::optional<Ticket> BlockDrafter::Launch(std::span<const DraftRequest> requests, int32_t depth,
                                           Tensor target) {
  OUTRIDER_CHECK(depth >= 0 && depth <= options_.k && last_launched_ == last_waited_);
  if (!CanLaunch(requests)) return std::nullopt;
  LayOutEntries(requests, /*all_rows=*/true);
  LayOutBlocks(requests, /*moves=*/true);
  Run(requests, target);
  return ++last_launched_;
}

void BlockDrafter::Wait(Ticket ticket, std::span<const DraftRequest> requests,
                        MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(ticket == ++last_waited_ && ticket == last_launched_);
  Take(requests, drafts);
}

void BlockDrafter::Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
                           MatrixView<TokenRef> drafts) {
  OUTRIDER_CHECK(depth >= 0 && depth <= options_.k && last_launched_ == last_waited_);
  if (requests.empty()) return;
  LayOutEntries(requests, options_.form == DraftForm::kPadded);
  LayOutBlocks(requests, /*moves=*/false);
  Run(requests, target);
  Take(requests, drafts);
}

void BlockDrafter::Run(std::span<const DraftRequest> requests, Tensor target) {
  const auto k = static_cast<size_t>(options_.k);
  slots_.clear();
  for (const DraftRequest& r : requests) slots_.push_back(r.slot);
  drafted_.assign(requests.size() * k, TokenRef());
  confidences_.assign(requests.size() * k, 0);
  drawn_.clear();
  const Tensor previous = RowsOfEntries(requests, target);
  const Tensor hidden = hidden_.Rows(block_rows_.num_rows());
  const ModulePass all = {0, entry_rows_.inputs(), block_rows_.inputs(), previous, hidden};
  if (blocks_.empty()) return model_->Forward(all, cache_);
  const bool of_prompts = std::ranges::any_of(
      requests, [](const DraftRequest& r) { return r.first_position < r.prompt_length; });
  if (of_prompts) model_->Forward({0, entry_rows_.inputs(), *no_rows_, previous, {}}, cache_);
  const ModulePass blocks = {0, *no_rows_, block_rows_.inputs(), {}, hidden};
  const size_t tile =
      std::max<size_t>(1, static_cast<size_t>(LogitsTileRows(model_->vocab_size())) / k);
  for (size_t first = 0; first < blocks_.size(); first += tile) {
    ReadConfidences();
    LayOutDraws(requests, first, std::min(tile, blocks_.size() - first));
    tokens_.resize(rows_.size());
    const BlockDraws draws = {rows_, before_, draws_, steps_, moved_places_};
    if (first == 0) {
      model_->ForwardAndDraw(of_prompts ? blocks : all, cache_, draws, tokens_);
    } else {
      model_->DrawBlocks(hidden, draws, tokens_);
    }
    for (size_t i = 0; i < tokens_.size(); ++i) drafted_[drawn_[i]] = tokens_[i];
  }
}

void BlockDrafter::LayOutDraws(std::span<const DraftRequest> requests, size_t first, size_t count) {
  rows_.clear();
  before_.clear();
  draws_.clear();
  steps_.clear();
  moved_places_.clear();
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
      if (moves_) moved_places_.push_back(block_windows_[b].moved_place);
      drawn_.push_back(blocks_[b] * static_cast<size_t>(options_.k) + static_cast<size_t>(d));
    }
    if (std::cmp_equal(rows_.size(), begin)) return;
    steps_.push_back(static_cast<int32_t>(rows_.size()) - begin);
  }
}

void BlockDrafter::ReadConfidences() {
  if (!cut_.cuts() || drawn_.empty()) return;
  chances_.resize(drawn_.size());
  model_->ReadConfidences(chances_);
  for (size_t i = 0; i < chances_.size(); ++i) confidences_[drawn_[i]] = chances_[i];
}

void BlockDrafter::Take(std::span<const DraftRequest> requests, MatrixView<TokenRef> drafts) {
  ReadConfidences();
  const auto k = static_cast<ptrdiff_t>(options_.k);
  wanted_.clear();
  num_drafts_.clear();
  wanted_confidences_.clear();
  ptrdiff_t at = 0;
  for (size_t i = 0; i < requests.size(); ++i, ++at) {
    const int32_t count = requests[i].num_drafts;
    while (slots_.at(static_cast<size_t>(at)) != requests[i].slot) ++at;
    if (count == 0) continue;
    const auto drafted = drafted_.begin() + at * k;
    OUTRIDER_CHECK(std::find(drafted, drafted + count, TokenRef()) == drafted + count);
    std::copy_n(drafted, count, drafts.row(static_cast<int64_t>(i)));
    wanted_.push_back(i);
    num_drafts_.push_back(count);
    wanted_confidences_.insert(wanted_confidences_.end(), confidences_.begin() + at * k,
                               confidences_.begin() + (at + 1) * k);
  }
  cut_.Shorten({wanted_confidences_.data(), std::ssize(wanted_), options_.k}, num_drafts_);
  for (size_t w = 0; w < wanted_.size(); ++w) {
    const size_t i = wanted_[w];
    if (num_drafts_[w] == requests[i].num_drafts) continue;
    drafts.row(static_cast<int64_t>(i))[num_drafts_[w]] = TokenRef();
  }
}

}  // namespace outrider
