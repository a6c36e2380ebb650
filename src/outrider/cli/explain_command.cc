#include <iostream>

#include "outrider/cli/commands.h"
#include "outrider/cli/explain_batch.h"
#include "outrider/cli/explain_report.h"
#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

namespace {

// What a model without a say in it is taken to speculate.
constexpr int32_t kDefaultDrafts = 3;

int32_t NumDrafts(const EngineOptions& options) {
  if (!options.model.empty()) return ExplainEngine(options).num_speculative_tokens;
  return options.speculation.num_speculative_tokens.value_or(kDefaultDrafts);
}

}  // namespace

int RunExplain(const Settings& settings) {
  const EngineOptions& options = settings.engine;
  if (!settings.explain.batch.empty()) {
    const ExplainedBatch batch(settings.explain.batch, options.attention_backend,
                               NumDrafts(options), options.block_size);
    std::cout << (settings.explain.json ? batch.Json() : batch.Text()) << std::flush;
    return 0;
  }
  const LoadedEngine explained = ExplainEngine(settings.engine);
  const std::string& model = settings.engine.model;
  std::cout << (settings.explain.json ? ExplainJson(model, explained)
                                      : ExplainText(model, explained))
            << std::flush;
  return 0;
}

}  // namespace outrider::cli
