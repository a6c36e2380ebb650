#include "outrider/server/generation_response.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/memory_shortage.h"
#include "outrider/parallel/ended_rank.h"

namespace outrider {
namespace {

// Deltas kept apart for a client that is behind; later ones join the last of their choice.
constexpr size_t kMaxSeparateDeltas = 64;

std::string NameOf(const openai::ApiError& error) {
  return error.code.empty() ? "status " + std::to_string(error.status) : error.code;
}

/// What a client is told of a fault: of the engine as a whole, or of a rank, nothing that may name
/// a file of the server.
std::string FaultOf(const std::string& reason) {
  const bool is_of_request = reason == kLogitsOverflown || reason == kGrammarFailed;
  if (is_of_request) return reason;
  const std::string_view ended = EndedRankIn(reason);
  return fmt::format("{}, and the server's log says why", ended.empty() ? "it has failed" : ended);
}

// Anthropic's clients look for the id under another name.
std::vector<HttpHeader> IdHeaders(const std::string& id, openai::ErrorForm form) {
  std::vector<HttpHeader> headers = {{"X-Request-Id", id}};
  if (form == openai::ErrorForm::kAnthropic) headers.push_back({"request-id", id});
  return headers;
}

}  // namespace

GenerationResponse::GenerationResponse(Generator& generator, std::shared_ptr<ServerMetrics> metrics,
                                       HttpWaker waker, RequestRecord record,
                                       RequestReporter& reporter, KeyAdmission admission,
                                       RunJob run_elsewhere, openai::ErrorForm form)
    : generator_(generator),
      metrics_(std::move(metrics)),
      waker_(std::move(waker)),
      caller_(admission.caller),
      headers_(IdHeaders(record.request_id, form)),
      reporter_(reporter),
      run_elsewhere_(std::move(run_elsewhere)),
      form_(form),
      record_(std::move(record)),
      admission_(std::move(admission.counted)) {}

void GenerationResponse::UpdateRecord(const std::function<void(RequestRecord&)>& update) {
  const std::lock_guard lock(mutex_);
  update(record_);
}

void GenerationResponse::Start(std::unique_ptr<openai::AnswerWriter> writer,
                               std::vector<GenerationRequest> requests, int32_t stream_interval) {
  if (ended()) return;
  stream_interval_ = static_cast<size_t>(stream_interval);
  timings_.resize(requests.size(), {.last_token = std::chrono::steady_clock::now()});
  writer_ = std::move(writer);
  unwritten_.resize(requests.size());
  has_written_.resize(requests.size());
  num_unfinished_ = requests.size();
  try {
    std::vector<RequestId> ids = generator_.Submit(
        std::move(requests), [self = shared_from_this()](size_t choice, OutputDelta&& delta) {
          self->OnDelta(choice, std::move(delta));
        });
    std::lock_guard<std::mutex> lock(mutex_);
    ids_ = std::move(ids);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOverloaded) metrics_->CountRefusal();
    Fail(openai::FromError(error));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    submitted_ = true;
  }
  // The client went away meanwhile.
  if (ended() || aborted_by_client()) AbortRequests();
  waker_.Wake();  // a stream's head need not wait for its first token
}

void GenerationResponse::Fail(openai::ApiError error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    error_ = std::move(error);
    ended_ = true;
    pending_.clear();
  }
  waker_.Wake();
}

bool GenerationResponse::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

bool GenerationResponse::aborted_by_client() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return aborted_by_client_;
}

bool GenerationResponse::AbortByClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return false;
    aborted_by_client_ = true;
  }
  AbortRequests();
  return true;
}

void GenerationResponse::AbortRequests() {
  std::vector<RequestId> ids;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ids.swap(ids_);
  }
  for (const RequestId id : ids) generator_.Abort(id);
}

void GenerationResponse::Observe(size_t choice, const OutputDelta& delta) {
  ChoiceTiming& timing = timings_[choice];
  if (!delta.token_ids.empty()) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - timing.last_token).count();
    if (std::exchange(timing.has_token, true)) {
      metrics_->ObserveTokenInterval(seconds);
    } else {
      metrics_->ObserveFirstToken(seconds);
    }
    timing.last_token = now;
  }
  if (delta.finish_reason == FinishReason::kStop || delta.finish_reason == FinishReason::kLength) {
    metrics_->ObserveFinished(delta.stats);
    longest_choice_ = std::max(longest_choice_, delta.stats.completion_tokens);
    if (++num_ended_choices_ == timings_.size()) metrics_->ObserveLongestChoice(longest_choice_);
  }
}

void GenerationResponse::OnDelta(size_t choice, OutputDelta&& delta) {
  Observe(choice, delta);
  if (delta.finish_reason == FinishReason::kAbort && !aborted_by_client()) {
    Fail({.status = 503,
          .message = "the engine ended this request; try again",
          .param = "",
          .code = "aborted"});
    return;
  }
  if (delta.finish_reason == FinishReason::kError) {
    Fail({.status = 500,
          .message = "the engine could not go on with this request: " +
                     FaultOf(std::get<std::string>(delta.stop_reason)),
          .param = "",
          .code = "engine_error"});
    return;
  }
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    AddPending(choice, std::move(delta));
    wake = !std::exchange(woken_, true);
  }
  if (wake) waker_.Wake();
}

void GenerationResponse::AddPending(size_t choice, OutputDelta&& delta) {
  if (pending_.size() >= kMaxSeparateDeltas) {
    const auto last = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& pending) {
      return pending.choice == choice;
    });
    if (last != pending_.rend()) {
      JoinDeltas(std::move(delta), &last->delta);
      return;
    }
  }
  pending_.push_back({choice, std::move(delta)});
}

void GenerationResponse::Abandon() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    pending_.clear();
  }
  AbortRequests();
  Report("disconnected", false);
}

void GenerationResponse::Cancel() {
  Fail({.status = 503,
        .message = "the server is shutting down",
        .param = "",
        .code = "shutting_down"});
}

void GenerationResponse::Produce(HttpOutput* output) {
  const auto is_empty = [&] { return !output->head && output->body.empty() && !output->end; };
  std::vector<Pending> deltas;
  std::optional<openai::ApiError> error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = false;
    if (finished_ || is_elsewhere_ || (!submitted_ && !error_)) return;
    if (produced_) *output = *std::exchange(produced_, std::nullopt);
    if (is_empty()) {
      deltas.swap(pending_);
      error = error_;
    }
  }
  if (is_empty()) {
    RecordDeltas(deltas);
    if (error) {
      AbortRequests();
      ProduceError(*error, output);
    } else if (IsLong(deltas)) {
      return ProduceElsewhere(std::move(deltas));
    } else {
      ProduceAnswer(std::move(deltas), output);
    }
  }
  if (!output->end) return;
  finished_ = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    ids_.clear();
  }
  Report(error ? NameOf(*error) : ending_, error.has_value());
}

// Whether writing the deltas takes longer than other connections should wait.
bool GenerationResponse::IsLong(const std::vector<Pending>& deltas) {
  constexpr size_t kBytesPerLogprob = 64;
  constexpr size_t kLong = size_t{256} << 10;  // about a millisecond
  const auto entries = [](const std::vector<PositionLogprobs>& positions) {
    size_t count = 0;
    for (const PositionLogprobs& position : positions) count += position.top.size() + 1;
    return count;
  };
  size_t num_ended = 0;
  for (const auto& [choice, delta] : deltas) {
    unwritten_work_ += delta.text.size() + kBytesPerLogprob * entries(delta.logprobs) +
                       kBytesPerLogprob * entries(delta.prompt_logprobs) * unwritten_.size();
    if (delta.finish_reason) ++num_ended;
  }
  if (!writer_->streams() && num_ended < num_unfinished_) return false;  // nothing is written yet
  return std::exchange(unwritten_work_, 0) > kLong;
}

void GenerationResponse::ProduceElsewhere(std::vector<Pending> deltas) {
  {
    const std::lock_guard lock(mutex_);
    is_elsewhere_ = true;
  }
  auto shared = std::make_shared<std::vector<Pending>>(std::move(deltas));
  run_elsewhere_([self = shared_from_this(), shared] {
    HttpOutput output;
    bool failed = false;
    try {
      const FailsAlone scope;
      self->ProduceAnswer(std::move(*shared), &output);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    if (failed) self->Fail(openai::TooLittleMemory());
    {
      const std::lock_guard lock(self->mutex_);
      self->is_elsewhere_ = false;
      if (!failed) self->produced_ = std::move(output);
    }
    self->waker_.Wake();
  });
}

void GenerationResponse::ProduceAnswer(std::vector<Pending> deltas, HttpOutput* output) {
  if (writer_->streams()) {
    ProduceStream(std::move(deltas), output);
  } else {
    ProduceWhole(std::move(deltas), output);
  }
}

// Adds what deltas tell about the request to its record.
void GenerationResponse::RecordDeltas(const std::vector<Pending>& deltas) {
  const auto least = [](std::optional<double>& so_far, double seconds) {
    so_far = std::min(so_far.value_or(seconds), seconds);
  };
  if (!deltas.empty() && deltas.back().delta.finish_reason) {
    ending_ = FinishReasonName(*deltas.back().delta.finish_reason);
  }
  const std::lock_guard lock(mutex_);
  for (const Pending& pending : deltas) {
    record_.completion_tokens += static_cast<int64_t>(pending.delta.token_ids.size());
    if (!pending.delta.finish_reason) continue;
    least(record_.queue_seconds, pending.delta.stats.queue_seconds);
    least(record_.first_token_seconds, pending.delta.stats.first_token_seconds);
  }
}

void GenerationResponse::Report(const std::string& outcome, bool failed) {
  if (std::exchange(reported_, true)) return;
  admission_.reset();  // before the client sees the end and asks again
  RequestRecord record;
  {
    const std::lock_guard lock(mutex_);
    record = record_;
  }
  record.outcome = outcome;
  record.failed = failed;
  record.total_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - received_).count();
  reporter_.Report(record);  // without the lock: the engine must not wait for a log
}

void GenerationResponse::ProduceError(const openai::ApiError& error, HttpOutput* output) {
  if (head_sent_) {
    writer_->WriteError(error, &output->body);
  } else {
    HttpResponse response = openai::ErrorResponse(error, form_);
    output->body = std::move(response.body);
    response.body.clear();
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    output->head = std::move(response);
  }
  output->end = true;
}

void GenerationResponse::WriteDelta(Pending pending, std::string* out) {
  OutputDelta& held = unwritten_[pending.choice];
  const bool at_once = stream_interval_ <= 1 && held.token_ids.empty() && held.text.empty();
  if (at_once && !writer_->MustWait(pending.choice)) {
    return writer_->WriteDelta(pending.choice, pending.delta, out);
  }
  JoinDeltas(std::move(pending.delta), &held);
  WriteHeld(pending.choice, out);
}

// Writes what is held of a choice, if it is enough and not to wait for another choice.
void GenerationResponse::WriteHeld(size_t choice, std::string* out) {
  OutputDelta& held = unwritten_[choice];
  if (writer_->MustWait(choice)) return;
  const bool first = !has_written_[choice] && !held.token_ids.empty();
  if (!first && !held.finish_reason && held.token_ids.size() < stream_interval_) return;
  has_written_[choice] = true;
  writer_->WriteDelta(choice, held, out);
  held = {};
}

void GenerationResponse::ProduceStream(std::vector<Pending> deltas, HttpOutput* output) {
  if (!head_sent_) {
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = headers_;
    head.headers.push_back({"Cache-Control", "no-cache"});
    head.headers.push_back({"X-Accel-Buffering", "no"});
    output->head = std::move(head);
    output->heartbeat = ": ping\n\n";
    writer_->WriteStart(&output->body);
    head_sent_ = true;
  }
  for (Pending& pending : deltas) {
    if (pending.delta.finish_reason) --num_unfinished_;
    WriteDelta(std::move(pending), &output->body);
  }
  // What these deltas were waited for.
  for (size_t choice = 0; choice < unwritten_.size(); ++choice) WriteHeld(choice, &output->body);
  if (num_unfinished_ == 0) {
    writer_->WriteEnd(&output->body);
    output->end = true;
  }
}

void GenerationResponse::ProduceWhole(std::vector<Pending> deltas, HttpOutput* output) {
  for (Pending& pending : deltas) {
    if (pending.delta.finish_reason) --num_unfinished_;
    JoinDeltas(std::move(pending.delta), &unwritten_[pending.choice]);
  }
  if (num_unfinished_ > 0) return;
  HttpResponse head;
  head.headers = headers_;
  output->head = std::move(head);
  output->body = writer_->Body(std::move(unwritten_));
  output->end = true;
}

}  // namespace outrider
