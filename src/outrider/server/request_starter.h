// Brings requests for tokens from their bodies into the engine, on threads of its own: parsing,
// templates, tokenising and compiling grammars must not hold up the I/O thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
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
  /// text are refused.
  RequestStarter(const ServedModels& models, const openai::RequestLimits& limits,
                 const RequestPreparer& preparer, GenerationService& service,
                 GrammarCompiler* grammars, std::shared_ptr<ServerMetrics> metrics,
                 RequestReporter& reporter);
  /// Ends what is being compiled.
  ~RequestStarter();
  RequestStarter(const RequestStarter&) = delete;
  RequestStarter& operator=(const RequestStarter&) = delete;

  /// Starts answering a request for tokens; `admission` (ApiKeys::Admit) is held until it has
  /// ended. I/O thread.
  std::shared_ptr<HttpProducer> Start(AnswerKind kind, HttpRequest request, HttpWaker waker,
                                      std::shared_ptr<void> admission);

  /// Ends the running requests that a client knows by this id: its own, or the answer's. How many
  /// there were.
  size_t Abort(std::string_view id) { return registry_.Abort(id); }

  /// Answers with what `make` returns on the work thread; Error becomes its error body.
  std::shared_ptr<HttpProducer> Compute(std::function<HttpResponse()> make, HttpWaker waker);

 private:
  using ResponsePtr = std::shared_ptr<GenerationResponse>;

  void StartBody(const ResponsePtr& response, AnswerKind kind, const std::string& body);
  void StartCompiling(const ResponsePtr& response, AnswerKind kind, openai::TokenRequest request);
  /// A request whose grammar is to be compiled.
  struct Compiling {
    ResponsePtr response;
    AnswerKind kind;
    openai::TokenRequest request;
    std::shared_ptr<void> deferred;
    bool is_long = false;  // it took longer than a grammar is given first
  };
  void AddCompiling(const std::shared_ptr<Compiling>& job);
  void StartParsed(const ResponsePtr& response, AnswerKind kind, openai::TokenRequest request,
                   const std::shared_ptr<const CompiledGrammar>& grammar);

  const ServedModels& models_;
  const openai::RequestLimits& limits_;
  const RequestPreparer& preparer_;
  GenerationService& service_;
  GrammarCompiler* const grammars_;
  const std::shared_ptr<ServerMetrics> metrics_;
  RequestReporter& reporter_;
  RequestRegistry registry_;
  std::atomic<uint64_t> next_id_;
  std::atomic<bool> stopping_ = false;
  std::atomic<size_t> next_long_ = 0;
  // Last: their jobs use the rest. Grammars that must be compiled hold up no other request, nor do
  // those that take long hold up others.
  std::array<WorkThread, 2> long_grammar_work_;
  WorkThread grammar_work_;
  WorkThread work_;
};

}  // namespace outrider
