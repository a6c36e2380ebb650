// Text in, text out, over an engine: requests as the API's parsers give them are rendered, encoded,
// constrained and submitted; answers come as deltas. Command line, server and Python package stand
// on it.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/generation_service.h"
#include "outrider/generate/request_preparer.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/request.h"
#include "outrider/output/output_format.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider {

/// A request in the engine. Choice i answers prompts[i / n].
struct StartedRequest {
  std::vector<RequestId> ids;                 // by choice
  std::vector<std::vector<int32_t>> prompts;  // as encoded
  int32_t n = 1;
};

/// What `get` returns for the request's grammar; its errors name the field that asked for it.
template <typename Get>
std::shared_ptr<const CompiledGrammar> GrammarOf(const openai::TokenRequest& request,
                                                 const Get& get) {
  try {
    return get(*request.grammar);
  } catch (const Error& error) {
    throw openai::RequestError(error.code(), request.grammar_field,
                               fmt::format("{}: {}", request.grammar_field, error.what()));
  }
}

/// Thread-safe.
class Generator {
 public:
  /// What a step gave to one choice; a choice's last delta has a finish_reason. Called on the
  /// engine's thread: must not block and must not throw.
  using Sink = std::function<void(size_t choice, OutputDelta&&)>;

  /// The service, the encoder and `grammars` must outlive it. Without `grammars` (null), requests
  /// that constrain their text are refused.
  Generator(GenerationService& service, const PromptEncoder& encoder, GrammarCompiler* grammars,
            const OutputFormat& format, int32_t max_model_len);

  /// Settle, the grammar compiled, RequestPreparer::Prepare, Submit. Throws Error for what the
  /// request is to blame for (openai::RequestError names the field), and as
  /// GenerationService::Submit.
  StartedRequest Stream(openai::TokenRequest request, const Sink& sink);

  /// As Stream, for an answer that is given: its tokens are scored as if the model had written
  /// them, so `logprobs` of the request equal those of generation, bit for bit. One prompt, one
  /// choice.
  StartedRequest Score(openai::TokenRequest request, std::vector<int32_t> answer, const Sink& sink);

  /// The whole answers, by choice. Somebody else steps the engine (EngineThread).
  std::vector<OutputDelta> Generate(openai::TokenRequest request);

  /// Ends a choice; its sink gets a last delta unless it had one.
  void Abort(RequestId id) { service_.Abort(id); }

  // The parts of Stream, for who does them on several threads.

  /// Throws as GenerationService::CheckRoom.
  void CheckRoom(int64_t count) const { service_.CheckRoom(count); }
  /// Says what the text must be (RequestPreparer::SettleTools); refuses what no grammar can hold.
  void Settle(openai::TokenRequest* request) const;
  /// Submits all choices, or none. Where one is refused, `sink` hears no more of those before it.
  std::vector<RequestId> Submit(std::vector<GenerationRequest> choices, const Sink& sink);

  /// What is in the prefix cache now serves no later request.
  void ResetPrefixCache() { ++cache_generation_; }

  const RequestPreparer& preparer() const { return preparer_; }
  GrammarCompiler* grammars() const { return grammars_; }

 private:
  PreparedRequest Prepare(openai::TokenRequest request) const;

  GenerationService& service_;
  GrammarCompiler* const grammars_;
  const RequestPreparer preparer_;
  std::atomic<int64_t> cache_generation_{0};
};

}  // namespace outrider
