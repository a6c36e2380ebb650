// The routes of the API: finds what a request asks for, checks who asks, and brings protocol and
// engine together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/generate/generator.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/http/http_message.h"
#include "outrider/openai/request.h"
#include "outrider/output/output_format.h"
#include "outrider/server/allowed_hosts.h"
#include "outrider/server/api_keys.h"
#include "outrider/server/page_facts.h"
#include "outrider/server/request_starter.h"
#include "outrider/server/served_models.h"
#include "outrider/server/server_companion.h"
#include "outrider/server/server_facts.h"
#include "outrider/telemetry/metrics.h"
#include "outrider/telemetry/request_reporter.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider {

struct ApiOptions {
  std::vector<std::string> served_model_names;  // at least one; answers carry the first
  PageFacts page_facts;
  std::string model_root;                       // what /v1/models tells as "root"
  std::vector<std::string> api_keys;            // none: everybody may ask
  std::optional<int32_t> max_requests_per_key;  // at a time
  std::vector<std::string> allowed_hosts;       // of the Host field, as AllowedHosts takes them
  bool restrict_hosts = false;                  // also without any
  bool share_prefix_cache = false;              // between keys
  OutputFormat output_format;                   // how the model writes reasoning and tool calls
  openai::RequestLimits limits;
  bool log_requests = false;         // a line for each request that ends
  std::string otlp_traces_endpoint;  // "": no traces
  std::string admin_key;             // "": routes that change what the server does are off
  std::vector<std::string> allowed_weight_dirs;  // below which other weights may be read
  int32_t tensor_parallel_size = 1;              // ranks that share the model
};

class Api : public HttpApplication {
 public:
  /// `service`, `encoder` and `grammars` must outlive the API. `grammars` may be null: then
  /// requests that constrain their text are refused.
  Api(ApiOptions options, GenerationService& service, const PromptEncoder& encoder,
      GrammarCompiler* grammars);

  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override;
  std::shared_ptr<HttpProducer> Handle(HttpRequest request, HttpWaker waker) override;
  HttpResponse RefusalOf(const HttpRequest& head, int status, const std::string& message) override;
  void OnDrain() override;
  size_t CountOthers() const override;
  void CancelOthers() override;

  ServerParts parts();
  /// Drains with the server, whose run it must outlive. Before that.
  void Join(ServerCompanion& companion) { companion_ = &companion; }

 private:
  struct Route;
  enum class Endpoint {
    kHealth,
    kPage,
    kVersion,
    kMetrics,
    kSteps,
    kModels,
    kModel,
    kCompletions,
    kChat,
    kResponses,
    kMessages,
    kCountTokens,
    kGenerate,
    kAbort,
    kTokenize,
    kDetokenize,
    kTokenizerInfo,
    kRenderCompletion,
    kRenderChat,
    kInference,
    kLoads,
    kOldLoad,
    kServerInfo,
    kModelInfo,
    kIsPaused,
    kIsSleeping,
    kWeightVersion,
    kAdmin,
    kOpenApi
  };

  static const Route* FindRoute(std::string_view path);
  HttpResponse Health() const;
  ServerFacts Facts() const;
  HttpResponse Metrics() const;
  HttpResponse Models() const;
  HttpResponse Model(std::string_view name) const;
  std::string ModelJson(const std::string& name) const;
  /// Starts answering a request for tokens, unless its key has too many.
  std::shared_ptr<HttpProducer> Start(AnswerKind kind, HttpRequest request, HttpWaker waker);
  std::string ClientOf(const HttpRequest& request) const;
  /// Answers on a work thread, by a member function from body to response.
  template <typename Handler>
  std::shared_ptr<HttpProducer> Compute(Handler handler, HttpRequest request, HttpWaker waker);
  HttpResponse Tokenize(const std::string& body) const;
  HttpResponse CountTokens(const std::string& body) const;
  HttpResponse Render(const std::string& body, bool chat) const;
  std::shared_ptr<HttpProducer> HandleAdmin(const HttpRequest& request, HttpWaker waker);
  HttpResponse Detokenize(const std::string& body) const;
  HttpResponse Abort(const std::string& body, int32_t caller);
  /// Refuses listeners beyond some.
  std::shared_ptr<HttpProducer> ListenToSteps();

  const ApiOptions options_;
  const ApiKeys keys_;
  const ApiKeys admin_keys_;  // one, or none
  const AllowedHosts hosts_;
  const ServedModels models_;
  GenerationService& service_;
  const PromptEncoder& encoder_;
  Generator generator_;
  const std::shared_ptr<ServerMetrics> metrics_;
  RequestReporter reporter_;
  const int64_t start_time_;  // seconds since 1970
  Throughput throughput_;     // I/O thread
  bool draining_ = false;     // I/O thread
  ServerCompanion* companion_ = nullptr;
  std::vector<std::weak_ptr<HttpProducer>> step_feeds_;  // I/O thread
  RequestStarter starter_;                               // last: its threads use the rest
};

}  // namespace outrider
