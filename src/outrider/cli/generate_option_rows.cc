#include "outrider/cli/option_rows.h"

namespace outrider::cli {

std::vector<OptionRow> GenerateOptionRows() {
  const CommandSet generate = {Command::kGenerate};
  const OptionKind one = OptionKind::kValue;
  const OptionKind many = OptionKind::kRepeated;
  const OptionKind flag = OptionKind::kSwitch;
  const std::string input = "Input";
  const std::string sampling = "Sampling";
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
      {"system", one, input, "TEXT", "", "System message before --chat", generate,
       [](Settings& s, const OptionValue& v) { s.generate.system = Text(v); }},

      {"temperature", one, sampling, "T", model_or_one, "0 is greedy", generate,
       [](Settings& s, const OptionValue& v) { s.generate.temperature = Number(v, 0, 2); }},
      {"top-k", one, sampling, "N", "the model's, else all",
       "Draw from the N most likely tokens; 0 for all", generate,
       [](Settings& s, const OptionValue& v) { s.generate.top_k = Int32(v, 0); }},
      {"top-p", one, sampling, "P", model_or_one,
       "Draw from the fewest tokens that hold probability P", generate,
       [](Settings& s, const OptionValue& v) { s.generate.top_p = Number(v, 1e-9, 1); }},
      {"min-p", one, sampling, "P", "0", "Draw from tokens at least P times as likely as the best",
       generate, [](Settings& s, const OptionValue& v) { s.generate.min_p = Number(v, 0, 1); }},
      {"seed", one, sampling, "N", "0", "Seed of the random draws", generate,
       [](Settings& s, const OptionValue& v) {
         s.generate.seed = ParseUnsigned(v.where, Text(v));
       }},
      {"max-tokens", one, sampling, "N", "to the end of the context, at most 512",
       "Longest answer in tokens", generate,
       [](Settings& s, const OptionValue& v) { s.generate.max_tokens = Int32(v, 1); }},
      {"stop", many, sampling, "TEXT", "", "Text that ends the answer; may be given several times",
       generate, [](Settings& s, const OptionValue& v) { s.generate.stop = v.texts; }},
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

}  // namespace outrider::cli
