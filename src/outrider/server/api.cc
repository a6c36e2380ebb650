// Longer than most files: the table of routes, and a handler for each.
#include "outrider/server/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <functional>
#include <utility>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/base/json_text.h"
#include "outrider/base/version.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/openapi.h"
#include "outrider/openai/parse_tokenize.h"
#include "outrider/openai/render_json.h"
#include "outrider/server/admin_api.h"
#include "outrider/server/step_feed.h"
#include "outrider/server/web_page.h"

namespace outrider {
namespace {

using openai::ApiError;
using openai::ErrorForm;
using openai::ErrorResponse;

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr size_t kMostStepListeners = 16;  // each costs work with every step

HttpResponse TextResponse(std::string type, std::string body) {
  HttpResponse response;
  response.content_type = std::move(type);
  response.body = std::move(body);
  return response;
}

// Forms of web pages have other types, and a page of another origin can send no JSON without asking
// first (CORS).
bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  constexpr std::string_view kSuffix = "+json";
  return EqualIgnoringCase(type, "application/json") ||
         (type.size() > kSuffix.size() &&
          EqualIgnoringCase(type.substr(type.size() - kSuffix.size()), kSuffix));
}

// Anthropic's clients read errors of another form.
ErrorForm FormOf(const HttpRequest& head) {
  return head.path.starts_with("/v1/messages") ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

ApiError Unavailable() {
  return {.status = 503,
          .message = "the server is shutting down",
          .param = "",
          .code = "shutting_down"};
}

}  // namespace

struct Api::Route {
  std::string_view method;
  std::string_view path;
  Endpoint endpoint;
  AdminRoute admin = {};   // Endpoint::kAdmin
  bool takes_get = false;  // too, because SGLang's clients may send it

  std::string_view Allow() const {
    if (method == "GET") return "GET, HEAD, OPTIONS";
    return takes_get ? "GET, POST, OPTIONS" : "POST, OPTIONS";
  }
};

Api::Api(ApiOptions options, GenerationService& service, const PromptEncoder& encoder,
         GrammarCompiler* grammars)
    : options_(std::move(options)),
      keys_(options_.api_keys, options_.max_requests_per_key),
      admin_keys_({options_.admin_key.empty() ? "none" : options_.admin_key}, std::nullopt),
      hosts_(options_.allowed_hosts, options_.restrict_hosts),
      models_(options_.served_model_names),
      service_(service),
      encoder_(encoder),
      generator_(service, encoder, grammars, options_.output_format, options_.limits.max_model_len),
      metrics_(std::make_shared<ServerMetrics>(models_.names()[0], options_.limits.max_model_len)),
      reporter_(options_.log_requests, options_.otlp_traces_endpoint),
      start_time_(std::time(nullptr)),
      starter_(models_, options_.limits, generator_, metrics_, reporter_,
               options_.share_prefix_cache) {}

const Api::Route* Api::FindRoute(std::string_view path) {
  static constexpr std::array<Route, 43> kRoutes = {{
      {"GET", "/health", Endpoint::kHealth},
      {"GET", "/version", Endpoint::kVersion},
      {"GET", "/metrics", Endpoint::kMetrics},
      {"GET", "/debug/steps", Endpoint::kSteps},
      {"GET", "/v1/models", Endpoint::kModels},
      {"POST", "/v1/completions", Endpoint::kCompletions},
      {"POST", "/v1/chat/completions", Endpoint::kChat},
      {"POST", "/v1/responses", Endpoint::kResponses},
      {"POST", "/v1/messages", Endpoint::kMessages},
      {"POST", "/v1/messages/count_tokens", Endpoint::kCountTokens},
      {"POST", "/generate", Endpoint::kGenerate},
      {"POST", "/abort", Endpoint::kAbort},
      {"POST", "/tokenize", Endpoint::kTokenize},
      {"POST", "/detokenize", Endpoint::kDetokenize},
      {"GET", "/tokenizer_info", Endpoint::kTokenizerInfo},
      {"GET", "/openapi.json", Endpoint::kOpenApi},
      // For routers.
      {"POST", "/v1/completions/render", Endpoint::kRenderCompletion},
      {"POST", "/v1/chat/completions/render", Endpoint::kRenderChat},
      {"POST", "/inference/v1/generate", Endpoint::kInference},
      {"GET", "/v1/loads", Endpoint::kLoads},
      {"GET", "/get_loads", Endpoint::kLoads},
      {"GET", "/get_load", Endpoint::kOldLoad},
      {"GET", "/server_info", Endpoint::kServerInfo},
      {"GET", "/get_server_info", Endpoint::kServerInfo},
      {"GET", "/model_info", Endpoint::kModelInfo},
      {"GET", "/get_model_info", Endpoint::kModelInfo},
      {"POST", "/abort_request", Endpoint::kAbort},
      // For trainers and operators.
      {"GET", "/is_paused", Endpoint::kIsPaused},
      {"GET", "/is_sleeping", Endpoint::kIsSleeping},
      {"GET", "/weight_version", Endpoint::kWeightVersion},
      {"GET", "/get_weight_version", Endpoint::kWeightVersion},
      {"POST", "/pause", Endpoint::kAdmin, AdminRoute::kPause},
      {"POST", "/pause_generation", Endpoint::kAdmin, AdminRoute::kPauseSglang},
      {"POST", "/resume", Endpoint::kAdmin, AdminRoute::kResume},
      {"POST", "/continue_generation", Endpoint::kAdmin, AdminRoute::kResumeSglang},
      {"POST", "/reset_prefix_cache", Endpoint::kAdmin, AdminRoute::kResetPrefixCache},
      {"POST", "/flush_cache", Endpoint::kAdmin, AdminRoute::kFlushCache, /*takes_get=*/true},
      {"POST", "/update_weights", Endpoint::kAdmin, AdminRoute::kUpdateWeights},
      {"POST", "/update_weights_from_disk", Endpoint::kAdmin, AdminRoute::kUpdateWeights},
      {"POST", "/sleep", Endpoint::kAdmin, AdminRoute::kSleep},
      {"POST", "/release_memory_occupation", Endpoint::kAdmin, AdminRoute::kSleepSglang},
      {"POST", "/wake_up", Endpoint::kAdmin, AdminRoute::kWakeUp},
      {"POST", "/resume_memory_occupation", Endpoint::kAdmin, AdminRoute::kWakeUpSglang},
  }};
  static constexpr Route kPageRoute = {"GET", "/", Endpoint::kPage};
  static constexpr Route kModelRoute = {"GET", kModelPrefix, Endpoint::kModel};
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  if (IsPagePath(path)) return &kPageRoute;
  return path.starts_with(kModelPrefix) ? &kModelRoute : nullptr;
}

std::optional<HttpResponse> Api::CheckHead(const HttpRequest& head) {
  const auto refuse = [&](const ApiError& error) { return ErrorResponse(error, FormOf(head)); };
  if (!hosts_.Allows(head)) {
    return refuse({.status = 403,
                   .message = "the Host field names a host that this server does not answer "
                              "for: use localhost, or name it with --allowed-hosts",
                   .param = "",
                   .code = "host_not_allowed"});
  }
  const Route* route = FindRoute(head.path);
  // The page itself holds no secrets; what it asks for then needs the key.
  const bool open = route != nullptr &&
                    (route->endpoint == Endpoint::kHealth || route->endpoint == Endpoint::kPage);
  const bool is_admin = route != nullptr && route->endpoint == Endpoint::kAdmin;
  if (is_admin && options_.admin_key.empty()) {
    return refuse(
        {.status = 404,
         .message = fmt::format("{} is off: name a key for it with --enable-admin-api", head.path),
         .param = "",
         .code = "not_found"});
  }
  if (is_admin && !admin_keys_.IsAuthorized(head)) {
    return refuse({.status = 401,
                   .message = fmt::format("{} needs the key that --enable-admin-api names: send it "
                                          "as \"Authorization: Bearer KEY\"",
                                          head.path),
                   .param = "",
                   .code = "invalid_api_key"});
  }
  if (!open && !is_admin && !keys_.IsAuthorized(head)) {
    return refuse({.status = 401,
                   .message = "a valid API key is needed: send it as "
                              "\"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"",
                   .param = "",
                   .code = "invalid_api_key"});
  }
  if (route == nullptr) {
    return refuse(
        {.status = 404,
         .message = fmt::format("no such route: {} {}", head.method, head.path.substr(0, 200)),
         .param = "",
         .code = "not_found"});
  }
  const bool is_get = route->method == "GET";
  if (head.method == "OPTIONS") {
    HttpResponse response = TextResponse("", "");
    response.status = 204;
    response.headers.push_back({"Allow", std::string(route->Allow())});
    return response;
  }
  const bool is_taken = head.method == route->method || (is_get && head.method == "HEAD") ||
                        (route->takes_get && head.method == "GET");
  if (!is_taken) {
    HttpResponse response =
        refuse({.status = 405,
                .message = fmt::format("{} takes {}, not {}", head.path.substr(0, 200),
                                       route->method, head.method.substr(0, 32)),
                .param = "",
                .code = "method_not_allowed"});
    response.headers.push_back({"Allow", std::string(route->Allow())});
    return response;
  }
  // What is asked of a trainer's routes may be in the path and the query alone.
  const bool may_be_bare = is_admin && !head.Header("Content-Type");
  if (!may_be_bare && !is_get && !IsJson(head.Header("Content-Type").value_or(""))) {
    return refuse({.status = 415,
                   .message = "the Content-Type of a request must be application/json",
                   .param = "",
                   .code = "unsupported_media_type"});
  }
  if (draining_ && !is_get && !is_admin) return refuse(Unavailable());
  return std::nullopt;
}

HttpResponse Api::RefusalOf(const HttpRequest& head, int status, const std::string& message) {
  HttpResponse response = ErrorResponse(
      {.status = status, .message = message, .param = "", .code = status == 413 ? "too_large" : ""},
      FormOf(head));
  if (status == 415) response.headers.push_back({"Accept-Encoding", "identity"});
  return response;
}

std::shared_ptr<HttpProducer> Api::Handle(HttpRequest request, HttpWaker waker) {
  switch (FindRoute(request.path)->endpoint) {
    case Endpoint::kHealth:
      return MakeReadyProducer(Health());
    case Endpoint::kVersion:
      return MakeReadyProducer(TextResponse(
          "application/json", fmt::format(R"({{"version":{}}})", JsonString(kVersion))));
    case Endpoint::kMetrics:
      return MakeReadyProducer(TextResponse("text/plain; version=0.0.4; charset=utf-8",
                                            metrics_->Render(service_.Counters())));
    case Endpoint::kPage:
      return MakeReadyProducer(PageResponse(request));
    case Endpoint::kSteps:
      return ListenToSteps();
    case Endpoint::kModels:
      return MakeReadyProducer(Models());
    case Endpoint::kModel:
      return MakeReadyProducer(Model(std::string_view(request.path).substr(kModelPrefix.size())));
    case Endpoint::kCompletions:
      return Start(AnswerKind::kCompletion, std::move(request), std::move(waker));
    case Endpoint::kChat:
      return Start(AnswerKind::kChat, std::move(request), std::move(waker));
    case Endpoint::kResponses:
      return Start(AnswerKind::kResponse, std::move(request), std::move(waker));
    case Endpoint::kMessages:
      return Start(AnswerKind::kMessage, std::move(request), std::move(waker));
    case Endpoint::kCountTokens:
      return Compute(&Api::CountTokens, std::move(request), std::move(waker));
    case Endpoint::kGenerate:
      return Start(AnswerKind::kTokens, std::move(request), std::move(waker));
    case Endpoint::kAbort: {
      const int32_t caller = keys_.CallerOf(request);
      return Compute(
          [caller](Api* api, const std::string& body) { return api->Abort(body, caller); },
          std::move(request), std::move(waker));
    }
    case Endpoint::kTokenize:
      return Compute(&Api::Tokenize, std::move(request), std::move(waker));
    case Endpoint::kDetokenize:
      return Compute(&Api::Detokenize, std::move(request), std::move(waker));
    case Endpoint::kTokenizerInfo:
      return MakeReadyProducer(TextResponse("application/json", encoder_.TokenizerInfoJson()));
    case Endpoint::kRenderCompletion:
    case Endpoint::kRenderChat: {
      const bool chat = FindRoute(request.path)->endpoint == Endpoint::kRenderChat;
      return Compute([chat](Api* api, const std::string& body) { return api->Render(body, chat); },
                     std::move(request), std::move(waker));
    }
    case Endpoint::kInference:
      return Start(AnswerKind::kInference, std::move(request), std::move(waker));
    case Endpoint::kLoads: {
      const EngineCounters counters = service_.Counters();
      const double rate =
          throughput_.SinceLast(counters.generation_tokens, std::chrono::steady_clock::now());
      return MakeReadyProducer(TextResponse("application/json", LoadsJson(counters, rate)));
    }
    case Endpoint::kOldLoad:
      return MakeReadyProducer(TextResponse("application/json", OldLoadJson(service_.Counters())));
    case Endpoint::kServerInfo:
      return MakeReadyProducer(
          TextResponse("application/json", ServerInfoJson(Facts(), service_.Counters())));
    case Endpoint::kModelInfo:
      return MakeReadyProducer(
          TextResponse("application/json", ModelInfoJson(Facts(), service_.Counters())));
    case Endpoint::kIsPaused:
      return MakeReadyProducer(TextResponse(
          "application/json", fmt::format(R"({{"is_paused":{}}})", service_.Counters().paused)));
    case Endpoint::kIsSleeping: {
      const EngineCounters counters = service_.Counters();
      return MakeReadyProducer(TextResponse(
          "application/json", fmt::format(R"({{"is_sleeping":{}}})",
                                          counters.weights_asleep || counters.cache_asleep)));
    }
    case Endpoint::kWeightVersion:
      return MakeReadyProducer(TextResponse(
          "application/json",
          fmt::format(R"({{"weight_version":{}}})",
                      JsonString(VersionOrDefault(service_.Counters().weight_version)))));
    case Endpoint::kAdmin:
      return HandleAdmin(request, std::move(waker));
    case Endpoint::kOpenApi:
      return MakeReadyProducer(TextResponse("application/json", std::string(kOpenApiJson)));
  }
  OUTRIDER_CHECK(false, "no handler for {}", request.path);
  return nullptr;
}

std::shared_ptr<HttpProducer> Api::Start(AnswerKind kind, HttpRequest request, HttpWaker waker) {
  std::optional<KeyAdmission> admission = keys_.Admit(request);
  if (!admission) {
    return MakeReadyProducer(ErrorResponse(
        {.status = 429,
         .message = fmt::format("this API key has {} requests already, which is the most it may "
                                "have at a time; try again later",
                                *keys_.max_requests_per_key()),
         .param = "",
         .code = "rate_limit_exceeded"},
        FormOf(request)));
  }
  const std::string client = ClientOf(request);
  return starter_.Start(AnswerFormOf(kind), client, std::move(request), std::move(waker),
                        *std::move(admission));
}

void Api::OnDrain() {
  draining_ = true;
  if (companion_ != nullptr) companion_->Drain();
}

size_t Api::CountOthers() const { return companion_ == nullptr ? 0 : companion_->CountRequests(); }

void Api::CancelOthers() {
  if (companion_ != nullptr) companion_->Cancel();
}

ServerParts Api::parts() {
  return {keys_, models_, options_.limits, service_, starter_, options_.model_root};
}

ServerFacts Api::Facts() const {
  return {models_.names()[0], options_.model_root, options_.limits.max_model_len,
          options_.tensor_parallel_size, options_.limits.tells_experts};
}

std::shared_ptr<HttpProducer> Api::HandleAdmin(const HttpRequest& request, HttpWaker waker) {
  try {
    return HandleAdminRoute(FindRoute(request.path)->admin, service_, options_.allowed_weight_dirs,
                            request, std::move(waker));
  } catch (const Error& error) {
    return MakeReadyProducer(ErrorResponse(openai::FromError(error)));
  }
}

std::shared_ptr<HttpProducer> Api::ListenToSteps() {
  std::erase_if(step_feeds_, [](const auto& feed) { return feed.expired(); });
  if (step_feeds_.size() >= kMostStepListeners) {
    return MakeReadyProducer(
        ErrorResponse({.status = 503,
                       .message = fmt::format(
                           "{} clients listen to the steps, which is the most; try again later",
                           step_feeds_.size()),
                       .param = "",
                       .code = ErrorCodeName(ErrorCode::kOverloaded)}));
  }
  auto feed = std::make_shared<StepFeed>(
      service_,
      PageFactsJson(options_.page_facts, options_.limits.num_speculative_tokens,
                    options_.limits.max_model_len),
      draining_);
  step_feeds_.push_back(feed);
  return feed;
}

template <typename Handler>
std::shared_ptr<HttpProducer> Api::Compute(Handler handler, HttpRequest request, HttpWaker waker) {
  const std::string client = ClientOf(request);
  const size_t bytes = request.body.size();
  const ErrorForm form = FormOf(request);
  return starter_.Compute(
      client, bytes,
      [this, handler, whole = std::make_shared<HttpRequest>(std::move(request))] {
        return std::invoke(handler, this, whole->body);
      },
      std::move(waker), form);
}

// Who takes turns with others: a key's owner, or else whoever asks from one address.
std::string Api::ClientOf(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return request.peer;
  return std::to_string(keys_.CallerOf(request));
}

HttpResponse Api::Health() const {
  // Requests are told of a failure a moment before the server begins to end.
  const bool ends = draining_ || service_.Counters().failed;
  return ends ? ErrorResponse(Unavailable()) : TextResponse("", "");
}

std::string Api::ModelJson(const std::string& name) const {
  return fmt::format(
      R"({{"id":{},"object":"model","created":{},"owned_by":"outrider","root":{},"max_model_len":{}}})",
      JsonString(name), start_time_, JsonString(options_.model_root),
      options_.limits.max_model_len);
}

HttpResponse Api::Models() const {
  std::string list;
  for (const std::string& name : models_.names()) {
    if (!list.empty()) list += ',';
    list += ModelJson(name);
  }
  return TextResponse("application/json", R"({"object":"list","data":[)" + list + "]}");
}

HttpResponse Api::Model(std::string_view name) const {
  if (models_.Has(name)) return TextResponse("application/json", ModelJson(std::string(name)));
  return ErrorResponse(
      {.status = 404,
       .message = fmt::format("there is no model {}; this server has {}",
                              JsonString(name.substr(0, 200)), JsonString(models_.names()[0])),
       .param = "model",
       .code = "model_not_found"});
}

// On the work thread, as what follows.
HttpResponse Api::Tokenize(const std::string& body) const {
  openai::TokenizeRequest request = openai::ParseTokenizeRequest(body);
  models_.Resolve(request.model);
  std::vector<int32_t> ids;
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    ids = encoder_.EncodeText(*text, request.add_special_tokens);
  } else {
    auto& chat = std::get<ChatPrompt>(request.prompt);
    if (!encoder_.SupportsTools()) chat.tools_json.clear();
    ids = encoder_.EncodeChat(chat).token_ids;
  }
  std::string strings = "null";
  if (request.return_token_strings) {
    std::vector<std::string> quoted;
    quoted.reserve(ids.size());
    for (const int32_t id : ids) quoted.push_back(JsonString(encoder_.TokenBytes(id)));
    strings = fmt::format("[{}]", fmt::join(quoted, ","));
  }
  return TextResponse(
      "application/json",
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})", ids.size(),
                  options_.limits.max_model_len, fmt::join(ids, ","), strings));
}

HttpResponse Api::CountTokens(const std::string& body) const {
  openai::TokenRequest request =
      openai::ParseMessageRequest(body, options_.limits, /*only_prompt=*/true);
  models_.Resolve(request.model);
  generator_.preparer().SettleTools(&request, /*can_constrain=*/false);
  return TextResponse(
      "application/json",
      fmt::format(R"({{"input_tokens":{}}})", encoder_.EncodeChat(request.chat).token_ids.size()));
}

HttpResponse Api::Render(const std::string& body, bool chat) const {
  const openai::RequestLimits& limits = options_.limits;
  openai::TokenRequest request =
      chat ? openai::ParseChatRequest(body, limits) : openai::ParseCompletionRequest(body, limits);
  request.model = models_.Resolve(request.model);
  generator_.preparer().SettleTools(&request, /*can_constrain=*/true);
  std::vector<std::string> rendered;
  for (const std::vector<int32_t>& prompt : generator_.preparer().Prompts(&request)) {
    rendered.push_back(
        openai::RenderedJson(request, prompt,
                             openai::ResolveMaxTokens(request, static_cast<int64_t>(prompt.size()),
                                                      limits.max_model_len)));
  }
  return TextResponse("application/json",
                      chat ? rendered.at(0) : fmt::format("[{}]", fmt::join(rendered, ",")));
}

HttpResponse Api::Detokenize(const std::string& body) const {
  const openai::DetokenizeRequest request = openai::ParseDetokenizeRequest(body, options_.limits);
  models_.Resolve(request.model);
  return TextResponse("application/json",
                      fmt::format(R"({{"prompt":{}}})",
                                  JsonString(generator_.preparer().TextOf(request.token_ids))));
}

HttpResponse Api::Abort(const std::string& body, int32_t caller) {
  size_t aborted = 0;
  for (const std::string& id : openai::ParseAbortRequest(body)) {
    aborted += starter_.Abort(id, caller);
  }
  return TextResponse("application/json", fmt::format(R"({{"aborted":{}}})", aborted));
}

}  // namespace outrider
