#include <spdlog/spdlog.h>

#include <iostream>
#include <iterator>
#include <string>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/generate_request.h"
#include "outrider/cli/generation_report.h"
#include "outrider/cli/generation_run.h"
#include "outrider/cli/interrupt.h"
#include "outrider/generate/model_defaults.h"

namespace outrider::cli {

namespace {

constexpr int32_t kLongestDefaultAnswer = 512;

/// The argument, or standard input to its end for "-".
std::string ArgumentText(const std::string& argument) {
  if (argument != "-") return argument;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

openai::TokenRequest MakeRequest(const GenerateSettings& settings,
                                 const openai::SamplingDefaults& defaults) {
  openai::TokenRequest request = SampledRequest(settings, defaults);
  if (settings.chat) {
    request.answer.chat = true;
    request.chat = ConversationOf(ArgumentText(*settings.chat),
                                  settings.system.has_value() ? &*settings.system : nullptr);
  } else if (!settings.prompt_token_ids.empty()) {
    request.prompts = {settings.prompt_token_ids};
  } else {
    request.prompts = {ArgumentText(*settings.prompt)};
  }
  request.default_max_tokens = kLongestDefaultAnswer;
  return request;
}

}  // namespace

int RunGenerate(const Settings& settings) {
  const GenerateSettings& generate = settings.generate;
  const bool json = generate.json || generate.logprobs.has_value() ||
                    generate.sampling.prompt_logprobs.has_value();
  EngineOptions engine = settings.engine;
  engine.max_num_seqs = 1;  // nothing is made or measured for more requests than this one
  const LoadedEngine loaded =
      LoadWithProgress(engine, StandardErrorStyle(settings.log_format, ProgressStyle::kNone));
  if (generate.chat && loaded.chat_template) loaded.chat_template->Check();
  const std::unique_ptr<PromptEncoder> encoder = MakeRequestEncoder(loaded);
  // The text is printed as it comes: nothing is told apart in it.
  Generator generator(*loaded.engine, *encoder, loaded.grammars.get(), OutputFormat(),
                      loaded.engine->max_model_len());
  const ReportedLogprobs request_logprobs{.tokens = generate.logprobs.has_value(),
                                          .prompt = generate.sampling.prompt_logprobs.has_value()};

  const InterruptFlag interrupt;
  const OutputDelta result = RunGeneration(
      generator, MakeRequest(generate, ModelSamplingDefaults(loaded.config)),
      [&] { loaded.engine->Step(); },
      [&](std::string_view text) {
        if (!json) std::cout << text << std::flush;
      },
      interrupt.interrupted());
  if (json) {
    std::cout << GenerationJson(result, request_logprobs,
                                [&](int32_t id) { return encoder->TokenBytes(id); });
  } else {
    std::cout << '\n';
  }
  std::cout.flush();
  PrintLine(spdlog::level::info, FiguresLine(result));
  if (result.finish_reason == FinishReason::kError) {
    SPDLOG_ERROR("the request failed: {}", std::get<std::string>(result.stop_reason));
    return 1;
  }
  return result.finish_reason == FinishReason::kAbort ? 130 : 0;
}

}  // namespace outrider::cli
