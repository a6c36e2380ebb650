#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/version.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/grpc_start.h"
#include "outrider/cli/memory_table.h"
#include "outrider/cli/server_options.h"
#include "outrider/engine/engine_thread.h"
#include "outrider/generate/model_defaults.h"
#include "outrider/http/tls_context.h"
#include "outrider/server/api_keys.h"
#include "outrider/server/server.h"
#include "outrider/telemetry/kv_event_publisher.h"
#include "outrider/telemetry/stats_log.h"

namespace outrider::cli {

namespace {

/// Starts Python while nobody waits for it, and finds what is wrong with the chat template before
/// the model is loaded.
void PrepareChats(const EngineOptions& options) {
  const std::optional<ChatTemplate> chat = LoadChatTemplate(options);
  if (!chat) {
    SPDLOG_WARN("the model has no chat template, so chats are refused; --chat-template names one");
    return;
  }
  try {
    chat->Check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    SPDLOG_WARN("chats are refused: {}", error.what());
  }
}

}  // namespace

int RunServe(const Settings& settings, const std::vector<std::string>& non_defaults) {
  // A reader of standard error that goes away must not end the server.
  std::signal(SIGPIPE, SIG_IGN);
  SPDLOG_INFO("Outrider {}, non-default options: {}", kVersion, fmt::join(non_defaults, ", "));
  // Loading a model takes long; bad files and options, and a port in use, show before it.
  const HttpServerOptions http = MakeHttpOptions(settings.serve);
  if (http.tls) MakeTlsContext(*http.tls);
  const Cors cors(http.cors);
  HttpServer::CheckAddress(http);
  CheckGrpc(settings.serve);
  const ApiKeys keys(ApiKeysOf(settings.serve), settings.serve.max_num_reqs_per_key);
  std::optional<KvEventsConfig> kv_events;
  if (!settings.serve.kv_events_config.empty()) {
    kv_events = ParseKvEventsConfig("--kv-events-config", settings.serve.kv_events_config);
    if (settings.engine.data_parallel_attention) {
      throw InvalidArgument(
          "--kv-events-config tells of one cache: it does not go with --data-parallel-attention "
          "yet");
    }
  }
  std::optional<KvEventPublisher> publisher;
  if (kv_events) publisher.emplace(*kv_events);
  ReadModelConfig(settings.engine.model);  // what is no checkpoint has no template either
  PrepareChats(settings.engine);
  ReadExampleQuestions(settings.engine.model);
  const LoadedEngine loaded = LoadWithProgress(
      settings.engine, StandardErrorStyle(settings.log_format, ProgressStyle::kLines));
  for (const std::string& line : MemoryLines(loaded.memory, loaded.engine->max_model_len())) {
    SPDLOG_INFO("Memory: {}", line);
  }
  for (const Decision& decision : loaded.decisions) {
    SPDLOG_INFO("{}: {} ({})", decision.what, decision.value, decision.why);
  }
  const TextPromptEncoder encoder = MakePromptEncoder(loaded);
  Server server(MakeServerOptions(settings, loaded), *loaded.engine, encoder,
                loaded.grammars.get());
  if (publisher) {
    loaded.engine->SetKvEventSink(
        [&](std::vector<KvEvent>&& events) { publisher->Publish(std::move(events)); });
    SPDLOG_INFO("KV events are published on {}", publisher->endpoint());
  }
  const auto grpc = StartGrpc(settings, loaded, kv_events, server);
  const EngineThread engine_thread(*loaded.engine, [&](const std::string& reason) {
    SPDLOG_ERROR("The engine has failed, the server stops: {}", reason);
    server.StopAfterFailure();
  });
  const StatsLog stats(*loaded.engine, settings.serve.stats_interval);
  server.Run();
  if (grpc) grpc->Stop();
  SPDLOG_INFO("Stopped");
  return engine_thread.failed() ? 1 : 0;
}

}  // namespace outrider::cli
