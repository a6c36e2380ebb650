#include "outrider/ops/cuda/cuda_block_sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/block_sampler.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/request_sampling.h"

namespace outrider::cuda {

void CudaBlockSampler::Assign(const BlockDraws& draws) {
  draws_ = draws;
  const size_t count = draws.rows.size();
  OUTRIDER_CHECK(count > 0 && draws.before.size() == count && draws.requests.size() == count);
  OUTRIDER_CHECK(std::cmp_equal(FirstDraw(draws.steps.size()), count));
  OUTRIDER_CHECK(draws.moved_places.empty() || draws.moved_places.size() == count);
  room_ = RoundedRows(*std::ranges::max_element(draws.steps));
  host_draws_ = std::ranges::any_of(
      draws.requests, [](const DrawRequest& request) { return !request.draw.probs.empty(); });
  OUTRIDER_CHECK(!host_draws_ || draws.moved_places.empty());
  host_tokens_.assign(host_draws_ ? count : 0, 0);
  Stage();
}

int32_t CudaBlockSampler::FirstDraw(size_t step) const {
  return std::accumulate(draws_.steps.begin(), draws_.steps.begin() + static_cast<ptrdiff_t>(step),
                         int32_t{0});
}

void CudaBlockSampler::Stage() {
  const auto all = static_cast<size_t>(num_rows());
  rows_.assign(all, 0);
  before_.assign(all, 0);
  places_.assign(all, 0);
  positions_.assign(all, 0);
  moved_places_.assign(all, -1);
  sampling_.assign(all, {});
  int32_t draw = 0;
  for (size_t step = 0; step < draws_.steps.size(); ++step) {
    auto row = static_cast<size_t>(rows_of(step).first);
    const int32_t first = draw;
    for (; draw < first + draws_.steps[step]; ++draw, ++row) {
      const auto i = static_cast<size_t>(draw);
      const DrawRequest& request = draws_.requests[i];
      const TokenBefore& before = draws_.before[i];
      OUTRIDER_CHECK(before.draw < first, "a token of its own step");
      OUTRIDER_CHECK(request.draw.position < std::numeric_limits<int32_t>::max());
      OUTRIDER_CHECK(request.place >= 0 &&
                     std::cmp_less(request.place, ops_.results().num_tokens()));
      rows_[row] = draws_.rows[i];
      before_[row] = before.draw < 0
                         ? before.token
                         : TokenRef::At(draws_.requests[static_cast<size_t>(before.draw)].place);
      places_[row] = request.place;
      positions_[row] = static_cast<int32_t>(request.draw.position);
      if (!draws_.moved_places.empty()) {
        moved_places_[row] = draws_.moved_places[i];
        OUTRIDER_CHECK(std::cmp_less(moved_places_[row], ops_.results().num_tokens()));
      }
      sampling_[row].temperature = 0;
      if (request.sampling != nullptr) {
        sampling_[row] = SamplingOf(*request.sampling, request.draw.seed);
      }
    }
  }
  numbers_.resize(static_cast<size_t>(room_) + 1);
  std::iota(numbers_.begin(), numbers_.end(), 0);
  arrays_.Clear();
  rows_at_ = arrays_.Add(rows_);
  before_at_ = arrays_.Add(before_);
  places_at_ = arrays_.Add(places_);
  positions_at_ = arrays_.Add(positions_);
  moved_places_at_ = arrays_.Add(moved_places_);
  sampling_at_ = arrays_.Add(sampling_);
  counts_at_ = arrays_.Add(draws_.steps, draws_.steps.size());
  numbers_at_ = arrays_.Add(numbers_);
  zeros_at_ = arrays_.Add(std::span<const int32_t>(), static_cast<size_t>(room_));
  arrays_.Copy();
}

void CudaBlockSampler::AddTo(RunKey& key) const {
  key.Add(arrays_.At<int32_t>(0)).Add(room_).Add(std::ssize(draws_.steps));
}

void CudaBlockSampler::ReadRows(const Context& /*context*/, Tensor hidden, Tensor x) const {
  OUTRIDER_CHECK(x.rows == num_rows() && x.cols == hidden.cols);
  CheckCuda(outrider::cuda::CopyRows({.num_rows = x.rows,
                                      .cols = x.cols,
                                      .from = hidden.data,
                                      .from_dtype = hidden.dtype,
                                      .from_stride = hidden.stride,
                                      .from_size = hidden.rows,
                                      .from_rows = arrays_.At<int32_t>(rows_at_),
                                      .to = x.data,
                                      .to_dtype = x.dtype,
                                      .to_stride = x.stride},
                                     ops_.stream()),
            "rows of drafts");
}

void CudaBlockSampler::EmbedBefore(const Context& context, const TokenTable& table, size_t step,
                                   Tensor x) const {
  OUTRIDER_CHECK(x.rows == room_ && x.cols == table.cols);
  const auto first = static_cast<size_t>(rows_of(step).first);
  const int32_t* tokens = arrays_.At<int32_t>(before_at_) + first;
  const Scratch::Frame frame(context.arena);
  if (host_draws_) {
    std::vector<TokenRef> known(static_cast<size_t>(room_), 0);
    const auto draw = static_cast<size_t>(FirstDraw(step));
    for (size_t i = 0; std::cmp_less(i, draws_.steps[step]); ++i) {
      const TokenBefore& before = draws_.before[draw + i];
      known[i] = before.draw < 0 ? before.token : host_tokens_[static_cast<size_t>(before.draw)];
    }
    tokens = Upload<int32_t>(context, KnownTokens(known), ops_.stream());
  }
  CheckCuda(outrider::cuda::CopyRows({.num_rows = x.rows,
                                      .cols = x.cols,
                                      .from = Packed(table).rows,
                                      .from_dtype = DType::kBF16,
                                      .from_stride = table.cols,
                                      .from_size = table.rows,
                                      .from_rows = tokens,
                                      .kept_tokens = ops_.results().tokens(),
                                      .num_kept = static_cast<int64_t>(ops_.results().num_tokens()),
                                      .to = x.data,
                                      .to_dtype = x.dtype,
                                      .to_stride = x.stride},
                                     ops_.stream()),
            "tokens before drafts");
}

void CudaBlockSampler::Draw(const Context& context, size_t step, Tensor logits) {
  OUTRIDER_CHECK(logits.rows == room_ && Fits(logits, DType::kF32));
  if (host_draws_) return DrawOnHost(context, step, logits);
  const auto first = static_cast<size_t>(rows_of(step).first);
  DrawParams params;
  params.max_rows = room_;
  params.num_rows = arrays_.At<int32_t>(counts_at_) + step;
  params.vocab_size = static_cast<int>(logits.cols);
  params.logits = static_cast<const float*>(logits.data);
  params.logits_stride = logits.stride;
  // A request of its own for every row, without drafts.
  params.token_ids = params.logit_rows = arrays_.At<int32_t>(zeros_at_);
  params.logit_positions = arrays_.At<int32_t>(positions_at_) + first;
  params.moved_places = arrays_.At<int32_t>(moved_places_at_) + first;
  params.logit_requests = params.logit_start_loc = arrays_.At<int32_t>(numbers_at_);
  params.sampling = arrays_.At<RequestSampling>(sampling_at_) + first;
  DrawResults results;
  results.tokens = ops_.results().tokens();
  results.places = arrays_.At<int32_t>(places_at_) + first;
  CheckCuda(DrawTokens(params, results, ops_.stream()), "drawing drafts");
}

void CudaBlockSampler::DrawOnHost(const Context& context, size_t step, Tensor logits) {
  const auto first = static_cast<size_t>(FirstDraw(step));
  const auto count = static_cast<size_t>(draws_.steps[step]);
  const Tensor rows = logits.Rows(0, static_cast<int64_t>(count));
  host_logits_.resize(static_cast<size_t>(rows.rows * rows.cols));
  ops_.ToHost(context, rows, host_logits_);
  cpu::DrawDrafts(context, samplers_, {host_logits_.data(), rows.rows, rows.cols},
                  draws_.requests.subspan(first, count),
                  std::span(host_tokens_).subspan(first, count));
}

void CudaBlockSampler::TakeTokens(std::span<TokenRef> tokens) {
  OUTRIDER_CHECK(tokens.size() == draws_.requests.size());
  if (host_draws_) {
    std::ranges::copy(host_tokens_, tokens.begin());
    return;
  }
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = TokenRef::At(draws_.requests[i].place);
  ops_.results().DraftsAreDrawn();
}

}  // namespace outrider::cuda
