#include <utility>

#include "outrider/base/error.h"
#include "outrider/options/logit_bias.h"
#include "outrider/options/option_rows.h"

namespace outrider {

namespace {

void SetGrammar(Settings& settings, const OptionValue& value, GrammarSpec spec) {
  GenerateSettings& generate = settings.generate;
  if (generate.grammar) {
    throw InvalidArgument("{}: the text is constrained by {} already; give one of them",
                          value.where, generate.grammar_option);
  }
  generate.grammar = std::move(spec);
  generate.grammar_option = value.where;
}

}  // namespace

std::vector<OptionRow> GenerateOptionRows() {
  const CommandSet generate = {Command::kGenerate};
  const CommandSet both = {Command::kGenerate, Command::kChat};
  const OptionKind one = OptionKind::kValue;
  const OptionKind many = OptionKind::kRepeated;
  const OptionKind flag = OptionKind::kSwitch;
  const std::string input = "Input";
  const std::string sampling = "Sampling";
  const std::string structured = "Structured output";
  const std::string model_or_one = "the model's generation_config.json, else 1";
  return {
      {"prompt", one, input, "TEXT", "", "Text to continue; - reads standard input", generate,
       [](Settings& s, const OptionValue& v) { s.generate.prompt = Text(v); }},
      {"chat", one, input, "TEXT", "",
       "Message to answer, through the model's chat template; - reads standard input", generate,
       [](Settings& s, const OptionValue& v) { s.generate.chat = Text(v); }},
      {"prompt-token-ids", one, input, "IDS", "", "Token ids to continue: 1,2,3", generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.prompt_token_ids =
             ParseIntegerList(v.where, Text(v), 0, std::numeric_limits<int32_t>::max());
       }},
      {"system", one, input, "TEXT", "", "System message before the conversation", both,
       [](Settings& s, const OptionValue& v) { s.generate.system = Text(v); }},

      {"url",
       one,
       input,
       "URL",
       "",
       "A server that runs already: it answers, and no model is loaded. MODEL, if given, is the "
       "name that it serves",
       {Command::kChat},
       [](Settings& s, const OptionValue& v) { s.chat.url = Text(v); }},
      {"api-key",
       one,
       input,
       "KEY",
       "",
       "The API key of the server at --url",
       {Command::kChat},
       [](Settings& s, const OptionValue& v) { s.chat.api_key = Text(v); },
       /*secret=*/true},

      {"temperature", one, sampling, "T", model_or_one, "0 is greedy", both,
       [](Settings& s, const OptionValue& v) { s.generate.temperature = Temperature(v); }},
      {"top-k", one, sampling, "N", "the model's, else all",
       "Draw from the N most likely tokens; 0 for all", both,
       [](Settings& s, const OptionValue& v) { s.generate.top_k = Int32(v, 0); }},
      {"top-p", one, sampling, "P", model_or_one,
       "Draw from the fewest tokens that hold probability P", both,
       [](Settings& s, const OptionValue& v) { s.generate.top_p = Share(v); }},
      {"min-p", one, sampling, "P", "the model's generation_config.json, else 0",
       "Draw from tokens at least P times as likely as the best", both,
       [](Settings& s, const OptionValue& v) { s.generate.min_p = Number(v, 0, 1); }},
      {"seed", one, sampling, "N", "0", "Seed of the random draws", both,
       [](Settings& s, const OptionValue& v) {
         s.generate.seed = ParseUnsigned(v.where, Text(v));
       }},
      {"max-tokens", one, sampling, "N", "to the end of the context; generate: at most 512",
       "Longest answer in tokens", both,
       [](Settings& s, const OptionValue& v) { s.generate.max_tokens = Int32(v, 1); }},
      {"stop", many, sampling, "TEXT", "", "Text that ends the answer; may be given several times",
       both, [](Settings& s, const OptionValue& v) { s.generate.stop = v.texts; }},
      {"stop-token-id", many, sampling, "ID", "",
       "Token that ends the answer, beside the model's own; may be given several times", generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.stop_token_ids.clear();
         for (const std::string& text : v.texts) {
           s.generate.stop_token_ids.push_back(static_cast<int32_t>(
               ParseInteger(v.where, text, 0, std::numeric_limits<int32_t>::max())));
         }
       }},
      {"ignore-eos", flag, sampling, "", "", "Go on after the model's end-of-sequence token",
       generate, [](Settings& s, const OptionValue& v) { s.generate.ignore_eos = Switch(v); }},

      {"min-tokens", one, sampling, "N", "0", "Nothing ends the answer before N tokens", both,
       [](Settings& s, const OptionValue& v) { s.generate.sampling.min_tokens = Int32(v, 0); }},
      {"repetition-penalty", one, sampling, "R", model_or_one,
       "Divide (or multiply, when negative) the logits of tokens of prompt and answer by R", both,
       [](Settings& s, const OptionValue& v) {
         s.generate.repetition_penalty = Number(v, 0.01, 100);
       }},
      {"presence-penalty", one, sampling, "X", "0",
       "Subtract X from the logits of tokens of the answer", both,
       [](Settings& s, const OptionValue& v) {
         s.generate.sampling.presence_penalty = static_cast<float>(Number(v, -2, 2));
       }},
      {"frequency-penalty", one, sampling, "X", "0", "The same for each time a token came", both,
       [](Settings& s, const OptionValue& v) {
         s.generate.sampling.frequency_penalty = static_cast<float>(Number(v, -2, 2));
       }},
      {"logit-bias", one, sampling, "JSON", "",
       R"(Numbers from -100 to 100 to add to logits, by token id: {"17": -100})", both,
       [](Settings& s, const OptionValue& v) {
         s.generate.sampling.logit_bias = ParseLogitBias(v.where, Text(v));
       }},
      {"bad-words", many, sampling, "TEXT", "",
       "Word that the answer must not hold; may be given several times", both,
       [](Settings& s, const OptionValue& v) { s.generate.bad_words = v.texts; }},
      {"allowed-token-ids", one, sampling, "IDS", "", "The only tokens of the answer: 1,2,3",
       generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.sampling.allowed_token_ids =
             ParseIntegerList(v.where, Text(v), 0, std::numeric_limits<int32_t>::max());
       }},

      {"json-schema", one, structured, "JSON", "",
       "Answer with JSON that the schema allows; {} allows any JSON", generate,
       [](Settings& s, const OptionValue& v) {
         SetGrammar(s, v, {GrammarKind::kJsonSchema, Text(v), {}});
       }},
      {"regex", one, structured, "REGEX", "", "Answer with text that matches as a whole", generate,
       [](Settings& s, const OptionValue& v) {
         SetGrammar(s, v, {GrammarKind::kRegex, Text(v), {}});
       }},
      {"choice", many, structured, "TEXT", "",
       "Answer with one of the choices; may be given several times", generate,
       [](Settings& s, const OptionValue& v) {
         SetGrammar(s, v, {GrammarKind::kChoice, {}, v.texts});
       }},
      {"grammar", one, structured, "EBNF", "",
       R"(Answer with text of a grammar, e.g. root ::= "yes" | "no")", generate,
       [](Settings& s, const OptionValue& v) {
         SetGrammar(s, v, {GrammarKind::kEbnf, Text(v), {}});
       }},

      {"prompt-logprobs", one, "Output", "N", "",
       "Give the log-probability of each prompt token and the N best beside it (implies --json)",
       generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.sampling.prompt_logprobs = Int32(v, 0, 100000);
         s.engine.max_logprobs =
             std::max(s.engine.max_logprobs, *s.generate.sampling.prompt_logprobs);
       }},
      {"logprobs", one, "Output", "N", "",
       "Give each token's log-probability and the N best beside it (implies --json)", generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.logprobs = Int32(v, 0, 100000);
         s.engine.max_logprobs = std::max(s.engine.max_logprobs, *s.generate.logprobs);
       }},
      {"json", flag, "Output", "", "", "Print one JSON object at the end instead of streaming text",
       generate, [](Settings& s, const OptionValue& v) { s.generate.json = Switch(v); }},
  };
}

}  // namespace outrider
