#include <iostream>

#include "outrider/cli/commands.h"
#include "outrider/cli/explain_report.h"
#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

int RunExplain(const Settings& settings) {
  const LoadedEngine explained = ExplainEngine(settings.engine);
  const std::string& model = settings.engine.model;
  std::cout << (settings.explain.json ? ExplainJson(model, explained)
                                      : ExplainText(model, explained))
            << std::flush;
  return 0;
}

}  // namespace outrider::cli
