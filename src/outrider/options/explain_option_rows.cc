#include "outrider/options/batch_items.h"
#include "outrider/options/option_rows.h"

namespace outrider {

std::vector<OptionRow> ExplainOptionRows() {
  const CommandSet explain = {Command::kExplain};
  return {
      {"batch", OptionKind::kValue, "Input", "ITEMS", "",
       "Explain how a step of these requests is laid out and split among kernels; needs no MODEL. "
       "p:37 is a prompt of 37 tokens, d:4@900 a decode request of 4 rows after 900 cached tokens, "
       "c:64@128 a chunk of a prompt of which more follows",
       explain,
       [](Settings& s, const OptionValue& v) {
         s.explain.batch = ParseBatchItems(v.where, Text(v));
       }},
      {"json", OptionKind::kSwitch, "Output", "", "", "Print one JSON object", explain,
       [](Settings& s, const OptionValue& v) { s.explain.json = Switch(v); }},
  };
}

}  // namespace outrider
