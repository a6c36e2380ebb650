#include "outrider/ops/cuda/row_drawer.h"

#include <algorithm>
#include <array>
#include <limits>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/rank_rows.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/peer_rows.h"
#include "outrider/sampling/token_mask.h"

namespace outrider::cuda {

RowDrawer::Drawing RowDrawer::Launch(const Context& context, const HeadRows& rows,
                                     int32_t num_tokens, std::span<const DrawnRows> requests,
                                     Drawers drawers) {
  ResultLayout layout{.num_requests = requests.size()};
  int32_t most = -1;
  for (const DrawnRows& drawn : requests) {
    layout.num_rows += static_cast<size_t>(drawn.num_rows);
    most = std::max(most, drawn.sampling.top_logprobs);
  }
  if (layout.num_rows == 0) return {layout};
  layout.logprobs = most >= 0;
  layout.num_top = static_cast<size_t>(std::clamp(most, 0, num_tokens));
  num_top_ = layout.num_top;
  StepResults& memory = ops_.results();
  memory.Reserve(memory.num_tokens(), layout.bytes(), ops_.stream());
  auto* const ints = reinterpret_cast<int32_t*>(memory.results());
  auto* const floats = reinterpret_cast<float*>(memory.results());
  DrawResults results = {.tokens = ints};
  if (layout.logprobs) {
    results.logprobs = floats + layout.of_logprobs(0);
    results.ranks = ints + layout.of_logprobs(1);
    results.top_tokens = ints + layout.of_logprobs(2);
    results.top_logprobs = floats + layout.of_logprobs(2 + num_top_);
  }
  const bool verifies = requests.front().given_token < 0;
  Draw(context, rows, num_tokens, requests, results,
       {.drawers = drawers, .num_accepted = verifies ? ints + layout.accepted() : nullptr});
  return {layout, ops_.LaunchReading(layout.bytes())};
}

bool RowDrawer::Ready(const Drawing& drawing) const {
  return drawing.layout.num_rows == 0 || ops_.results().Ready(drawing.ticket);
}

RowDrawer::HostResults RowDrawer::Wait(const Drawing& drawing) {
  const ResultLayout& layout = drawing.layout;
  if (layout.num_rows == 0) return {};
  ops_.results().Wait(drawing.ticket);
  const std::byte* const memory = ops_.results().host_results();
  const auto* const ints = reinterpret_cast<const int32_t*>(memory);
  const auto* const floats = reinterpret_cast<const float*>(memory);
  HostResults results = {.tokens = {ints, layout.num_rows},
                         .accepted = {ints + layout.accepted(), layout.num_requests},
                         .logprobs = {}};
  if (layout.logprobs) {
    results.logprobs = {floats + layout.of_logprobs(0), ints + layout.of_logprobs(1),
                        ints + layout.of_logprobs(2),
                        floats + layout.of_logprobs(2 + layout.num_top), layout.num_top};
  }
  return results;
}

void RowDrawer::DrawToPlaces(const Context& context, const HeadRows& rows, int32_t num_tokens,
                             std::span<const DrawnRows> requests, const int32_t* ids) {
  num_top_ = 0;
  Draw(context, rows, num_tokens, requests, {.tokens = ops_.results().tokens(), .ids = ids},
       {.drawers = Drawers::kAll, .by_place = true});
}

void RowDrawer::Draw(const Context& context, const HeadRows& rows, int32_t num_tokens,
                     std::span<const DrawnRows> requests, DrawResults results, Kind kind) {
  ops_.WorkBegins();
  const int64_t most_rows = LogitsTileRows(rows.head.rows, tile_bytes_);
  while (!requests.empty()) {
    size_t size = 0;
    int32_t count = 0;
    while (size < requests.size() && (count == 0 || count + requests[size].num_rows <= most_rows)) {
      count += requests[size++].num_rows;
    }
    DrawTile(context, rows, num_tokens, requests.first(size), results, kind);
    requests = requests.subspan(size);
    if (!kind.by_place) results.tokens += count;
    if (kind.num_accepted != nullptr) kind.num_accepted += size;
    if (results.logprobs != nullptr) {
      results.logprobs += count;
      results.ranks += count;
      results.top_tokens += static_cast<size_t>(count) * num_top_;
      results.top_logprobs += static_cast<size_t>(count) * num_top_;
    }
  }
}

void RowDrawer::DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens,
                         std::span<const DrawnRows> requests, DrawResults results, Kind kind) {
  sampling_.clear();
  logit_requests_.clear();
  logit_positions_.clear();
  logit_starts_.clear();
  head_rows_.clear();
  output_rows_.clear();
  first_mask_.clear();
  masks_.clear();
  token_ids_.clear();
  logit_rows_.clear();
  bias_tokens_.clear();
  bias_values_.clear();
  count_tokens_.clear();
  counts_.clear();
  given_tokens_.clear();
  places_.clear();
  verified_.clear();
  const size_t mask_words = MaskWords(num_tokens);
  for (const DrawnRows& drawn : requests) {
    const auto request = static_cast<int32_t>(sampling_.size());
    sampling_.push_back(drawn.sampling);
    AddProcessors(drawn, sampling_.back());
    logit_starts_.push_back(static_cast<int32_t>(head_rows_.size()));
    OUTRIDER_CHECK(drawn.position + drawn.num_rows <= std::numeric_limits<int32_t>::max());
    for (int32_t j = 0; j < drawn.num_rows; ++j) {
      logit_requests_.push_back(request);
      logit_positions_.push_back(static_cast<int32_t>(drawn.position) + j);
      const auto row = static_cast<size_t>(drawn.first_row + j);
      head_rows_.push_back(rows.rows[row]);
      if (kind.num_accepted != nullptr) output_rows_.push_back(rows.OutputRow(row));
      logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
      token_ids_.push_back(j == 0 ? 0 : drawn.drafts[static_cast<size_t>(j) - 1]);
      if (drawn.given_token >= 0) given_tokens_.push_back(drawn.given_token);
      if (kind.by_place) places_.push_back(drawn.place);
    }
    const VerifyPlaces& kept = drawn.kept;
    verified_.push_back({.last_token = kept.last_token,
                         .drawn = kept.drawn,
                         .rejected = kept.rejected,
                         .last_row = kept.last_row,
                         .given_count = drawn.given_count});
    first_mask_.push_back(
        drawn.masks.data == nullptr ? -1 : static_cast<int32_t>(masks_.size() / mask_words));
    for (int64_t j = 0; drawn.masks.data != nullptr && j < drawn.num_rows; ++j) {
      OUTRIDER_CHECK(static_cast<size_t>(drawn.masks.cols) == mask_words);
      masks_.insert(masks_.end(), drawn.masks.row(j), drawn.masks.row(j) + mask_words);
    }
  }
  logit_starts_.push_back(static_cast<int32_t>(head_rows_.size()));
  arrays_.Clear();
  const size_t sampling_at = arrays_.Add(sampling_);
  const size_t logit_requests_at = arrays_.Add(logit_requests_);
  const size_t positions_at = arrays_.Add(logit_positions_);
  const size_t starts_at = arrays_.Add(logit_starts_);
  const size_t head_rows_at = arrays_.Add(head_rows_);
  const size_t output_rows_at = arrays_.Add(output_rows_);
  const size_t first_mask_at = arrays_.Add(first_mask_);
  const size_t masks_at = arrays_.Add(masks_);
  const size_t token_ids_at = arrays_.Add(token_ids_);
  const size_t logit_rows_at = arrays_.Add(logit_rows_);
  const size_t bias_tokens_at = arrays_.Add(bias_tokens_);
  const size_t bias_values_at = arrays_.Add(bias_values_);
  const size_t count_tokens_at = arrays_.Add(count_tokens_);
  const size_t counts_at = arrays_.Add(counts_);
  const size_t given_at = arrays_.Add(given_tokens_);
  const size_t places_at = arrays_.Add(places_);
  const size_t verified_at = arrays_.Add(verified_);
  arrays_.Copy();

  const Scratch::Frame frame(context.arena);
  const auto count = static_cast<int64_t>(head_rows_.size());
  DrawParams params;
  params.max_rows = static_cast<int>(count);
  params.vocab_size = num_tokens;
  params.logit_positions = arrays_.At<int32_t>(positions_at);
  params.logit_requests = arrays_.At<int32_t>(logit_requests_at);
  params.logit_start_loc = arrays_.At<int32_t>(starts_at);
  params.sampling = arrays_.At<RequestSampling>(sampling_at);
  if (!masks_.empty()) {
    params.masks = arrays_.At<uint32_t>(masks_at);
    params.first_mask = arrays_.At<int32_t>(first_mask_at);
  }
  params.token_ids = arrays_.At<int32_t>(token_ids_at);
  params.logit_rows = arrays_.At<int32_t>(logit_rows_at);
  params.bias_tokens = arrays_.At<int32_t>(bias_tokens_at);
  params.bias_values = arrays_.At<float>(bias_values_at);
  params.count_tokens = arrays_.At<int32_t>(count_tokens_at);
  params.counts = arrays_.At<uint32_t>(counts_at);
  if (!given_tokens_.empty()) params.given_tokens = arrays_.At<int32_t>(given_at);
  params.processed_logprobs = logprobs_mode_ == LogprobsMode::kProcessed;
  params.max_top_logprobs = static_cast<int>(num_top_);
  if (kind.by_place) results.places = arrays_.At<int32_t>(places_at);
  const int32_t* const head_rows = arrays_.At<int32_t>(head_rows_at);
  if (kind.drawers == Drawers::kAll && CanShare(context, rows.head.rows, num_tokens)) {
    DrawByShares(context, rows, head_rows, params, results);
  } else {
    const Tensor logits = TakeRows(context, DType::kF32, count, rows.head.rows);
    if (kind.drawers == Drawers::kFirst) {
      cpu::LeadHead(context, /*choice=*/false, head_rows_, rows.head.rows);
    }
    ops_.HeadAt(context, rows.x, head_rows, rows.head, logits);
    params.logits = static_cast<const float*>(logits.data);
    params.logits_stride = logits.stride;
    CheckCuda(DrawTokens(params, results, ops_.stream()), "drawing tokens");
  }
  if (kind.num_accepted == nullptr) return;
  CheckCuda(VerifyDrafts({.num_requests = static_cast<int>(sampling_.size()),
                          .token_ids = params.token_ids,
                          .logit_rows = params.logit_rows,
                          .logit_start_loc = params.logit_start_loc,
                          .drawn = results.tokens,
                          .kept_tokens = ops_.results().tokens(),
                          .head_rows = arrays_.At<int32_t>(output_rows_at),
                          .requests = arrays_.At<VerifiedRequest>(verified_at),
                          .num_accepted = kind.num_accepted},
                         ops_.stream()),
            "verifying drafts");
}

bool RowDrawer::CanShare(const Context& context, int64_t head_rows, int32_t num_tokens) const {
  const RankPlace place = context.place();
  if (place.ranks == 1 || !masks_.empty() || !given_tokens_.empty()) return false;
  // Noise is made for 32 tokens at a time.
  for (int32_t rank = 0; rank < place.ranks; ++rank) {
    const Share share = ShareOf(Cut::kRows, head_rows, {rank, place.ranks});
    if (share.first >= num_tokens || share.first % 32 != 0) return false;
  }
  return std::ranges::all_of(sampling_, DrawsByShares);
}

void RowDrawer::DrawByShares(const Context& context, const HeadRows& rows, const int32_t* head_rows,
                             DrawParams params, const DrawResults& results) const {
  const RankPlace place = context.place();
  const Share own = OwnShare(context, Cut::kRows, rows.head.rows);
  const Tensor logits = TakeRows(context, DType::kF32, params.max_rows, own.count);
  ops_.HeadPartAt(context, rows.x, head_rows, rows.head, logits);
  params.first_token = static_cast<int>(own.first);
  params.vocab_size = static_cast<int>(std::min(own.count, params.vocab_size - own.first));
  params.logits = static_cast<const float*>(logits.data);
  params.logits_stride = logits.stride;
  constexpr int64_t kFloats = sizeof(DrawnShare) / sizeof(float);
  const Tensor mine = TakeRows(context, DType::kF32, params.max_rows, kFloats);
  const Tensor all = TakeRows(context, DType::kF32, params.max_rows, place.ranks * kFloats);
  OUTRIDER_CHECK(mine.stride == kFloats && all.stride == all.cols);
  DrawResults shares;
  shares.shares = static_cast<DrawnShare*>(mine.data);
  CheckCuda(DrawTokens(params, shares, ops_.stream()), "drawing tokens");
  Gather(context, std::array{SharedTensor{mine, all, Cut::kHeads}});
  CheckCuda(ChooseAmongShares(static_cast<const DrawnShare*>(all.data), params.max_rows,
                              place.ranks, place.ranks, results, ops_.stream()),
            "drawing tokens");
}

void RowDrawer::AddProcessors(const DrawnRows& drawn, RequestSampling& sampling) {
  if (drawn.processors == nullptr) return;
  sampling.first_bias = static_cast<int32_t>(bias_tokens_.size());
  sampling.num_biases = static_cast<int32_t>(drawn.processors->biases().size());
  for (const TokenBias& bias : drawn.processors->biases()) {
    bias_tokens_.push_back(bias.token);
    bias_values_.push_back(bias.value);
  }
  sampling.first_count = static_cast<int32_t>(counts_.size());
  sampling.num_counts = static_cast<int32_t>(drawn.counts.size());
  for (const TokenCounts::Entry& entry : drawn.counts) {
    count_tokens_.push_back(entry.token);
    counts_.push_back(static_cast<uint32_t>(entry.count) | (entry.in_prompt ? kInPrompt : 0));
  }
}

}  // namespace outrider::cuda
