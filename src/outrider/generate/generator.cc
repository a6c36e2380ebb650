#include "outrider/generate/generator.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace outrider {

Generator::Generator(GenerationService& service, const PromptEncoder& encoder,
                     GrammarCompiler* grammars, const OutputFormat& format, int32_t max_model_len)
    : service_(service), grammars_(grammars), preparer_(encoder, format, max_model_len) {}

void Generator::Settle(openai::TokenRequest* request) const {
  preparer_.SettleTools(request, grammars_ != nullptr);
  if (!request->grammar || grammars_ != nullptr) return;
  throw openai::RequestError(
      ErrorCode::kInvalidArgument, request->grammar_field,
      fmt::format("{}: this model has no tokenizer, which structured output needs",
                  request->grammar_field));
}

PreparedRequest Generator::Prepare(openai::TokenRequest request) const {
  // Blocks of the cache are found by what is in them and by the salt.
  if (const int64_t generation = cache_generation_; generation > 0) {
    request.cache_salt = fmt::format("generation {}/{}", generation, request.cache_salt);
  }
  Settle(&request);
  std::shared_ptr<const CompiledGrammar> grammar;
  if (request.grammar) {
    grammar = GrammarOf(request, [&](const GrammarSpec& spec) { return grammars_->Compile(spec); });
  }
  return preparer_.Prepare(std::move(request), {}, grammar);
}

std::vector<RequestId> Generator::Submit(std::vector<GenerationRequest> choices, const Sink& sink) {
  std::vector<RequestId> ids;
  ids.reserve(choices.size());
  const auto refused = std::make_shared<std::atomic<bool>>(false);
  service_.CheckRoom(static_cast<int64_t>(choices.size()));
  try {
    for (size_t choice = 0; choice < choices.size(); ++choice) {
      ids.push_back(service_.Submit(std::move(choices[choice]),
                                    [sink, refused, choice](RequestId /*id*/, OutputDelta&& delta) {
                                      if (!*refused) sink(choice, std::move(delta));
                                    }));
    }
  } catch (...) {
    *refused = true;
    for (const RequestId id : ids) service_.Abort(id);
    throw;
  }
  return ids;
}

StartedRequest Generator::Stream(openai::TokenRequest request, const Sink& sink) {
  PreparedRequest prepared = Prepare(std::move(request));
  return {Submit(std::move(prepared.requests), sink), std::move(prepared.info.prompts),
          prepared.info.n};
}

StartedRequest Generator::Score(openai::TokenRequest request, std::vector<int32_t> answer,
                                const Sink& sink) {
  if (answer.empty()) throw InvalidArgument("answer: is empty; at least one token is needed");
  request.max_tokens = static_cast<int32_t>(answer.size());
  request.grammar.reset();
  request.given_answer = std::move(answer);
  return Stream(std::move(request), sink);
}

std::vector<OutputDelta> Generator::Generate(openai::TokenRequest request) {
  struct Answers {
    std::mutex mutex;
    std::condition_variable finished;
    std::vector<OutputDelta> choices;
    size_t num_finished = 0;
  };
  PreparedRequest prepared = Prepare(std::move(request));
  const auto answers = std::make_shared<Answers>();
  answers->choices.resize(prepared.requests.size());
  Submit(std::move(prepared.requests), [answers](size_t choice, OutputDelta&& delta) {
    const std::lock_guard lock(answers->mutex);
    JoinDeltas(std::move(delta), &answers->choices[choice]);
    if (!answers->choices[choice].finish_reason) return;
    ++answers->num_finished;
    answers->finished.notify_all();
  });
  std::unique_lock lock(answers->mutex);
  answers->finished.wait(lock, [&] { return answers->num_finished == answers->choices.size(); });
  return std::move(answers->choices);
}

}  // namespace outrider
