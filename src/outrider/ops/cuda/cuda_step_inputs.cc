#include "outrider/ops/cuda/cuda_step_inputs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <span>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/prompt/prompt_attention.h"
#include "outrider/ops/own_part.h"
#include "outrider/ops/prompt_groups.h"

namespace outrider::cuda {

namespace {

// Steps of more rows are not rounded: they take so long that launches cost them nothing.
constexpr int32_t kMostRoundedRows = 1024;
// Columns of block tables in rounded steps, and of rings: this many or a power of two above it.
constexpr int32_t kLeastTableColumns = 16;
// A row may go back by as many positions as its request has drafts, at most this many.
constexpr int32_t kMostBack = 32;

int32_t KeysOf(const RequestRows& request) { return request.context_length + request.query_length; }

int32_t BlocksOf(const RequestRows& request, int32_t block_size) {
  return (KeysOf(request) + block_size - 1) / block_size;
}

/// Another one with every call.
uint64_t NextNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

bool IsGenerated(const RequestRows& request) { return request.phase == Phase::kDecode; }

/// Rows of requests that follow each other.
int32_t NumRows(std::span<const RequestRows> requests) {
  return requests.empty() ? 0
                          : requests.back().first_row + requests.back().query_length -
                                requests.front().first_row;
}

/// Writes the request's block table; of a ring the last blocks.
void FillTable(const RequestRows& request, int32_t group, int32_t block_size, int32_t ring,
               int32_t* table) {
  const int32_t* const blocks = request.block_table(group);
  const int32_t count = BlocksOf(request, block_size);
  for (int32_t i = ring > 0 ? std::max(0, count - ring) : 0; i < count; ++i) {
    table[ring > 0 ? i % ring : i] = blocks[i];
  }
}

int32_t PowerOfTwoColumns(int32_t columns) {
  return std::max(kLeastTableColumns,
                  static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(columns))));
}

}  // namespace

int32_t RoundedRows(int32_t rows) {
  const auto octave = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(rows)));
  const int32_t step = std::max(octave / 8, 1);
  return (rows + step - 1) / step * step;
}

CudaStepInputs::CudaStepInputs(cudaStream_t stream, const StepResults& kept)
    : stream_(stream), kept_(kept), number_(NextNumber()), arrays_(stream) {}
CudaStepInputs::~CudaStepInputs() = default;

const OwnRows* CudaStepInputs::own() const { return part_ == nullptr ? nullptr : &part_->own(); }

void CudaStepInputs::AssignRows(const BatchLayout& layout, const AttentionPlan& plan,
                                RowCount count, std::span<const int32_t> places) {
  AssignBounds(layout, plan);
  serial_ = NextNumber();
  layout_ = &layout;
  plan_ = &plan;
  states_.Assign(layout);
  // Of the whole step alone where its requests are divided, so that all ranks say the same.
  rounded_ = count == RowCount::kRounded && layout.num_rows() > 0 &&
             layout.num_rows() <= kMostRoundedRows &&
             std::ranges::all_of(layout.requests(), IsGenerated) && states_.IsPlain();
  if (rounded_) RoundRowsTo(places_ > 0 ? places_ : RoundedRows(layout.num_rows()));
  tokens_.Assign(layout.tokens());
  AssignMoves(places);
  if (plan.cache_place().ranks > 1) AssignOwn();
  Copy();
}

void CudaStepInputs::AssignMoves(std::span<const int32_t> places) {
  moved_places_.assign(places.begin(), places.end());
  moved_requests_.clear();
  if (places.empty()) return;
  OUTRIDER_CHECK(std::cmp_equal(places.size(), layout_->num_rows()));
  const std::span<const RequestRows> requests = layout_->requests();
  moved_requests_.resize(places.size());
  bool single_rows = true;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto first = static_cast<size_t>(requests[i].first_row);
    const auto count = static_cast<size_t>(requests[i].query_length);
    const std::span<const int32_t> own = places.subspan(first, count);
    const bool moves = own.front() >= 0;
    OUTRIDER_CHECK((!moves || IsGenerated(requests[i])) &&
                   std::ranges::all_of(own, [&](int32_t place) { return place == own.front(); }));
    std::fill_n(moved_requests_.begin() + static_cast<ptrdiff_t>(first), count,
                static_cast<int32_t>(i));
    single_rows = single_rows && (!moves || (count == 1 && first == i));
  }
  if (single_rows) moved_requests_.clear();
}

void CudaStepInputs::AssignOwn() {
  OUTRIDER_CHECK(moved_places_.empty());
  if (part_ == nullptr) {
    part_ = std::make_unique<OwnPart<CudaStepInputs>>(*layout_, *plan_, stream_, kept_);
  }
  const RowsOfRank& rows = part_->Divide(*layout_);
  const int32_t ranks = plan_->cache_place().ranks;
  own_places_ = {};
  if (rounded_) own_places_.count = PlacesOfRanks(num_rows(), rows.most_rows(), ranks);
  part_->inputs().places_ = own_places_.count;
  part_->Assign(rounded_ ? RowCount::kRounded : RowCount::kExact);
  const CudaStepInputs& own = part_->inputs();
  OUTRIDER_CHECK(own.num_rows() == 0 || own.rounded() == rounded_);
}

std::span<const RequestRows> CudaStepInputs::Generated() const {
  const std::span<const RequestRows> all = layout_->requests();
  return all.first(static_cast<size_t>(std::ranges::find_if_not(all, IsGenerated) - all.begin()));
}

void CudaStepInputs::ShiftTokens(std::span<const int32_t> sources, TokenRefs tokens) {
  tokens_.Shift(sources, tokens);
  arrays_.Replace(tokens_at_, tokens_.tokens());
  arrays_.CopyFirst(tokens_at_ + tokens_.tokens().size_bytes());
}

void CudaStepInputs::Copy() {
  const auto count = static_cast<size_t>(num_rows());
  const int32_t true_count = layout_->num_rows();
  arrays_.Clear();
  tokens_at_ = arrays_.Add(tokens_.tokens(), count, TokenRef(0));
  const size_t positions = arrays_.Add(layout_->positions(), count);
  const size_t true_rows = arrays_.Add(std::span(&true_count, 1), 1);
  const OwnPlacesAt own_places = AddOwnPlaces();
  states_.Add(arrays_, num_rows(), rounded_);
  groups_.resize(layout_->groups().size());
  for (size_t i = 0; i < groups_.size(); ++i) AddGroup(i);
  const size_t places = arrays_.Add(moved_places_);
  const size_t requests = arrays_.Add(moved_requests_);
  arrays_.Copy();
  token_ids_ = arrays_.At<int32_t>(tokens_at_);
  positions_ = arrays_.At<int32_t>(positions);
  true_rows_ = arrays_.At<int32_t>(true_rows);
  if (own_places_.count > 0) {
    own_places_.rows = arrays_.At<int32_t>(own_places.rows);
    own_places_.side_by_side = arrays_.At<int32_t>(own_places.side_by_side);
  }
  states_.Place(arrays_);
  for (Group& group : groups_) Place(group);
  if (!moved_places_.empty()) Move(places, requests);
}

CudaStepInputs::OwnPlacesAt CudaStepInputs::AddOwnPlaces() {
  if (own_places_.count == 0) return {};
  const RowsOfRank& rows = part_->rows();
  const std::span<const int32_t> own = rows.rows();
  const std::span<const int32_t> all = rows.side_by_side();
  return {.rows = arrays_.Add(own, static_cast<size_t>(own_places_.count),
                              own.empty() ? 0 : own.back()),
          .side_by_side = arrays_.Add(all, static_cast<size_t>(num_rows()), all.back())};
}

void CudaStepInputs::Move(size_t places_at, size_t requests_at) const {
  MoveRowsParams params = {
      .num_rows = static_cast<int>(moved_places_.size()),
      .places = arrays_.At<int32_t>(places_at),
      .requests = moved_requests_.empty() ? nullptr : arrays_.At<int32_t>(requests_at),
      .kept_numbers = kept_.tokens(),
      .positions = positions_};
  if (groups_.empty()) CheckCuda(MoveRows(params, stream_), "moving rows");
  const bool has_both = paths().Has(RowPath::kListed) && HasDecodes();
  for (const Group& group : groups_) {
    // Until the last, launches start from where the rows were.
    const bool last = &group == &groups_.back();
    params.slots = arrays_.At<int64_t>(group.slots_at);
    params.block_size = group.block_size;
    if (paths().Has(RowPath::kListed)) {
      params.writes_positions = last && !has_both;
      Move(params, group.all_at, group.inputs.all);
    }
    if (HasDecodes()) {
      params.writes_positions = last;
      Move(params, group.decode_at, group.inputs.decode);
    }
  }
}

void CudaStepInputs::Move(MoveRowsParams& params, const RequestArrays& at,
                          const DecodeRequests& requests) const {
  params.seq_lens = arrays_.At<int32_t>(at.lengths);
  params.block_tables = requests.block_tables;
  params.block_table_stride = requests.block_table_stride;
  params.block_table_mask = requests.block_table_mask;
  CheckCuda(MoveRows(params, stream_), "moving rows");
}

void CudaStepInputs::AddGroup(size_t index) {
  Group& group = groups_[index];
  group.block_size = layout_->groups()[index].tokens_per_block;
  group.slots_at = arrays_.Add(layout_->slot_mapping(static_cast<int32_t>(index)),
                               static_cast<size_t>(num_rows()), int64_t{-1});
  const bool last = index + 1 == groups_.size();
  const std::span<const RequestRows> all = layout_->requests();
  const std::span<const RequestRows> generated = Generated();
  group.inputs.all = group.inputs.decode = group.inputs.per_head_prompts = {};
  if (paths().Has(RowPath::kListed)) {
    group.all_at =
        AddRequests(index, all, RingColumns(index, all), last && !HasDecodes(), group.inputs.all);
  }
  if (HasDecodes()) {
    group.decode_at = AddRequests(index, generated, 0, last, group.inputs.decode);
  }
  if (paths().Has(RowPath::kPerHead) && !rounded_) {
    group.per_head_prompts_at =
        AddRequests(index, all.subspan(generated.size()), 0, last, group.inputs.per_head_prompts);
  }
  group.inputs.prompts.clear();
  group.prompts_at.clear();
  for (std::span<const RequestRows> prompts = plan_->prompts(); !prompts.empty();) {
    prompts = prompts.subspan(AddPrompts(index, prompts));
  }
  OUTRIDER_CHECK(plan_->left_over().empty());
  OUTRIDER_CHECK(!paths().ByRole() || plan_->num_decode_rows() == NumRows(generated));
}

void CudaStepInputs::Place(const RequestArrays& at, DecodeRequests& requests) const {
  if (requests.count == 0) return;
  requests.query_start_loc = arrays_.At<int32_t>(at.query_starts);
  requests.seq_lens = arrays_.At<int32_t>(at.lengths);
  requests.block_tables = arrays_.At<int32_t>(at.tables);
}

void CudaStepInputs::Place(Group& group) const {
  CacheInputs& inputs = group.inputs;
  inputs.slots = arrays_.At<int64_t>(group.slots_at);
  Place(group.all_at, inputs.all);
  Place(group.decode_at, inputs.decode);
  Place(group.per_head_prompts_at, inputs.per_head_prompts);
  for (size_t i = 0; i < group.prompts_at.size(); ++i) {
    PromptGroup& prompts = inputs.prompts[i];
    prompts.query_start_loc = arrays_.At<int32_t>(group.prompts_at[i].query_starts);
    prompts.key_start_loc = arrays_.At<int32_t>(group.prompts_at[i].lengths);
    prompts.block_tables = arrays_.At<int32_t>(group.prompts_at[i].tables);
  }
}

size_t CudaStepInputs::AddPrompts(size_t index, std::span<const RequestRows> prompts) {
  Group& group = groups_[index];
  PromptGroup made = {.first_row = prompts.front().first_row};
  starts_.assign(1, 0);
  lengths_.assign(1, 0);
  for (const RequestRows& request : prompts) {
    const int32_t keys = KeysOf(request);
    if (made.count > 0 && (made.count == kMostPrompts || made.num_keys + keys > kMostGroupKeys)) {
      break;
    }
    OUTRIDER_CHECK(request.first_row == made.first_row + made.num_rows);
    ++made.count;
    made.num_rows += request.query_length;
    made.num_keys += keys;
    made.max_queries = std::max(made.max_queries, request.query_length);
    made.max_keys = std::max(made.max_keys, keys);
    starts_.push_back(made.num_rows);
    lengths_.push_back(made.num_keys);
  }
  made.block_table_stride = (made.max_keys + group.block_size - 1) / group.block_size;
  const auto stride = static_cast<size_t>(made.block_table_stride);
  const auto count = static_cast<size_t>(made.count);
  tables_.assign(count * stride, 0);
  for (size_t i = 0; i < count; ++i) {
    FillTable(prompts[i], static_cast<int32_t>(index), group.block_size, /*ring=*/0,
              tables_.data() + i * stride);
  }
  group.prompts_at.push_back({.query_starts = arrays_.Add(starts_),
                              .lengths = arrays_.Add(lengths_),
                              .tables = arrays_.Add(tables_)});
  group.inputs.prompts.push_back(made);
  return count;
}

int32_t CudaStepInputs::RingColumns(size_t index, std::span<const RequestRows> requests) const {
  const CacheGroupSpec& spec = layout_->groups()[index];
  if (spec.kind != CacheGroupKind::kSlidingWindow) return 0;
  int32_t longest = 0;
  for (const RequestRows& request : requests) longest = std::max(longest, request.query_length);
  // Either end may cut a block.
  return PowerOfTwoColumns((spec.window + longest + kMostBack) / groups_[index].block_size + 2);
}

// A rounded step counts as many requests as rows; those that there are not have no rows. The last
// tables of the last group come last and are copied as far as there are requests; others have room
// for all, so that what comes behind them stays in its place.
CudaStepInputs::RequestArrays CudaStepInputs::AddRequests(size_t index,
                                                          std::span<const RequestRows> requests,
                                                          int32_t ring, bool last,
                                                          DecodeRequests& made) {
  const Group& group = groups_[index];
  made = {};
  made.num_rows = NumRows(requests);
  if (!requests.empty()) made.first_row = requests.front().first_row;
  starts_.clear();
  lengths_.clear();
  for (const RequestRows& request : requests) {
    starts_.push_back(request.first_row - made.first_row);
    lengths_.push_back(KeysOf(request));
    made.block_table_stride =
        std::max(made.block_table_stride, BlocksOf(request, group.block_size));
    made.max_seq_len = std::max(made.max_seq_len, KeysOf(request));
  }
  made.count = rounded_ ? num_rows() : static_cast<int>(lengths_.size());
  const int32_t true_rows = made.num_rows;
  if (rounded_) made.num_rows = num_rows();
  if (ring > 0) {
    made.block_table_stride = ring;
    made.block_table_mask = ring - 1;
  } else if (rounded_) {
    made.block_table_stride = PowerOfTwoColumns(made.block_table_stride);
    made.max_seq_len = made.block_table_stride * group.block_size;
  }
  const auto stride = static_cast<size_t>(made.block_table_stride);
  tables_.assign(lengths_.size() * stride, 0);
  for (size_t i = 0; i < lengths_.size(); ++i) {
    FillTable(requests[i], static_cast<int32_t>(index), group.block_size, ring,
              tables_.data() + i * stride);
  }
  const auto count = static_cast<size_t>(made.count);
  if (rounded_ && !last) tables_.resize(count * stride, 0);
  return {.query_starts = arrays_.Add(std::span<const int32_t>(starts_), count + 1, true_rows),
          .lengths = arrays_.Add(std::span<const int32_t>(lengths_), count),
          .tables = arrays_.Add(tables_)};
}

void CudaStepInputs::AddTo(RunKey& key) const {
  // Another object's arrays may lie where those of one that is gone were.
  key.Add(static_cast<int64_t>(number_)).Add(num_rows()).Add(token_ids_);
  if (own_places_.count > 0) {
    // What is read of requests is read of the own ones.
    const CudaStepInputs& own = part_->inputs();
    key.Add(own_places_.count).Add(own_places_.rows).Add(own.num_rows());
    if (own.num_rows() > 0) own.AddTo(key);
    return;
  }
  key.Add(states().requests).Add(states().checkpoint_pages);
  key.Add(static_cast<int64_t>(groups_.size()));
  for (const Group& group : groups_) {
    key.Add(group.inputs.slots);
    key.Add(group.inputs.all.block_table_stride).Add(group.inputs.decode.block_table_stride);
  }
}

}  // namespace outrider::cuda
