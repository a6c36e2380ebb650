#include "outrider/server/request_starter.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <ctime>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/base/memory_shortage.h"
#include "outrider/base/random_id.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/server/deferred_response.h"

namespace outrider {
namespace {

using openai::ErrorForm;
using openai::RequestError;

// Bodies up to 128 KiB never wait for larger ones: a quarter of a second's work at most.
constexpr WorkOptions kPreparation = {.max_waiting = 4096,
                                      .num_threads = 2,
                                      .num_large_threads = 2,
                                      .large_bytes = size_t{128} << 10};
// Each request writes in one job at a time, so there are never more than requests.
constexpr WorkOptions kWriting = {.max_waiting = SIZE_MAX, .num_threads = 2};
// Each grammar is first given a short time; what takes longer is compiled anew on other threads.
constexpr WorkOptions kCompiling = {.max_waiting = 256};
constexpr WorkOptions kLongCompiling = {.max_waiting = 256, .num_threads = 2};
constexpr double kShortCompilation = 0.1;  // s of processor time

/// The salt of cached prefixes of a caller's requests. A key's own keep others from finding out, by
/// the count of cached tokens, what was sent with it.
std::string SaltOf(int32_t caller, const std::string& salt) {
  return caller == 0 ? salt : fmt::format("key {}/{}", caller, salt);
}

openai::ApiError TooMany() {
  return {.status = 503,
          .message = "too many requests wait; try again later",
          .param = "",
          .code = ErrorCodeName(ErrorCode::kOverloaded)};
}

// A request that cannot be served fails alone.
template <typename Work>
void OrFail(GenerationResponse& response, const Work& work) {
  try {
    const FailsAlone scope;
    work();
  } catch (const Error& error) {
    response.Fail(openai::FromError(error));
  } catch (const std::bad_alloc&) {
    response.Fail(openai::TooLittleMemory());
  }
}

}  // namespace

RequestStarter::RequestStarter(const ServedModels& models, const openai::RequestLimits& limits,
                               Generator& generator, std::shared_ptr<ServerMetrics> metrics,
                               RequestReporter& reporter, bool share_prefix_cache)
    : models_(models),
      limits_(limits),
      generator_(generator),
      metrics_(std::move(metrics)),
      reporter_(reporter),
      share_prefix_cache_(share_prefix_cache),
      writing_(kWriting),
      long_grammar_work_(kLongCompiling),
      grammar_work_(kCompiling),
      work_(kPreparation) {}

RequestStarter::~RequestStarter() { stopping_ = true; }

std::shared_ptr<HttpProducer> RequestStarter::Start(const AnswerForm& form,
                                                    const std::string& client, HttpRequest request,
                                                    HttpWaker waker, KeyAdmission admission) {
  std::string request_id(request.Header("X-Request-Id").value_or(""));
  // Whoever knows an id can end its request.
  if (!openai::IsUsableRequestId(request_id)) request_id = RandomId();
  RequestRecord record;
  record.request_id = request_id;
  record.trace = ReadTraceContext(request);
  record.received = std::chrono::system_clock::now();
  auto response = std::make_shared<GenerationResponse>(
      generator_, metrics_, std::move(waker), std::move(record), reporter_, std::move(admission),
      [this](std::function<void()> job) { writing_.TryAdd("", 0, std::move(job)); },
      form.error_form);
  try {
    generator_.CheckRoom(1);  // before the work of reading the body
  } catch (const Error& error) {
    metrics_->CountRefusal();
    response->Fail(openai::FromError(error));
    return response;
  }
  registry_.Add(request_id, response);
  const size_t bytes = request.body.size();
  auto body = std::make_shared<HttpRequest>(std::move(request));
  const bool taken = work_.TryAdd(client, bytes, [=, this, &form] {
    if (response->ended()) return;
    const LogRequestId scope(request_id);
    OrFail(*response, [&] { StartBody(response, form, client, body->body); });
  });
  if (!taken) response->Fail(TooMany());
  return response;
}

std::shared_ptr<HttpProducer> RequestStarter::Compute(const std::string& client, size_t bytes,
                                                      std::function<HttpResponse()> make,
                                                      HttpWaker waker, ErrorForm form) {
  auto response = std::make_shared<DeferredResponse>(std::move(waker), form);
  const bool taken = work_.TryAdd(client, bytes, [make = std::move(make), response, form] {
    if (response->abandoned()) return;
    try {
      const FailsAlone scope;
      response->Complete(make());
    } catch (const Error& error) {
      response->Complete(openai::ErrorResponse(openai::FromError(error), form));
    } catch (const std::bad_alloc&) {
      response->Complete(openai::ErrorResponse(openai::TooLittleMemory(), form));
    }
  });
  if (!taken) response->Complete(openai::ErrorResponse(TooMany(), form));
  return response;
}

// On a work thread: from a body to a request that makes sense.
void RequestStarter::StartBody(const ResponsePtr& response, const AnswerForm& form,
                               const std::string& client, const std::string& body) {
  openai::TokenRequest request = form.parse(body, limits_);
  request.model = models_.Resolve(request.model);
  if (!share_prefix_cache_) request.cache_salt = SaltOf(response->caller(), request.cache_salt);
  generator_.Settle(&request);
  std::shared_ptr<const CompiledGrammar> grammar;
  if (request.grammar) {
    grammar = GrammarOf(request,
                        [&](const GrammarSpec& spec) { return generator_.grammars()->Find(spec); });
    if (grammar == nullptr) return StartCompiling(response, form, client, std::move(request));
  }
  StartParsed(response, form, std::move(request), grammar);
}

// On a work thread: compiling may take seconds, and goes to threads of its own.
void RequestStarter::StartCompiling(const ResponsePtr& response, const AnswerForm& form,
                                    const std::string& client, openai::TokenRequest request) {
  // Counts while it lives, wherever the job ends up.
  metrics_->AddDeferred(1);
  const std::shared_ptr<void> deferred(nullptr,
                                       [this](std::nullptr_t) { metrics_->AddDeferred(-1); });
  AddCompiling(std::make_shared<Compiling>(
      Compiling{response, &form, client, std::move(request), deferred}));
}

void RequestStarter::AddCompiling(const std::shared_ptr<Compiling>& job) {
  WorkThreads& work = job->is_long ? long_grammar_work_ : grammar_work_;
  const bool taken = work.TryAdd(job->client, 0, [this, job] {
    if (job->response->ended()) return;
    OrFail(*job->response, [&] {
      const double seconds =
          job->is_long ? std::numeric_limits<double>::infinity() : kShortCompilation;
      const auto grammar = GrammarOf(job->request, [&](const GrammarSpec& spec) {
        return generator_.grammars()->TryCompile(spec, seconds, &stopping_);
      });
      if (grammar != nullptr) {
        StartParsed(job->response, *job->form, std::move(job->request), grammar);
      } else if (!stopping_) {
        job->is_long = true;
        AddCompiling(job);
      }
    });
  });
  if (!taken) {
    throw Error(ErrorCode::kOverloaded, "too many grammars wait to be compiled; try again later");
  }
}

// On a work thread: from a parsed request to requests in the engine.
void RequestStarter::StartParsed(const ResponsePtr& response, const AnswerForm& form,
                                 openai::TokenRequest request,
                                 const std::shared_ptr<const CompiledGrammar>& grammar) {
  openai::AnswerInfo info;
  const std::string own_id = RandomId();
  const std::string& request_id = request.request_id.empty() ? own_id : request.request_id;
  info.id = form.id_prefix + request_id;
  info.model = request.model;
  info.created = std::time(nullptr);
  registry_.Add(info.id, response);
  if (!request.request_id.empty()) registry_.Add(request.request_id, response);
  const int32_t stream_interval = request.stream_interval;
  RequestRecord known;
  known.answer_id = info.id;
  known.model = info.model;
  known.n = request.n;
  const std::string response_members = std::move(request.response_members);
  const RequestPreparer& preparer = generator_.preparer();
  PreparedRequest prepared = preparer.Prepare(std::move(request), std::move(info), grammar);
  const SamplingParams& sampling = prepared.requests.front().sampling;
  metrics_->ObserveRequest(known.n, sampling.max_tokens);
  response->UpdateRecord([&](RequestRecord& record) {
    record.answer_id = known.answer_id;
    record.model = known.model;
    record.n = known.n;
    record.max_tokens = sampling.max_tokens;
    record.temperature = sampling.temperature;
    record.top_p = sampling.top_p;
    for (size_t i = 0; i < prepared.requests.size(); i += static_cast<size_t>(known.n)) {
      record.prompt_tokens += static_cast<int64_t>(prepared.requests[i].prompt_token_ids.size());
    }
  });
  auto writer = form.make_writer(&prepared, response_members, preparer.encoder());
  response->Start(std::move(writer), std::move(prepared.requests), stream_interval);
}

}  // namespace outrider
