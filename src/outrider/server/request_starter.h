// Brings requests for tokens from their bodies into the engine, on threads of its own: parsing,
// templates, tokenising and compiling grammars must not hold up the I/O thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "outrider/generate/generator.h"
#include "outrider/http/http_message.h"
#include "outrider/openai/request.h"
#include "outrider/server/answer_form.h"
#include "outrider/server/generation_response.h"
#include "outrider/server/request_registry.h"
#include "outrider/server/served_models.h"
#include "outrider/server/work_threads.h"
#include "outrider/telemetry/metrics.h"

namespace outrider {

class RequestStarter {
 public:
  /// All references must outlive this. Without `share_prefix_cache` a caller with a key finds its
  /// own prefixes only.
  RequestStarter(const ServedModels& models, const openai::RequestLimits& limits,
                 Generator& generator, std::shared_ptr<ServerMetrics> metrics,
                 RequestReporter& reporter, bool share_prefix_cache);
  /// Ends what is being compiled.
  ~RequestStarter();
  RequestStarter(const RequestStarter&) = delete;
  RequestStarter& operator=(const RequestStarter&) = delete;

  /// Starts answering a request for tokens of `client`, any name that tells it from others, with
  /// which it takes turns; `admission` is held until it has ended. Any thread; one at a time calls
  /// the producer.
  std::shared_ptr<HttpProducer> Start(const AnswerForm& form, const std::string& client,
                                      HttpRequest request, HttpWaker waker, KeyAdmission admission);

  /// Ends the caller's running requests that it knows by this id: its own, or the answer's. How
  /// many there were.
  size_t Abort(std::string_view id, int32_t caller) { return registry_.Abort(id, caller); }

  /// Answers with what `make` returns on a work thread, for a body of `bytes`; Error becomes its
  /// error body in that form.
  std::shared_ptr<HttpProducer> Compute(const std::string& client, size_t bytes,
                                        std::function<HttpResponse()> make, HttpWaker waker,
                                        openai::ErrorForm form = openai::ErrorForm::kOpenAi);

 private:
  using ResponsePtr = std::shared_ptr<GenerationResponse>;

  void StartBody(const ResponsePtr& response, const AnswerForm& form, const std::string& client,
                 const std::string& body);
  void StartCompiling(const ResponsePtr& response, const AnswerForm& form,
                      const std::string& client, openai::TokenRequest request);
  /// A request whose grammar is to be compiled.
  struct Compiling {
    ResponsePtr response;
    const AnswerForm* form;
    std::string client;
    openai::TokenRequest request;
    std::shared_ptr<void> deferred;
    bool is_long = false;  // it took longer than a grammar is given first
  };
  void AddCompiling(const std::shared_ptr<Compiling>& job);
  void StartParsed(const ResponsePtr& response, const AnswerForm& form,
                   openai::TokenRequest request,
                   const std::shared_ptr<const CompiledGrammar>& grammar);

  const ServedModels& models_;
  const openai::RequestLimits& limits_;
  Generator& generator_;
  const std::shared_ptr<ServerMetrics> metrics_;
  RequestReporter& reporter_;
  const bool share_prefix_cache_;  // between callers
  RequestRegistry registry_;
  std::atomic<bool> stopping_ = false;
  WorkThreads writing_;  // of answers that are too long for the I/O thread
  // Last: their jobs use the rest. Grammars that must be compiled hold up no other request, nor do
  // those that take long hold up others.
  WorkThreads long_grammar_work_;
  WorkThreads grammar_work_;
  WorkThreads work_;
};

}  // namespace outrider
