// Brings requests for tokens from their bodies into the engine, on threads of its own: parsing,
// templates, tokenising and compiling grammars must not hold up the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "outrider/engine/generation_service.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/http/http_message.h"
#include "outrider/openai/request.h"
#include "outrider/server/generation_response.h"
#include "outrider/server/request_preparer.h"
#include "outrider/server/request_registry.h"
#include "outrider/server/served_models.h"
#include "outrider/server/work_thread.h"
#include "outrider/telemetry/metrics.h"

namespace outrider {

class RequestStarter {
 public:
  /// All references must outlive this; `grammars` may be null: then requests that constrain their
  /// text are refused. Without `share_prefix_cache` a caller with a key finds its own prefixes
  /// only.
  RequestStarter(const ServedModels& models, const openai::RequestLimits& limits,
                 const RequestPreparer& preparer, GenerationService& service,
                 GrammarCompiler* grammars, std::shared_ptr<ServerMetrics> metrics,
                 RequestReporter& reporter, bool share_prefix_cache);

  /// Starts answering a request for tokens; `admission` is held until it has ended. I/O thread.
  std::shared_ptr<HttpProducer> Start(AnswerKind kind, HttpRequest request, HttpWaker waker,
                                      KeyAdmission admission);

  /// Ends the caller's running requests that it knows by this id: its own, or the answer's. How
  /// many there were.
  size_t Abort(std::string_view id, int32_t caller) { return registry_.Abort(id, caller); }

  /// Answers with what `make` returns on the work thread; Error becomes its error body.
  std::shared_ptr<HttpProducer> Compute(std::function<HttpResponse()> make, HttpWaker waker);

 private:
  using ResponsePtr = std::shared_ptr<GenerationResponse>;

  void StartBody(const ResponsePtr& response, AnswerKind kind, const std::string& body);
  void StartCompiling(const ResponsePtr& response, AnswerKind kind, openai::TokenRequest request);
  void StartParsed(const ResponsePtr& response, AnswerKind kind, openai::TokenRequest request,
                   const std::shared_ptr<const CompiledGrammar>& grammar);

  const ServedModels& models_;
  const openai::RequestLimits& limits_;
  const RequestPreparer& preparer_;
  GenerationService& service_;
  GrammarCompiler* const grammars_;
  const std::shared_ptr<ServerMetrics> metrics_;
  RequestReporter& reporter_;
  const bool share_prefix_cache_;  // between callers
  RequestRegistry registry_;
  // Last: their jobs use the rest. Grammars that must be compiled hold up no other request.
  WorkThread grammar_work_;
  WorkThread work_;
};

}  // namespace outrider
