// The routes of the API: finds what a request asks for, checks who asks, and brings protocol and
// engine together.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/server/generation_exchange.h"
#include "outrider/server/http_message.h"
#include "outrider/server/metrics.h"
#include "outrider/server/openai/request.h"
#include "outrider/server/output/output_format.h"
#include "outrider/server/output/output_parser.h"
#include "outrider/server/prompt_encoder.h"
#include "outrider/server/work_thread.h"

namespace outrider {

struct ApiOptions {
  std::vector<std::string> served_model_names;  // at least one; answers carry the first
  std::string model_root;                       // what /v1/models tells as "root"
  std::string api_key;                          // "": everybody may ask
  OutputFormat output_format;                   // how the model writes reasoning and tool calls
  openai::RequestLimits limits;
};

class Api : public HttpApplication {
 public:
  /// `service`, `encoder` and `grammars` must outlive the API. `grammars` may be null: then
  /// requests that constrain their text are refused.
  Api(ApiOptions options, GenerationService& service, const PromptEncoder& encoder,
      GrammarCompiler* grammars);

  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override;
  std::shared_ptr<HttpProducer> Handle(HttpRequest request, HttpWaker waker) override;
  HttpResponse RefusalOf(int status, const std::string& message) override;
  void OnDrain() override { draining_ = true; }

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
    kChat
  };

  static const Route* FindRoute(std::string_view path);
  bool MayAsk(const HttpRequest& head) const;
  HttpResponse Health() const;
  HttpResponse Metrics() const;
  HttpResponse Models() const;
  HttpResponse Model(std::string_view name) const;
  std::string ModelJson(const std::string& name) const;
  bool IsServed(std::string_view name) const;
  std::string TextOf(std::span<const int32_t> token_ids) const;
  std::shared_ptr<HttpProducer> Generate(bool chat, HttpRequest request, HttpWaker waker);
  using Exchange = std::shared_ptr<GenerationExchange>;
  void Start(const Exchange& exchange, bool chat, const std::string& body);
  void StartParsed(GenerationExchange& exchange, openai::TokenRequest request,
                   std::shared_ptr<const CompiledGrammar> grammar);
  void StartCompiling(const Exchange& exchange, openai::TokenRequest request);
  void CheckTools(openai::TokenRequest* request) const;
  OutputTask TaskOf(const openai::TokenRequest& request, std::string_view prompt) const;

  const ApiOptions options_;
  GenerationService& service_;
  const PromptEncoder& encoder_;
  GrammarCompiler* const grammars_;
  const std::shared_ptr<ServerMetrics> metrics_;
  const int64_t start_time_;  // seconds since 1970
  bool draining_ = false;     // I/O thread
  std::atomic<uint64_t> next_id_;
  // Last: their jobs use the rest. Grammars that must be compiled hold up no other request.
  WorkThread grammar_work_;
  WorkThread work_;
};

}  // namespace outrider
