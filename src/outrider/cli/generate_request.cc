#include "outrider/cli/generate_request.h"

namespace outrider::cli {

openai::TokenRequest SampledRequest(const GenerateSettings& settings,
                                    const openai::SamplingDefaults& defaults) {
  const auto number = [](const std::optional<double>& given, const std::optional<float>& model,
                         float otherwise) {
    return given ? static_cast<float>(*given) : model.value_or(otherwise);
  };
  openai::TokenRequest request;
  SamplingParams& sampling = request.sampling;
  sampling = settings.sampling;
  sampling.temperature = number(settings.temperature, defaults.temperature, sampling.temperature);
  sampling.top_p = number(settings.top_p, defaults.top_p, sampling.top_p);
  sampling.top_k = settings.top_k.value_or(defaults.top_k.value_or(sampling.top_k));
  sampling.min_p = number(settings.min_p, defaults.min_p, sampling.min_p);
  sampling.repetition_penalty =
      number(settings.repetition_penalty, defaults.repetition_penalty, sampling.repetition_penalty);
  sampling.seed = settings.seed;
  sampling.stop = settings.stop;
  sampling.stop_token_ids = settings.stop_token_ids;
  sampling.ignore_eos = settings.ignore_eos;
  sampling.logprobs = settings.logprobs;
  request.bad_words = settings.bad_words;
  request.max_tokens = settings.max_tokens;
  request.grammar = settings.grammar;
  request.grammar_field = settings.grammar_option;
  return request;
}

}  // namespace outrider::cli
