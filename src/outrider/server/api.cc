#include "outrider/server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <utility>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/server/bad_words.h"
#include "outrider/server/openai/api_error.h"
#include "outrider/server/openai/chat_writer.h"
#include "outrider/server/openai/completion_writer.h"
#include "outrider/server/openai/json_text.h"
#include "outrider/server/step_feed.h"
#include "outrider/server/version.h"
#include "outrider/server/web_page.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

using openai::ApiError;
using openai::ErrorResponse;
using openai::JsonString;
using openai::RequestError;

constexpr size_t kMaxWaitingRequests = 4096;  // for the work thread
constexpr size_t kMaxWaitingGrammars = 256;   // to be compiled
constexpr std::string_view kModelPrefix = "/v1/models/";

// Equal in time that does not tell how much of a guess was right.
bool SameSecret(std::string_view guess, std::string_view secret) {
  size_t difference = guess.size() ^ secret.size();
  for (size_t i = 0; i < guess.size(); ++i) {
    difference |= static_cast<uint8_t>(guess[i]) ^ static_cast<uint8_t>(secret[i % secret.size()]);
  }
  return difference == 0;
}

// An id a client gave, if it can stand in a header and a log line.
bool IsUsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

uint64_t RandomStart() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

HttpResponse TextResponse(std::string type, std::string body) {
  HttpResponse response;
  response.content_type = std::move(type);
  response.body = std::move(body);
  return response;
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
};

Api::Api(ApiOptions options, GenerationService& service, const PromptEncoder& encoder,
         GrammarCompiler* grammars)
    : options_(std::move(options)),
      service_(service),
      encoder_(encoder),
      grammars_(grammars),
      metrics_(std::make_shared<ServerMetrics>(options_.served_model_names.at(0),
                                               options_.limits.max_model_len)),
      start_time_(std::time(nullptr)),
      next_id_(RandomStart()),
      grammar_work_(kMaxWaitingGrammars),
      work_(kMaxWaitingRequests) {}

const Api::Route* Api::FindRoute(std::string_view path) {
  static constexpr std::array<Route, 7> kRoutes = {{
      {"GET", "/health", Endpoint::kHealth},
      {"GET", "/version", Endpoint::kVersion},
      {"GET", "/metrics", Endpoint::kMetrics},
      {"GET", "/debug/steps", Endpoint::kSteps},
      {"GET", "/v1/models", Endpoint::kModels},
      {"POST", "/v1/completions", Endpoint::kCompletions},
      {"POST", "/v1/chat/completions", Endpoint::kChat},
  }};
  static constexpr Route kPageRoute = {"GET", "/", Endpoint::kPage};
  static constexpr Route kModelRoute = {"GET", kModelPrefix, Endpoint::kModel};
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  if (IsPagePath(path)) return &kPageRoute;
  return path.starts_with(kModelPrefix) ? &kModelRoute : nullptr;
}

bool Api::MayAsk(const HttpRequest& head) const {
  if (options_.api_key.empty()) return true;
  const std::string_view header = head.Header("Authorization").value_or("");
  constexpr std::string_view kScheme = "Bearer ";
  return header.starts_with(kScheme) && SameSecret(header.substr(kScheme.size()), options_.api_key);
}

std::optional<HttpResponse> Api::CheckHead(const HttpRequest& head) {
  const Route* route = FindRoute(head.path);
  // The page itself holds no secrets; what it asks for then needs the key.
  const bool open = route != nullptr &&
                    (route->endpoint == Endpoint::kHealth || route->endpoint == Endpoint::kPage);
  if (!open && !MayAsk(head)) {
    return ErrorResponse({.status = 401,
                          .message = "a valid API key is needed: send it as "
                                     "\"Authorization: Bearer KEY\"",
                          .param = "",
                          .code = "invalid_api_key"});
  }
  if (route == nullptr) {
    return ErrorResponse(
        {.status = 404,
         .message = fmt::format("no such route: {} {}", head.method, head.path.substr(0, 200)),
         .param = "",
         .code = "not_found"});
  }
  const bool is_get = route->method == "GET";
  if (head.method == "OPTIONS") {
    HttpResponse response = TextResponse("", "");
    response.status = 204;
    response.headers.push_back({"Allow", is_get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS"});
    return response;
  }
  if (head.method != route->method && !(is_get && head.method == "HEAD")) {
    HttpResponse response =
        ErrorResponse({.status = 405,
                       .message = fmt::format("{} takes {}, not {}", head.path.substr(0, 200),
                                              route->method, head.method.substr(0, 32)),
                       .param = "",
                       .code = "method_not_allowed"});
    response.headers.push_back({"Allow", is_get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS"});
    return response;
  }
  if (draining_ && !is_get) return ErrorResponse(Unavailable());
  return std::nullopt;
}

HttpResponse Api::RefusalOf(int status, const std::string& message) {
  return ErrorResponse({.status = status,
                        .message = message,
                        .param = "",
                        .code = status == 413 ? "too_large" : ""});
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
      return std::make_shared<StepFeed>(
          service_,
          fmt::format(R"({{"num_speculative_tokens":{},"max_model_len":{}}})",
                      options_.limits.num_speculative_tokens, options_.limits.max_model_len),
          draining_);
    case Endpoint::kModels:
      return MakeReadyProducer(Models());
    case Endpoint::kModel:
      return MakeReadyProducer(Model(std::string_view(request.path).substr(kModelPrefix.size())));
    case Endpoint::kCompletions:
      return Generate(false, std::move(request), std::move(waker));
    case Endpoint::kChat:
      return Generate(true, std::move(request), std::move(waker));
  }
  OUTRIDER_CHECK(false, "no handler for {}", request.path);
  return nullptr;
}

HttpResponse Api::Health() const {
  return draining_ ? ErrorResponse(Unavailable()) : TextResponse("", "");
}

std::string Api::ModelJson(const std::string& name) const {
  return fmt::format(
      R"({{"id":{},"object":"model","created":{},"owned_by":"outrider","root":{},"max_model_len":{}}})",
      JsonString(name), start_time_, JsonString(options_.model_root),
      options_.limits.max_model_len);
}

HttpResponse Api::Models() const {
  std::string list;
  for (const std::string& name : options_.served_model_names) {
    if (!list.empty()) list += ',';
    list += ModelJson(name);
  }
  return TextResponse("application/json", R"({"object":"list","data":[)" + list + "]}");
}

bool Api::IsServed(std::string_view name) const {
  const auto& names = options_.served_model_names;
  return std::find(names.begin(), names.end(), name) != names.end();
}

HttpResponse Api::Model(std::string_view name) const {
  if (IsServed(name)) return TextResponse("application/json", ModelJson(std::string(name)));
  return ErrorResponse({.status = 404,
                        .message = fmt::format("there is no model {}; this server has {}",
                                               JsonString(name.substr(0, 200)),
                                               JsonString(options_.served_model_names[0])),
                        .param = "model",
                        .code = "model_not_found"});
}

std::shared_ptr<HttpProducer> Api::Generate(bool chat, HttpRequest request, HttpWaker waker) {
  const uint64_t number = next_id_++;
  std::string request_id(request.Header("X-Request-Id").value_or(""));
  if (!IsUsableRequestId(request_id)) request_id = fmt::format("{:016x}", number);
  auto exchange = std::make_shared<GenerationExchange>(
      service_, metrics_, std::move(waker),
      std::vector<HttpHeader>{{"X-Request-Id", std::move(request_id)}});
  auto body = std::make_shared<std::string>(std::move(request.body));
  const bool taken = work_.TryAdd([this, chat, exchange, body] {
    if (exchange->ended()) return;
    try {
      Start(exchange, chat, *body);
    } catch (const Error& error) {
      exchange->Fail(openai::FromError(error));
    }
  });
  if (!taken) {
    exchange->Fail({.status = 503,
                    .message = "too many requests wait; try again later",
                    .param = "",
                    .code = ErrorCodeName(ErrorCode::kOverloaded)});
  }
  return exchange;
}

std::string Api::TextOf(std::span<const int32_t> token_ids) const {
  std::string bytes;
  for (const int32_t id : token_ids) bytes += encoder_.TokenBytes(id);
  return ReplaceInvalidUtf8(bytes);
}

// Refuses tools that the model would not see, or whose calls nobody would recognise.
void Api::CheckTools(openai::TokenRequest* request) const {
  if (request->tools.choice == openai::ToolChoice::kNone) {
    if (!request->chat.tools_json.empty() && !encoder_.SupportsTools()) {
      request->chat.tools_json.clear();  // the model is not to call them anyway
    }
    return;
  }
  const char* const kInstead = "leave out \"tools\" or set \"tool_choice\" to \"none\"";
  if (!encoder_.SupportsTools()) {
    throw RequestError(ErrorCode::kInvalidArgument, "tools",
                       fmt::format("tools: this model's chat template does not show tools to the "
                                   "model; {}",
                                   kInstead));
  }
  if (options_.output_format.tools == nullptr) {
    throw RequestError(ErrorCode::kInvalidArgument, "tools",
                       fmt::format("tools: this server does not know how its model writes tool "
                                   "calls (--tool-call-parser); {}",
                                   kInstead));
  }
  if (request->tools.choice != openai::ToolChoice::kAuto) {
    throw RequestError(ErrorCode::kInvalidArgument, "tool_choice",
                       "tool_choice: to force a call is not supported yet by this server");
  }
  // The marks around calls may be special tokens.
  request->sampling.skip_special_tokens = false;
}

// What to tell apart in the answer to a chat whose rendered prompt is `prompt`.
OutputTask Api::TaskOf(const openai::TokenRequest& request, std::string_view prompt) const {
  OutputTask task;
  task.reasoning = options_.output_format.reasoning;
  if (request.chat.continue_final_message) {
    // The message so far may have begun to reason, and may have stopped.
    const size_t begin = prompt.rfind(kReasoningBegin);
    task.reasoning_open = begin != std::string_view::npos &&
                          prompt.find(kReasoningEnd, begin) == std::string_view::npos;
  } else {
    const size_t last = prompt.find_last_not_of(" \r\n\t");
    task.reasoning_open = prompt.substr(0, last + 1).ends_with(kReasoningBegin);
  }
  if (request.tools.choice != openai::ToolChoice::kNone) {
    task.tools = options_.output_format.tools;
    task.string_parameters = request.tools.string_parameters;
  }
  return task;
}

// On the work thread: from a body to a request that makes sense.
void Api::Start(const Exchange& exchange, bool chat, const std::string& body) {
  openai::TokenRequest request = chat ? openai::ParseChatRequest(body, options_.limits)
                                      : openai::ParseCompletionRequest(body, options_.limits);
  if (!request.model.empty() && !IsServed(request.model)) {
    throw RequestError(ErrorCode::kNotFound, "model",
                       fmt::format("there is no model {}; this server has {}",
                                   JsonString(request.model.substr(0, 200)),
                                   JsonString(options_.served_model_names[0])),
                       "model_not_found");
  }
  std::shared_ptr<const CompiledGrammar> grammar;
  if (request.grammar) {
    if (grammars_ == nullptr) {
      throw RequestError(ErrorCode::kInvalidArgument, request.grammar_field,
                         fmt::format("{}: this model has no tokenizer, which structured output "
                                     "needs",
                                     request.grammar_field));
    }
    grammar = grammars_->Find(*request.grammar);
    if (grammar == nullptr) return StartCompiling(exchange, std::move(request));
  }
  StartParsed(*exchange, std::move(request), std::move(grammar));
}

// On the work thread: compiling may take seconds, and goes to a thread of its own.
void Api::StartCompiling(const Exchange& exchange, openai::TokenRequest request) {
  auto shared = std::make_shared<openai::TokenRequest>(std::move(request));
  const bool taken = grammar_work_.TryAdd([this, exchange, shared] {
    if (exchange->ended()) return;
    try {
      auto grammar = CompileGrammar(*grammars_, *shared);
      StartParsed(*exchange, std::move(*shared), std::move(grammar));
    } catch (const Error& error) {
      exchange->Fail(openai::FromError(error));
    }
  });
  if (!taken) {
    throw Error(ErrorCode::kOverloaded, "too many grammars wait to be compiled; try again later");
  }
}

// On a work thread: from a parsed request to requests in the engine.
void Api::StartParsed(GenerationExchange& exchange, openai::TokenRequest request,
                      std::shared_ptr<const CompiledGrammar> grammar) {
  const bool chat = request.answer.chat;
  openai::AnswerInfo info;
  info.id = fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", next_id_++);
  info.model = request.model.empty() ? options_.served_model_names[0] : request.model;
  info.created = std::time(nullptr);
  info.options = request.answer;
  info.n = request.n;
  request.sampling.bad_words = EncodeBadWords(request.bad_words, encoder_);
  OutputTask task;
  if (chat) {
    CheckTools(&request);
    EncodedChat encoded = encoder_.EncodeChat(request.chat);
    task = TaskOf(request, encoded.text);
    info.prompts.push_back(std::move(encoded.token_ids));
  }
  GrammarConstraint constraint{std::move(grammar), {}};
  if (constraint.grammar != nullptr && task.reasoning_open) {
    // A model may think in any way; what it answers is constrained.
    constraint.start_after = encoder_.EncodeText(kReasoningEnd, /*add_special_tokens=*/false);
  }
  info.options.skip_special_tokens = request.sampling.skip_special_tokens;
  for (openai::CompletionPrompt& prompt : request.prompts) {
    auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    info.prompts.push_back(ids != nullptr ? std::move(*ids)
                                          : encoder_.EncodeText(std::get<std::string>(prompt),
                                                                request.add_special_tokens));
    if (!request.answer.echo) continue;
    info.prompt_texts.push_back(ids != nullptr ? TextOf(info.prompts.back())
                                               : std::move(std::get<std::string>(prompt)));
  }
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : info.prompts) {
    const int32_t max_tokens = openai::ResolveMaxTokens(
        request, static_cast<int64_t>(prompt.size()), options_.limits.max_model_len);
    for (int32_t choice = 0; choice < request.n; ++choice) {
      GenerationRequest& one = requests.emplace_back();
      one.prompt_token_ids = prompt;
      one.sampling = request.sampling;
      one.sampling.max_tokens = max_tokens;
      one.grammar = constraint;
      one.priority = request.priority;
      one.cache_salt = request.cache_salt;
      one.num_speculative_tokens = request.num_speculative_tokens;
      one.trace_steps = request.answer.speculation_metrics == openai::SpeculationMetrics::kDetailed;
      if (request.sampling.seed) one.sampling.seed = ChoiceSeed(*request.sampling.seed, choice);
    }
  }
  std::unique_ptr<openai::AnswerWriter> writer;
  if (chat) {
    writer = std::make_unique<openai::ChatWriter>(std::move(info), std::move(task), encoder_);
  } else {
    writer = std::make_unique<openai::CompletionWriter>(std::move(info), encoder_);
  }
  exchange.Start(std::move(writer), std::move(requests));
}

}  // namespace outrider
