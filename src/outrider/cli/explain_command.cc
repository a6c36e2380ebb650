#include <iostream>

#include "outrider/cli/commands.h"
#include "outrider/cli/explain_batch.h"
#include "outrider/cli/explain_report.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/engine/plan/check_options.h"

namespace outrider::cli {

namespace {

// What a model without a say in it is taken to speculate.
constexpr int32_t kDefaultDrafts = 3;

ExplainedBatch ExplainBatch(const Settings& settings) {
  const EngineOptions& options = settings.engine;
  int32_t k = options.speculation.num_speculative_tokens.value_or(kDefaultDrafts);
  KvCacheForm form = options.kv_cache_form.value_or(KvCacheForm::kLatent);
  RowPaths paths = form;
  if (options.model.empty()) {
    CheckAttentionOptions(options);
  } else {
    const LoadedEngine explained = ExplainEngine(options);
    k = explained.num_speculative_tokens;
    form = explained.kv_cache_form;
    paths = explained.row_paths;
  }
  return {settings.explain.batch, options.attention_backend, form, paths, k, options.block_size};
}

}  // namespace

int RunExplain(const Settings& settings) {
  if (!settings.explain.batch.empty()) {
    const ExplainedBatch batch = ExplainBatch(settings);
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
