// The response to one API request for tokens. Three threads work on it: the work thread submits the
// request, the engine's thread delivers tokens, and the I/O thread, or gRPC's loop, formats and
// sends them. Tokens that a slow client leaves waiting are merged into one delta per choice.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "outrider/generate/generator.h"
#include "outrider/http/http_message.h"
#include "outrider/openai/answer_writer.h"
#include "outrider/openai/api_error.h"
#include "outrider/server/api_keys.h"
#include "outrider/telemetry/metrics.h"
#include "outrider/telemetry/request_record.h"
#include "outrider/telemetry/request_reporter.h"

namespace outrider {

class GenerationResponse : public HttpProducer,
                           public std::enable_shared_from_this<GenerationResponse> {
 public:
  using RunJob = std::function<void(std::function<void()>)>;

  /// `generator` and `reporter` must outlive the connection; the engine may keep the response for
  /// longer, in the sinks of aborted requests. `record` is what is known of the request so far.
  /// `admission` (ApiKeys::Admit) is held until the request's end, which is reported once.
  /// `run_elsewhere` runs a job on another thread; it is used on the I/O thread only, for what is
  /// too long for that. `form`: of an error that is the answer.
  GenerationResponse(Generator& generator, std::shared_ptr<ServerMetrics> metrics, HttpWaker waker,
                     RequestRecord record, RequestReporter& reporter, KeyAdmission admission,
                     RunJob run_elsewhere, openai::ErrorForm form = openai::ErrorForm::kOpenAi);

  /// Whose request it is. Any thread.
  int32_t caller() const { return caller_; }

  /// Adds what was learned of the request since. Before Start; work thread.
  void UpdateRecord(const std::function<void(RequestRecord&)>& update);
  /// Submits the requests, one per choice of `writer`. If one is refused none runs and the answer
  /// is the error. A stream has events of at least `stream_interval` tokens, but for the first and
  /// the last. Work thread.
  void Start(std::unique_ptr<openai::AnswerWriter> writer, std::vector<GenerationRequest> requests,
             int32_t stream_interval);
  /// The answer is this error. Any thread.
  void Fail(openai::ApiError error);
  /// Ends what runs: the answer is what there is, with finish_reason "abort". False when it had
  /// ended. Any thread.
  bool AbortByClient();
  /// Nobody waits for the answer any more. Any thread.
  bool ended() const;

  // I/O thread.
  void Produce(HttpOutput* output) override;
  void Abandon() override;
  void Cancel() override;

 private:
  struct Pending {
    size_t choice;
    OutputDelta delta;
  };
  // For latency metrics of one choice. Engine thread only, once the choice is submitted.
  struct ChoiceTiming {
    std::chrono::steady_clock::time_point last_token;  // before the first one: of the submission
    bool has_token = false;
  };

  void OnDelta(size_t choice, OutputDelta&& delta);
  void Observe(size_t choice, const OutputDelta& delta);
  void AddPending(size_t choice, OutputDelta&& delta);
  bool aborted_by_client() const;
  void AbortRequests();  // not on the engine's thread
  void RecordDeltas(const std::vector<Pending>& deltas);
  void Report(const std::string& outcome, bool failed);
  void ProduceError(const openai::ApiError& error, HttpOutput* output);
  bool IsLong(const std::vector<Pending>& deltas);
  void ProduceElsewhere(std::vector<Pending> deltas);
  void ProduceAnswer(std::vector<Pending> deltas, HttpOutput* output);
  void ProduceStream(std::vector<Pending> deltas, HttpOutput* output);
  void WriteDelta(Pending pending, std::string* out);
  void WriteHeld(size_t choice, std::string* out);
  void ProduceWhole(std::vector<Pending> deltas, HttpOutput* output);

  Generator& generator_;
  const std::shared_ptr<ServerMetrics> metrics_;
  const HttpWaker waker_;
  const int32_t caller_;
  const std::vector<HttpHeader> headers_;
  const std::chrono::steady_clock::time_point received_ = std::chrono::steady_clock::now();
  RequestReporter& reporter_;
  const RunJob run_elsewhere_;
  const openai::ErrorForm form_;
  std::vector<ChoiceTiming> timings_;
  size_t num_ended_choices_ = 0;  // engine thread
  int64_t longest_choice_ = 0;    // tokens; engine thread

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  RequestRecord record_;
  std::vector<Pending> pending_;
  std::vector<RequestId> ids_;  // submitted and not known to have ended
  bool submitted_ = false;      // all of them
  std::optional<openai::ApiError> error_;
  bool ended_ = false;
  bool aborted_by_client_ = false;
  bool woken_ = false;                  // Wake was called since the last Produce
  bool is_elsewhere_ = false;           // a job writes the next part of the answer
  std::optional<HttpOutput> produced_;  // what it wrote

  // Written before submitted_ is set, then by the job while it runs, else on the I/O thread only.
  std::unique_ptr<openai::AnswerWriter> writer_;
  size_t stream_interval_ = 1;
  std::vector<OutputDelta> unwritten_;  // of each choice: arrived, not written yet
  std::vector<bool> has_written_;       // choices of which something was written
  bool head_sent_ = false;
  size_t num_unfinished_ = 0;
  // I/O thread.
  bool finished_ = false;
  bool reported_ = false;
  std::string ending_;               // of the last choice that ended
  size_t unwritten_work_ = 0;        // bytes to write, roughly
  std::shared_ptr<void> admission_;  // KeyAdmission::counted
};

}  // namespace outrider
