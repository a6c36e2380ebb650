#include <fmt/format.h>

#include "outrider/options/option_rows.h"
#include "outrider/options/speculative_config.h"

namespace outrider {

std::vector<OptionRow> BenchOptionRows() {
  const CommandSet bench = {Command::kBenchLatency, Command::kBenchThroughput,
                            Command::kBenchServe};
  const CommandSet with_kernels = {Command::kBenchLatency, Command::kBenchThroughput,
                                   Command::kBenchServe, Command::kBenchKernels};
  const OptionKind one = OptionKind::kValue;
  const BenchSettings defaults;
  return {
      {"spec-tokens", one, "Speculation", "LIST", "0 up to the model's default",
       "Draft tokens of each row of the table: 0,1,2,3", bench,
       [](Settings& s, const OptionValue& v) {
         s.bench.spec_tokens = ParseIntegerList(v.where, Text(v), 0, kMaxSpeculativeTokens);
       }},
      {"input-len", one, "Load", "N", fmt::to_string(defaults.input_len),
       "Tokens of each random prompt", bench,
       [](Settings& s, const OptionValue& v) { s.bench.input_len = Int32(v, 1); }},
      {"output-len", one, "Load", "N", fmt::to_string(defaults.output_len),
       "Tokens of each answer (the most, with --prompts-file)", bench,
       [](Settings& s, const OptionValue& v) { s.bench.output_len = Int32(v, 1); }},
      {"num-prompts", one, "Load", "N", "8 for latency, else 64; all of --prompts-file",
       "Requests per row", bench,
       [](Settings& s, const OptionValue& v) { s.bench.num_prompts = Int32(v, 1); }},
      {"batch-size", one, "Load", "N", "1 for latency, else all",
       "Requests in flight at the same time", bench,
       [](Settings& s, const OptionValue& v) { s.bench.batch_size = Int32(v, 1); }},
      {"prompts-file", one, "Load", "FILE", "random token ids",
       R"(JSON lines to take prompts from: {"prompt": TEXT}, or {"question": TEXT} through the chat )"
       "template",
       bench, [](Settings& s, const OptionValue& v) { s.bench.prompts_file = Text(v); }},
      {"temperature", one, "Load", "T", fmt::to_string(defaults.temperature), "0 is greedy", bench,
       [](Settings& s, const OptionValue& v) { s.bench.temperature = Temperature(v); }},
      {"ignore-eos", OptionKind::kSwitch, "Load", "", "",
       "With --prompts-file, run every answer to --output-len", bench,
       [](Settings& s, const OptionValue& v) { s.bench.ignore_eos = Switch(v); }},
      {"json", one, "Output", "FILE", "",
       "Write the figures as JSON to FILE, or to standard output "
       "with -",
       with_kernels, [](Settings& s, const OptionValue& v) { s.bench.json = Text(v); }},
  };
}

}  // namespace outrider
