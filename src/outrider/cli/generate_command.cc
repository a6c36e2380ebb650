#include <spdlog/spdlog.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <string>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/generation_report.h"
#include "outrider/cli/generation_run.h"
#include "outrider/cli/interrupt.h"
#include "outrider/text/bad_words.h"

namespace outrider::cli {

namespace {

constexpr int32_t kLongestDefaultAnswer = 512;

/// The argument, or standard input to its end for "-".
std::string ArgumentText(const std::string& argument) {
  if (argument != "-") return argument;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> PromptTokens(const GenerateSettings& settings, const LoadedEngine& loaded) {
  if (!settings.prompt_token_ids.empty()) return settings.prompt_token_ids;
  const TextPromptEncoder encoder = MakePromptEncoder(loaded);
  if (settings.chat.has_value()) {
    if (loaded.chat_template) loaded.chat_template->Check();
    return EncodeChatMessage(encoder, ArgumentText(*settings.chat),
                             settings.system.has_value() ? &*settings.system : nullptr);
  }
  return encoder.EncodeText(ArgumentText(*settings.prompt), /*add_special_tokens=*/true);
}

SamplingParams MakeSampling(const GenerateSettings& settings, const LoadedEngine& loaded,
                            size_t prompt_length) {
  const openai::SamplingDefaults defaults = ModelSamplingDefaults(loaded.config);
  SamplingParams sampling = settings.sampling;
  if (!settings.bad_words.empty()) {
    sampling.bad_words = EncodeBadWords(settings.bad_words, MakePromptEncoder(loaded));
  }
  sampling.temperature = settings.temperature.has_value()
                             ? static_cast<float>(*settings.temperature)
                             : defaults.temperature.value_or(sampling.temperature);
  sampling.top_p = settings.top_p.has_value() ? static_cast<float>(*settings.top_p)
                                              : defaults.top_p.value_or(sampling.top_p);
  sampling.top_k = settings.top_k.value_or(defaults.top_k.value_or(sampling.top_k));
  sampling.min_p = settings.min_p.has_value() ? static_cast<float>(*settings.min_p)
                                              : defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty =
      settings.repetition_penalty.has_value()
          ? static_cast<float>(*settings.repetition_penalty)
          : defaults.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = settings.seed;
  const int64_t room =
      static_cast<int64_t>(loaded.engine->max_model_len()) - static_cast<int64_t>(prompt_length);
  sampling.max_tokens = settings.max_tokens.value_or(
      static_cast<int32_t>(std::clamp<int64_t>(room, 1, kLongestDefaultAnswer)));
  sampling.stop = settings.stop;
  sampling.stop_token_ids = settings.stop_token_ids;
  sampling.ignore_eos = settings.ignore_eos;
  sampling.logprobs = settings.logprobs;
  return sampling;
}

std::shared_ptr<const CompiledGrammar> CompileGrammar(const GenerateSettings& settings,
                                                      const LoadedEngine& loaded) {
  if (!settings.grammar) return nullptr;
  if (loaded.grammars == nullptr) {
    throw InvalidArgument("{} needs a tokenizer, and the model has none", settings.grammar_option);
  }
  try {
    return loaded.grammars->Compile(*settings.grammar);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", settings.grammar_option, error.what()));
  }
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
  GenerationRequest request;
  request.prompt_token_ids = PromptTokens(generate, loaded);
  request.sampling = MakeSampling(generate, loaded, request.prompt_token_ids.size());
  request.grammar.grammar = CompileGrammar(generate, loaded);

  const ReportedLogprobs request_logprobs{.tokens = generate.logprobs.has_value(),
                                          .prompt = request.sampling.prompt_logprobs.has_value()};

  const InterruptFlag interrupt;
  const GenerationResult result = RunGeneration(
      *loaded.engine, std::move(request), [&] { loaded.engine->Step(); },
      [&](std::string_view text) {
        if (!json) std::cout << text << std::flush;
      },
      interrupt.interrupted());
  if (json) {
    std::cout << GenerationJson(result, request_logprobs, [&](int32_t id) {
      return loaded.tokenizer == nullptr ? std::string()
                                         : std::string(loaded.tokenizer->TokenBytes(id));
    });
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
