#include "outrider/cli/grpc_start.h"

#include <spdlog/spdlog.h>

#include "outrider/base/error.h"
#include "outrider/cli/server_options.h"
#ifdef OUTRIDER_CLI_GRPC
#include "outrider/grpc/grpc_server.h"
#endif

namespace outrider::cli {

#ifdef OUTRIDER_CLI_GRPC

void CheckGrpc(const ServeSettings& serve) {
  if (!serve.grpc_port) return;
  if (serve.uds.empty() && *serve.grpc_port != 0 && *serve.grpc_port == serve.port) {
    throw InvalidArgument("--grpc-port: {} is --port, too; gRPC needs one of its own", serve.port);
  }
  HttpServerOptions address;
  address.host = serve.host;
  address.port = *serve.grpc_port;
  HttpServer::CheckAddress(address);
}

std::unique_ptr<ServerCompanion> StartGrpc(const Settings& settings, const LoadedEngine& loaded,
                                           const std::optional<KvEventsConfig>& kv_events,
                                           Server& server) {
  if (!settings.serve.grpc_port) return nullptr;
  GrpcOptions options;
  options.host = settings.serve.host;
  options.port = *settings.serve.grpc_port;
  options.tls = MakeHttpOptions(settings.serve).tls;
  options.facts.tensor_parallel_size = settings.engine.tensor_parallel_size;
  options.facts.has_tokenizer = loaded.tokenizer != nullptr;
  options.facts.kv_events = kv_events;
  auto grpc = std::make_unique<GrpcServer>(options, server.parts());
  SPDLOG_INFO("gRPC: vllm.Inference and vllm.Control on {}", grpc->address());
  server.Join(*grpc);
  return grpc;
}

#else

void CheckGrpc(const ServeSettings& serve) {
  if (!serve.grpc_port) return;
  throw InvalidArgument(
      "--grpc-port: this program was built without gRPC; build it with OUTRIDER_GRPC=ON");
}

std::unique_ptr<ServerCompanion> StartGrpc(const Settings& settings, const LoadedEngine& /*loaded*/,
                                           const std::optional<KvEventsConfig>& /*kv_events*/,
                                           Server& /*server*/) {
  CheckGrpc(settings.serve);
  return nullptr;
}

#endif

}  // namespace outrider::cli
