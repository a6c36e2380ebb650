#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string>
#include <vector>

#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/memory_table.h"
#include "outrider/cli/stats_log.h"
#include "outrider/engine/engine_thread.h"
#include "outrider/server/server.h"

namespace outrider::cli {

namespace {

ServerOptions MakeServerOptions(const Settings& settings, const LoadedEngine& loaded) {
  const ServeSettings& serve = settings.serve;
  ServerOptions options;
  options.http.host = serve.host;
  options.http.port = serve.port;
  options.http.uds = serve.uds;
  options.http.shutdown_seconds = serve.shutdown_timeout;
  options.http.handle_signals = true;
  options.served_model_names = serve.served_model_names;
  if (options.served_model_names.empty()) options.served_model_names = {settings.engine.model};
  options.model_root = settings.engine.model;
  options.api_key = serve.api_key;
  options.max_model_len = loaded.engine->max_model_len();
  options.max_logprobs = settings.engine.max_logprobs;
  options.num_speculative_tokens = loaded.engine->num_speculative_tokens();
  options.speculation_metrics = serve.per_request_spec_decode_metrics;
  options.output_format =
      ChooseOutputFormat(serve.tool_call_parser, serve.reasoning_parser, loaded.config.model_type,
                         loaded.chat_template.has_value() ? loaded.chat_template->source() : "");
  options.sampling_defaults = ModelSamplingDefaults(loaded.config);
  return options;
}

}  // namespace

int RunServe(const Settings& settings, const std::vector<std::string>& non_defaults) {
  SPDLOG_INFO("Outrider " OUTRIDER_VERSION ", non-default options: {}",
              fmt::join(non_defaults, ", "));
  const LoadedEngine loaded =
      LoadWithProgress(settings.engine, StandardErrorStyle(ProgressStyle::kLines));
  for (const std::string& line : MemoryLines(loaded.memory, loaded.engine->max_model_len())) {
    SPDLOG_INFO("Memory: {}", line);
  }
  for (const Decision& decision : loaded.decisions) {
    SPDLOG_INFO("{}: {} ({})", decision.what, decision.value, decision.why);
  }
  const TextPromptEncoder encoder = MakePromptEncoder(loaded);
  Server server(MakeServerOptions(settings, loaded), *loaded.engine, encoder,
                loaded.grammars.get());
  const EngineThread engine_thread(*loaded.engine);
  const StatsLog stats(*loaded.engine, settings.serve.stats_interval);
  server.Run();
  SPDLOG_INFO("Stopped");
  return 0;
}

}  // namespace outrider::cli
