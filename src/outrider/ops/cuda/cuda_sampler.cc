// Long because verifying, drafting and scoring share the rows that they draw.
#include "outrider/ops/cuda/cuda_sampler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/kernels/cuda/verify_drafts.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/tokens_on_device.h"
#include "outrider/sampling/token_mask.h"

namespace outrider::cuda {

namespace {

// Logits are made for about this many rows at a time, which bounds their memory.
constexpr int32_t kLogitsTile = 256;

RequestSampling SamplingOf(const SamplingParams& params, uint64_t seed) {
  RequestSampling sampling;
  sampling.seed = seed;
  sampling.temperature = params.temperature;
  sampling.top_k = params.top_k;
  sampling.top_p = params.top_p;
  sampling.min_p = params.min_p;
  return sampling;
}

}  // namespace

void CudaSampler::HostSampler::MakeLogits(const Context& context, const HeadRows& rows,
                                          MatrixView<float> logits) {
  const auto& ops = static_cast<const CudaOps&>(context.ops);
  const Scratch::Frame frame(context.arena);
  const Tensor on_device = TakeRows(context, DType::kF32, logits.rows, logits.cols);
  ops.Head(context, rows.x, rows.rows, rows.head, on_device);
  CheckCuda(
      cudaMemcpy2DAsync(logits.data, static_cast<size_t>(logits.stride) * sizeof(float),
                        on_device.data, static_cast<size_t>(on_device.stride) * sizeof(float),
                        static_cast<size_t>(logits.cols) * sizeof(float),
                        static_cast<size_t>(logits.rows), cudaMemcpyDeviceToHost, ops.stream()),
      "copying logits to the host");
  ops.WaitForResults();
}

bool CudaSampler::Describe(const VerifyRequest& request, DrawnRows* drawn) {
  OUTRIDER_CHECK(request.place < 0 || std::cmp_less(request.place, ops_.results().num_tokens()));
  const VerifyInput& input = request.input;
  const SamplingParams& params = *input.params;
  if (verifier_.NeedsLogits(params, params.logprobs <= kMaxTopLogprobs)) return false;
  *drawn = {.sampling = SamplingOf(params, input.seed),
            .first_row = request.first_row,
            .num_rows = static_cast<int32_t>(request.num_rows()),
            .position = static_cast<int64_t>(input.tokens.size()),
            .drafts = input.drafts,
            .masks = input.masks,
            .processors = input.processors,
            .place = request.place};
  drawn->sampling.top_logprobs = params.logprobs.value_or(-1);
  if (input.processors != nullptr && input.processors->penalises()) {
    drawn->sampling.penalised = true;
    drawn->sampling.repetition_penalty = params.repetition_penalty;
    drawn->sampling.presence_penalty = params.presence_penalty;
    drawn->sampling.frequency_penalty = params.frequency_penalty;
    drawn->counts = input.processors->Counts({input.tokens, input.prompt_length, {}});
  }
  return true;
}

void CudaSampler::AddForbidden(int32_t vocab_size) {
  const auto forbids = [](const VerifyInput& input) {
    return input.processors != nullptr &&
           input.processors->MayForbid({input.tokens, input.prompt_length, {}});
  };
  const size_t words = MaskWords(vocab_size);
  size_t num_rows = 0;
  for (const size_t i : drawn_requests_) {
    if (forbids(requests_[i].input)) num_rows += static_cast<size_t>(requests_[i].num_rows());
  }
  forbidden_.assign(num_rows * words, ~uint32_t{0});
  uint32_t* next = forbidden_.data();
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const VerifyInput& input = requests_[drawn_requests_[n]].input;
    if (!forbids(input)) continue;
    MatrixView<const uint32_t>& masks = drawn_rows_[n].masks;
    const MatrixView<const uint32_t> of_grammar = masks;
    masks = {next, drawn_rows_[n].num_rows, static_cast<int64_t>(words)};
    for (int64_t j = 0; j < masks.rows; ++j, next += words) {
      if (of_grammar.data != nullptr) std::copy_n(of_grammar.row(j), words, next);
      input.processors->Forbid(
          {input.tokens, input.prompt_length, input.drafts.first(static_cast<size_t>(j))},
          {next, words});
    }
  }
}

void CudaSampler::TakeRequests(std::span<const VerifyRequest> requests) {
  requests_.assign(requests.begin(), requests.end());
  drafts_.clear();
  for (const VerifyRequest& request : requests) {
    drafts_.insert(drafts_.end(), request.input.drafts.begin(), request.input.drafts.end());
  }
  size_t first = 0;
  for (VerifyRequest& request : requests_) {
    request.input.drafts = std::span(drafts_).subspan(first, request.input.drafts.size());
    first += request.input.drafts.size();
  }
}

void CudaSampler::ReadDrafts() {
  ops_.ReadTokens();
  for (int32_t& draft : drafts_) draft = ops_.ReadToken(draft);
}

void CudaSampler::Verify(const Context& context, const HeadRows& rows,
                         std::span<const VerifyRequest> requests) {
  TakeRequests(requests);
  drawn_rows_.clear();
  drawn_requests_.clear();
  host_requests_.clear();
  host_rows_.clear();
  bool processes = false;
  for (size_t i = 0; i < requests_.size(); ++i) {
    DrawnRows drawn;
    if (Describe(requests_[i], &drawn)) {
      drawn_rows_.push_back(drawn);
      drawn_requests_.push_back(i);
      processes |= drawn.processors != nullptr;
      continue;
    }
    VerifyRequest& request = host_requests_.emplace_back(requests_[i]);
    const std::span<const int32_t> own = rows.rows.subspan(static_cast<size_t>(request.first_row),
                                                           static_cast<size_t>(request.num_rows()));
    request.first_row = static_cast<int32_t>(host_rows_.size());
    host_rows_.insert(host_rows_.end(), own.begin(), own.end());
  }
  // Processors change a row by the drafts before it.
  if (processes) ReadDrafts();
  AddForbidden(static_cast<int32_t>(rows.head.rows));
  HostResults drawn;
  {
    const Stopwatch watch(head_seconds_);
    drawn = FinishDrawing(BeginDrawing(context, rows, static_cast<int32_t>(rows.head.rows)));
  }
  ReadDrafts();
  size_t first = 0;
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const VerifyRequest& request = requests_[drawn_requests_[n]];
    VerifyInput input = request.input;
    const auto count = static_cast<size_t>(request.num_rows());
    input.masks = drawn_rows_[n].masks;
    input.drawn = drawn.tokens.subspan(first, count);
    input.num_accepted = drawn.accepted[n];
    if (input.params->logprobs) input.drawn_logprobs = drawn.logprobs.From(first);
    first += count;
    verifier_.Verify(input, request.result);
  }
  host_.Verify(context, {rows.head, rows.x, host_rows_}, host_requests_);
}

bool CudaSampler::VerifyLater(const Context& context, const HeadRows& rows,
                              std::span<const VerifyRequest> requests) {
  drawn_rows_.clear();
  for (const VerifyRequest& request : requests) {
    const VerifyInput& input = request.input;
    const bool plain =
        input.drafts.empty() && input.masks.data == nullptr && input.processors == nullptr;
    if (!plain || !Describe(request, &drawn_rows_.emplace_back())) return false;
  }
  OUTRIDER_CHECK(num_later_ < later_.size());
  LaterVerify& later = later_[num_later_++];
  later.requests.assign(requests.begin(), requests.end());
  const Stopwatch watch(head_seconds_);
  later.layout = BeginDrawing(context, rows, static_cast<int32_t>(rows.head.rows));
  return true;
}

void CudaSampler::Collect() {
  OUTRIDER_CHECK(num_later_ > 0);
  const HostResults drawn = FinishDrawing(later_[0].layout);
  for (size_t n = 0; n < later_[0].requests.size(); ++n) {
    const VerifyRequest& request = later_[0].requests[n];
    VerifyInput input = request.input;
    input.drawn = drawn.tokens.subspan(n, 1);
    if (input.params->logprobs) input.drawn_logprobs = drawn.logprobs.From(n);
    verifier_.Verify(input, request.result);
  }
  if (--num_later_ == 1) std::swap(later_[0], later_[1]);
}

void CudaSampler::Draw(const Context& context, const HeadRows& rows,
                       std::span<const DrawRequest> requests, const DraftTokens& among,
                       std::span<int32_t> tokens) {
  drawn_rows_.clear();
  host_draws_.clear();
  host_draw_requests_.clear();
  host_rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const DrawRequest& request = requests[i];
    // The kernel's noise is by row.
    const bool by_row = among.ids.empty() && request.draw.probs.empty();
    if (request.sampling != nullptr && !by_row) {
      host_draws_.push_back(i);
      host_draw_requests_.push_back(request);
      host_rows_.push_back(rows.rows[i]);
      continue;
    }
    DrawnRows drawn = {.first_row = static_cast<int32_t>(i),
                       .position = request.draw.position,
                       .place = request.place};
    OUTRIDER_CHECK(request.place >= 0 && std::cmp_less(request.place, ops_.results().num_tokens()));
    tokens[i] = TokenOfPlace(request.place);
    drawn.sampling.temperature = 0;
    if (request.sampling != nullptr) {
      drawn.sampling = SamplingOf(*request.sampling, request.draw.seed);
    }
    drawn_rows_.push_back(drawn);
  }
  if (!drawn_rows_.empty()) {
    const Stopwatch watch(head_seconds_);
    ops_.TokensAreDrawn();
    num_top_ = 0;
    DrawRows(context, rows, among.rows,
             {.tokens = ops_.results().tokens(), .ids = OnDevice(among.ids)}, {.by_place = true});
  }
  if (host_draws_.empty()) return;
  host_drafts_.resize(host_draws_.size());
  host_.Draw(context, {rows.head, rows.x, host_rows_}, host_draw_requests_, among, host_drafts_);
  for (size_t i = 0; i < host_draws_.size(); ++i) tokens[host_draws_[i]] = host_drafts_[i];
}

const int32_t* CudaSampler::OnDevice(std::span<const int32_t> ids) {
  if (ids.empty()) return nullptr;
  if (ids.data() != ids_ || ids.size_bytes() != ids_on_device_.bytes()) {
    ids_ = ids.data();
    ids_on_device_ = DeviceMemory();
    ids_on_device_ = DeviceMemory(ids.size_bytes(), "tokens of a drafter");
    CheckCuda(cudaMemcpyAsync(ids_on_device_.data(), ids.data(), ids.size_bytes(),
                              cudaMemcpyHostToDevice, ops_.stream()),
              "tokens of a drafter");
    ops_.Synchronize();
  }
  return ids_on_device_.As<int32_t>();
}

void CudaSampler::DrawFrom(const Context& /*context*/, Tensor /*logits*/,
                           std::span<const DrawRequest> /*requests*/,
                           std::span<int32_t> /*tokens*/) {
  OUTRIDER_CHECK(false, "a drafter of blocks on the GPU");
}

void CudaSampler::Score(const Context& context, const HeadRows& rows,
                        std::span<const ScoreRequest> requests) {
  drawn_rows_.clear();
  drawn_requests_.clear();
  host_scores_.clear();
  host_rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].num_top > kMaxTopLogprobs) {
      host_scores_.push_back(requests[i]);
      host_rows_.push_back(rows.rows[i]);
      continue;
    }
    drawn_rows_.push_back({.first_row = static_cast<int32_t>(i), .given_token = requests[i].token});
    drawn_rows_.back().sampling.top_logprobs = requests[i].num_top;
    drawn_requests_.push_back(i);
  }
  HostResults drawn;
  {
    const Stopwatch watch(head_seconds_);
    drawn = FinishDrawing(BeginDrawing(context, rows, static_cast<int32_t>(rows.head.rows)));
  }
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const ScoreRequest& request = requests[drawn_requests_[n]];
    const auto num_top = static_cast<size_t>(request.num_top);
    *request.result =
        drawn.logprobs.At(n, request.token, std::min(num_top, drawn.logprobs.columns));
  }
  host_.Score(context, {rows.head, rows.x, host_rows_}, host_scores_);
}

CudaSampler::ResultLayout CudaSampler::BeginDrawing(const Context& context, const HeadRows& rows,
                                                    int32_t num_tokens) {
  ResultLayout layout{.num_requests = drawn_rows_.size()};
  int32_t most = -1;
  for (const DrawnRows& drawn : drawn_rows_) {
    layout.num_rows += static_cast<size_t>(drawn.num_rows);
    most = std::max(most, drawn.sampling.top_logprobs);
  }
  if (layout.num_rows == 0) return layout;
  layout.logprobs = most >= 0;
  layout.num_top = static_cast<size_t>(std::clamp(most, 0, num_tokens));
  num_top_ = layout.num_top;
  ops_.ReserveResults(layout.bytes());
  const StepResults& memory = ops_.results();
  auto* const ints = reinterpret_cast<int32_t*>(memory.results());
  auto* const floats = reinterpret_cast<float*>(memory.results());
  DrawResults results = {.tokens = ints};
  if (layout.logprobs) {
    results.logprobs = floats + layout.of_logprobs(0);
    results.ranks = ints + layout.of_logprobs(1);
    results.top_tokens = ints + layout.of_logprobs(2);
    results.top_logprobs = floats + layout.of_logprobs(2 + num_top_);
  }
  const bool verifies = drawn_rows_.front().given_token < 0;
  DrawRows(context, rows, num_tokens, results,
           {.num_accepted = verifies ? ints + layout.accepted() : nullptr});
  ops_.BeginReading(layout.bytes());
  return layout;
}

CudaSampler::HostResults CudaSampler::FinishDrawing(const ResultLayout& layout) {
  if (layout.num_rows == 0) return {};
  ops_.FinishReading();
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

void CudaSampler::DrawRows(const Context& context, const HeadRows& rows, int32_t num_tokens,
                           DrawResults results, DrawKind kind) {
  ops_.WorkBegins();
  size_t first = 0;
  while (first < drawn_rows_.size()) {
    size_t end = first;
    int32_t count = 0;
    while (end < drawn_rows_.size() &&
           (count == 0 || count + drawn_rows_[end].num_rows <= kLogitsTile)) {
      count += drawn_rows_[end++].num_rows;
    }
    DrawTile(context, rows, num_tokens, first, end, results, kind);
    if (!kind.by_place) results.tokens += count;
    if (kind.num_accepted != nullptr) kind.num_accepted += end - first;
    if (results.logprobs != nullptr) {
      results.logprobs += count;
      results.ranks += count;
      results.top_tokens += static_cast<size_t>(count) * num_top_;
      results.top_logprobs += static_cast<size_t>(count) * num_top_;
    }
    first = end;
  }
}

// Of requests [first, end).
void CudaSampler::DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens,
                           size_t first, size_t end, DrawResults results, DrawKind kind) {
  sampling_.clear();
  logit_requests_.clear();
  logit_positions_.clear();
  logit_starts_.clear();
  head_rows_.clear();
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
  const size_t mask_words = MaskWords(num_tokens);
  for (size_t i = first; i < end; ++i) {
    const DrawnRows& drawn = drawn_rows_[i];
    const auto request = static_cast<int32_t>(sampling_.size());
    sampling_.push_back(drawn.sampling);
    AddProcessors(drawn, sampling_.back());
    logit_starts_.push_back(static_cast<int32_t>(head_rows_.size()));
    OUTRIDER_CHECK(drawn.position + drawn.num_rows <= std::numeric_limits<int32_t>::max());
    for (int32_t j = 0; j < drawn.num_rows; ++j) {
      logit_requests_.push_back(request);
      logit_positions_.push_back(static_cast<int32_t>(drawn.position) + j);
      head_rows_.push_back(rows.rows[static_cast<size_t>(drawn.first_row + j)]);
      logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
      token_ids_.push_back(j == 0 ? 0 : drawn.drafts[static_cast<size_t>(j) - 1]);
      if (drawn.given_token >= 0) given_tokens_.push_back(drawn.given_token);
      if (kind.by_place) places_.push_back(drawn.place);
    }
    if (kind.num_accepted != nullptr) places_.push_back(drawn.place);
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
  arrays_.Copy();

  const Scratch::Frame frame(context.arena);
  const auto count = static_cast<int64_t>(head_rows_.size());
  const Tensor logits = TakeRows(context, DType::kF32, count, rows.head.rows);
  ops_.HeadAt(context, rows.x, arrays_.At<int32_t>(head_rows_at), rows.head, logits);
  DrawParams params;
  params.max_rows = static_cast<int>(count);
  params.vocab_size = num_tokens;
  params.logits = static_cast<const float*>(logits.data);
  params.logits_stride = logits.stride;
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
  params.processed_logprobs = verifier_.logprobs_mode() == LogprobsMode::kProcessed;
  params.max_top_logprobs = static_cast<int>(num_top_);
  if (kind.by_place) results.places = arrays_.At<int32_t>(places_at);
  CheckCuda(DrawTokens(params, results, ops_.stream()), "drawing tokens");
  if (kind.num_accepted == nullptr) return;
  CheckCuda(VerifyDrafts({.num_requests = static_cast<int>(sampling_.size()),
                          .token_ids = params.token_ids,
                          .logit_rows = params.logit_rows,
                          .logit_start_loc = params.logit_start_loc,
                          .drawn = results.tokens,
                          .kept_tokens = ops_.results().tokens(),
                          .last_places = arrays_.At<int32_t>(places_at),
                          .num_accepted = kind.num_accepted},
                         ops_.stream()),
            "verifying drafts");
}

void CudaSampler::AddProcessors(const DrawnRows& drawn, RequestSampling& sampling) {
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
