#include "outrider/ops/cuda/cuda_sampler.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/ops/cpu/rank_rows.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/request_sampling.h"
#include "outrider/ops/tokens_on_device.h"
#include "outrider/sampling/token_mask.h"

namespace outrider::cuda {

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
  for (const int32_t place : {request.places.last_token, request.places.rejected,
                              request.places.last_row, request.places.drawn}) {
    OUTRIDER_CHECK(place < 0 || std::cmp_less(place, ops_.results().num_tokens()));
  }
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
            .kept = request.places,
            .given_count = verifier_.GivenCount(input)};
  drawn->sampling.top_logprobs = params.logprobs.value_or(-1);
  if (input.processors != nullptr && input.processors->penalises()) {
    drawn->sampling.penalised = true;
    drawn->sampling.repetition_penalty = params.repetition_penalty;
    drawn->sampling.presence_penalty = params.presence_penalty;
    drawn->sampling.frequency_penalty = params.frequency_penalty;
    drawn->counts = input.processors->Counts({KnownTokens(input.tokens), input.prompt_length, {}});
  }
  return true;
}

void CudaSampler::AddForbidden(int32_t vocab_size) {
  const auto forbids = [](const VerifyInput& input) {
    return input.processors != nullptr &&
           input.processors->MayForbid({KnownTokens(input.tokens), input.prompt_length, {}});
  };
  const size_t words = MaskWords(vocab_size);
  size_t num_rows = 0;
  for (const size_t i : drawn_requests_) {
    if (forbids(now_.requests[i].input))
      num_rows += static_cast<size_t>(now_.requests[i].num_rows());
  }
  forbidden_.assign(num_rows * words, ~uint32_t{0});
  uint32_t* next = forbidden_.data();
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const VerifyInput& input = now_.requests[drawn_requests_[n]].input;
    if (!forbids(input)) continue;
    MatrixView<const uint32_t>& masks = drawn_rows_[n].masks;
    const MatrixView<const uint32_t> of_grammar = masks;
    masks = {next, drawn_rows_[n].num_rows, static_cast<int64_t>(words)};
    for (int64_t j = 0; j < masks.rows; ++j, next += words) {
      if (of_grammar.data != nullptr) std::copy_n(of_grammar.row(j), words, next);
      input.processors->Forbid({KnownTokens(input.tokens), input.prompt_length,
                                KnownTokens(input.drafts.first(static_cast<size_t>(j)))},
                               {next, words});
    }
  }
}

void CudaSampler::VerifyCopies::Assign(std::span<const VerifyRequest> originals) {
  requests.assign(originals.begin(), originals.end());
  drafts.clear();
  for (const VerifyRequest& request : originals) {
    drafts.insert(drafts.end(), request.input.drafts.begin(), request.input.drafts.end());
  }
  size_t first = 0;
  for (VerifyRequest& request : requests) {
    request.input.drafts = std::span(drafts).subspan(first, request.input.drafts.size());
    first += request.input.drafts.size();
  }
}

void CudaSampler::VerifyCopies::ReadDrafts(const CudaOps& ops) {
  ops.ReadTokens();
  for (TokenRef& draft : drafts) draft = ops.ReadToken(draft);
}

RowDrawer::HostResults CudaSampler::DrawNow(const Context& context, const HeadRows& rows) {
  const Stopwatch watch(head_seconds_);
  const auto num_tokens = static_cast<int32_t>(rows.head.rows);
  return drawer_.Wait(
      drawer_.Launch(context, rows, num_tokens, drawn_rows_, RowDrawer::Drawers::kFirst));
}

void CudaSampler::Verify(const Context& context, const HeadRows& rows,
                         std::span<const VerifyRequest> requests) {
  if (context.place().rank > 0) return host_.Verify(context, rows, {});
  now_.Assign(requests);
  drawn_rows_.clear();
  drawn_requests_.clear();
  host_requests_.clear();
  host_rows_.clear();
  bool processes = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    DrawnRows drawn;
    if (Describe(now_.requests[i], &drawn)) {
      drawn_rows_.push_back(drawn);
      drawn_requests_.push_back(i);
      processes |= drawn.processors != nullptr;
      continue;
    }
    VerifyRequest& request = host_requests_.emplace_back(now_.requests[i]);
    const std::span<const int32_t> own = rows.rows.subspan(static_cast<size_t>(request.first_row),
                                                           static_cast<size_t>(request.num_rows()));
    request.first_row = static_cast<int32_t>(host_rows_.size());
    host_rows_.insert(host_rows_.end(), own.begin(), own.end());
  }
  // Processors change a row by the drafts before it.
  if (processes) now_.ReadDrafts(ops_);
  AddForbidden(static_cast<int32_t>(rows.head.rows));
  const RowDrawer::HostResults drawn = DrawNow(context, rows);
  now_.ReadDrafts(ops_);
  size_t first = 0;
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const VerifyRequest& request = now_.requests[drawn_requests_[n]];
    VerifyInput input = request.input;
    input.masks = drawn_rows_[n].masks;
    GiveResult(request, input, drawn, n, first);
    first += static_cast<size_t>(request.num_rows());
  }
  host_.Verify(context, {rows.head, rows.x, host_rows_}, host_requests_);
}

void CudaSampler::GiveResult(const VerifyRequest& request, VerifyInput input,
                             const RowDrawer::HostResults& drawn, size_t n, size_t first_row) {
  input.drawn = drawn.tokens.subspan(first_row, static_cast<size_t>(request.num_rows()));
  input.num_accepted = drawn.accepted[n];
  if (input.params->logprobs) input.drawn_logprobs = drawn.logprobs.From(first_row);
  verifier_.Verify(input, request.result);
}

std::optional<Ticket> CudaSampler::Launch(const Context& context, const HeadRows& rows,
                                          std::span<const VerifyRequest> requests) {
  drawn_rows_.clear();
  for (const VerifyRequest& request : requests) {
    const VerifyInput& input = request.input;
    const bool plain = input.masks.data == nullptr && input.processors == nullptr;
    if (!plain || !Describe(request, &drawn_rows_.emplace_back())) return std::nullopt;
  }
  OUTRIDER_CHECK(last_launched_ < last_waited_ + std::ssize(launched_));
  LaunchedVerify& launched = LaunchedBy(++last_launched_);
  launched.copies.Assign(requests);
  launched.gives_results = context.place().rank == 0;
  const Stopwatch watch(head_seconds_);
  launched.drawing = drawer_.Launch(context, rows, static_cast<int32_t>(rows.head.rows),
                                    drawn_rows_, RowDrawer::Drawers::kAll);
  return last_launched_;
}

void CudaSampler::Wait(Ticket ticket) {
  OUTRIDER_CHECK(ticket == ++last_waited_ && ticket <= last_launched_);
  LaunchedVerify& launched = LaunchedBy(ticket);
  const RowDrawer::HostResults drawn = drawer_.Wait(launched.drawing);
  if (!launched.gives_results) return;
  VerifyCopies& copies = launched.copies;
  for (TokenRef& draft : copies.drafts) draft = ops_.ReadVerifiedToken(draft);
  size_t first = 0;
  for (size_t n = 0; n < copies.requests.size(); ++n) {
    const VerifyRequest& request = copies.requests[n];
    GiveResult(request, request.input, drawn, n, first);
    first += static_cast<size_t>(request.num_rows());
  }
}

void CudaSampler::Draw(const Context& context, const HeadRows& rows,
                       std::span<const DrawRequest> requests, const DraftTokens& among,
                       std::span<TokenRef> tokens) {
  DrawToPlaces(context, rows, requests, among, tokens);
  if (host_draws_.empty()) return;
  host_drafts_.resize(host_draws_.size());
  host_.Draw(context, {rows.head, rows.x, host_rows_}, host_draw_requests_, among, host_drafts_);
  for (size_t i = 0; i < host_draws_.size(); ++i) tokens[host_draws_[i]] = host_drafts_[i];
}

void CudaSampler::DrawToPlaces(const Context& context, const HeadRows& rows,
                               std::span<const DrawRequest> requests, const DraftTokens& among,
                               std::span<TokenRef> tokens) {
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
    tokens[i] = TokenRef::At(request.place);
    drawn.sampling.temperature = 0;
    if (request.sampling != nullptr) {
      drawn.sampling = SamplingOf(*request.sampling, request.draw.seed);
    }
    drawn_rows_.push_back(drawn);
  }
  if (!drawn_rows_.empty()) {
    const Stopwatch watch(head_seconds_);
    ops_.results().DraftsAreDrawn();
    drawer_.DrawToPlaces(context, rows, among.rows, drawn_rows_, OnDevice(among.ids));
  }
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

void CudaSampler::Score(const Context& context, const HeadRows& rows,
                        std::span<const ScoreRequest> requests) {
  if (context.place().rank > 0) return host_.Score(context, rows, {});
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
  const RowDrawer::HostResults drawn = DrawNow(context, rows);
  for (size_t n = 0; n < drawn_requests_.size(); ++n) {
    const ScoreRequest& request = requests[drawn_requests_[n]];
    const auto num_top = static_cast<size_t>(request.num_top);
    *request.result =
        drawn.logprobs.At(n, request.token, std::min(num_top, drawn.logprobs.columns));
  }
  host_.Score(context, {rows.head, rows.x, host_rows_}, host_scores_);
}

}  // namespace outrider::cuda
