#include "outrider/server/request_starter.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/server/deferred_response.h"

namespace outrider {
namespace {

using openai::RequestError;

constexpr size_t kMaxWaitingRequests = 4096;  // for the work thread
constexpr size_t kMaxWaitingGrammars = 256;   // to be compiled

uint64_t RandomStart() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

openai::TokenRequest Parse(AnswerKind kind, const std::string& body,
                           const openai::RequestLimits& limits) {
  switch (kind) {
    case AnswerKind::kCompletion:
      return openai::ParseCompletionRequest(body, limits);
    case AnswerKind::kChat:
      return openai::ParseChatRequest(body, limits);
    case AnswerKind::kResponse:
      return openai::ParseResponseRequest(body, limits);
    case AnswerKind::kTokens:
      return openai::ParseGenerateRequest(body, limits);
  }
  OUTRIDER_CHECK(false);
}

const char* IdPrefix(AnswerKind kind) {
  switch (kind) {
    case AnswerKind::kCompletion:
      return "cmpl-";
    case AnswerKind::kChat:
      return "chatcmpl-";
    case AnswerKind::kResponse:
      return "resp_";
    case AnswerKind::kTokens:
      return "gen-";
  }
  OUTRIDER_CHECK(false);
}

// An error names the field that asked for the grammar.
std::shared_ptr<const CompiledGrammar> CompileGrammar(GrammarCompiler& compiler,
                                                      const openai::TokenRequest& request) {
  try {
    return compiler.Compile(*request.grammar);
  } catch (const Error& error) {
    throw RequestError(error.code(), request.grammar_field,
                       fmt::format("{}: {}", request.grammar_field, error.what()));
  }
}

openai::ApiError TooMany() {
  return {.status = 503,
          .message = "too many requests wait; try again later",
          .param = "",
          .code = ErrorCodeName(ErrorCode::kOverloaded)};
}

}  // namespace

RequestStarter::RequestStarter(const ServedModels& models, const openai::RequestLimits& limits,
                               const RequestPreparer& preparer, GenerationService& service,
                               GrammarCompiler* grammars, std::shared_ptr<ServerMetrics> metrics,
                               RequestReporter& reporter)
    : models_(models),
      limits_(limits),
      preparer_(preparer),
      service_(service),
      grammars_(grammars),
      metrics_(std::move(metrics)),
      reporter_(reporter),
      next_id_(RandomStart()),
      grammar_work_(kMaxWaitingGrammars),
      work_(kMaxWaitingRequests) {}

std::shared_ptr<HttpProducer> RequestStarter::Start(AnswerKind kind, HttpRequest request,
                                                    HttpWaker waker,
                                                    std::shared_ptr<void> admission) {
  const uint64_t number = next_id_++;
  std::string request_id(request.Header("X-Request-Id").value_or(""));
  if (!openai::IsUsableRequestId(request_id)) request_id = fmt::format("{:016x}", number);
  RequestRecord record;
  record.request_id = request_id;
  record.trace = ReadTraceContext(request);
  record.received = std::chrono::system_clock::now();
  auto response = std::make_shared<GenerationResponse>(
      service_, metrics_, std::move(waker), std::move(record), reporter_, std::move(admission));
  try {
    service_.CheckRoom(1);  // before the work of reading the body
  } catch (const Error& error) {
    metrics_->CountRefusal();
    response->Fail(openai::FromError(error));
    return response;
  }
  registry_.Add(request_id, response);
  auto body = std::make_shared<std::string>(std::move(request.body));
  const bool taken = work_.TryAdd([this, kind, response, body, request_id] {
    if (response->ended()) return;
    const LogRequestId scope(request_id);
    try {
      StartBody(response, kind, *body);
    } catch (const Error& error) {
      response->Fail(openai::FromError(error));
    }
  });
  if (!taken) response->Fail(TooMany());
  return response;
}

std::shared_ptr<HttpProducer> RequestStarter::Compute(std::function<HttpResponse()> make,
                                                      HttpWaker waker) {
  auto response = std::make_shared<DeferredResponse>(std::move(waker));
  const bool taken = work_.TryAdd([make = std::move(make), response] {
    if (response->abandoned()) return;
    try {
      response->Complete(make());
    } catch (const Error& error) {
      response->Complete(openai::ErrorResponse(openai::FromError(error)));
    }
  });
  if (!taken) response->Complete(openai::ErrorResponse(TooMany()));
  return response;
}

// On the work thread: from a body to a request that makes sense.
void RequestStarter::StartBody(const ResponsePtr& response, AnswerKind kind,
                               const std::string& body) {
  openai::TokenRequest request = Parse(kind, body, limits_);
  request.model = models_.Resolve(request.model);
  preparer_.SettleTools(&request, grammars_ != nullptr);
  std::shared_ptr<const CompiledGrammar> grammar;
  if (request.grammar) {
    if (grammars_ == nullptr) {
      throw RequestError(ErrorCode::kInvalidArgument, request.grammar_field,
                         fmt::format("{}: this model has no tokenizer, which structured output "
                                     "needs",
                                     request.grammar_field));
    }
    grammar = grammars_->Find(*request.grammar);
    if (grammar == nullptr) return StartCompiling(response, kind, std::move(request));
  }
  StartParsed(response, kind, std::move(request), grammar);
}

// On the work thread: compiling may take seconds, and goes to a thread of its own.
void RequestStarter::StartCompiling(const ResponsePtr& response, AnswerKind kind,
                                    openai::TokenRequest request) {
  auto shared = std::make_shared<openai::TokenRequest>(std::move(request));
  // Counts while it lives, wherever the job ends up.
  metrics_->AddDeferred(1);
  const std::shared_ptr<void> deferred(nullptr,
                                       [this](std::nullptr_t) { metrics_->AddDeferred(-1); });
  const bool taken = grammar_work_.TryAdd([this, response, kind, shared, deferred] {
    if (response->ended()) return;
    try {
      const auto grammar = CompileGrammar(*grammars_, *shared);
      StartParsed(response, kind, std::move(*shared), grammar);
    } catch (const Error& error) {
      response->Fail(openai::FromError(error));
    }
  });
  if (!taken) {
    throw Error(ErrorCode::kOverloaded, "too many grammars wait to be compiled; try again later");
  }
}

// On a work thread: from a parsed request to requests in the engine.
void RequestStarter::StartParsed(const ResponsePtr& response, AnswerKind kind,
                                 openai::TokenRequest request,
                                 const std::shared_ptr<const CompiledGrammar>& grammar) {
  openai::AnswerInfo info;
  const std::string own_id = fmt::format("{:016x}", next_id_++);
  const std::string& request_id = request.request_id.empty() ? own_id : request.request_id;
  info.id = IdPrefix(kind) + request_id;
  info.model = request.model;
  info.created = std::time(nullptr);
  registry_.Add(info.id, response);
  if (!request.request_id.empty()) registry_.Add(request.request_id, response);
  const int32_t stream_interval = request.stream_interval;
  RequestRecord known;
  known.answer_id = info.id;
  known.model = info.model;
  known.n = request.n;
  PreparedRequest prepared = preparer_.Prepare(kind, std::move(request), std::move(info), grammar);
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
  response->Start(std::move(prepared.writer), std::move(prepared.requests), stream_interval);
}

}  // namespace outrider
