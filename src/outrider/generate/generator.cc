#include "outrider/generate/generator.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

Generator::Generator(GenerationService& service, const PromptEncoder& encoder,
                     GrammarCompiler* grammars, const OutputFormat& format, int32_t max_model_len)
    : service_(service), grammars_(grammars), preparer_(encoder, format, max_model_len) {}

PreparedRequest Generator::Prepare(openai::TokenRequest request) const {
  // Blocks of the cache are found by what is in them and by the salt.
  if (const int64_t generation = cache_generation_; generation > 0) {
    request.cache_salt = fmt::format("generation {}/{}", generation, request.cache_salt);
  }
  if (request.answer.chat) preparer_.SettleTools(&request, grammars_ != nullptr);
  RefuseWithoutGrammars(request, grammars_);
  std::shared_ptr<const CompiledGrammar> grammar;
  if (request.grammar) {
    grammar = GrammarOf(request, [&](const GrammarSpec& spec) { return grammars_->Compile(spec); });
  }
  return preparer_.Prepare(std::move(request), {}, grammar);
}

StartedRequest Generator::Submit(PreparedRequest prepared, const Sink& sink) {
  StartedRequest started;
  started.n = prepared.info.n;
  started.prompts = std::move(prepared.info.prompts);
  service_.CheckRoom(static_cast<int64_t>(prepared.requests.size()));
  try {
    for (size_t choice = 0; choice < prepared.requests.size(); ++choice) {
      started.ids.push_back(service_.Submit(std::move(prepared.requests[choice]),
                                            [sink, choice](RequestId /*id*/, OutputDelta&& delta) {
                                              sink(choice, std::move(delta));
                                            }));
    }
  } catch (const Error&) {
    for (const RequestId id : started.ids) service_.Abort(id);
    throw;
  }
  return started;
}

StartedRequest Generator::Stream(openai::TokenRequest request, const Sink& sink) {
  return Submit(Prepare(std::move(request)), sink);
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
  Submit(std::move(prepared), [answers](size_t choice, OutputDelta&& delta) {
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
