// gRPC beside the HTTP server of `outrider serve`.
#pragma once

#include <memory>
#include <optional>

#include "outrider/engine/engine_loader.h"
#include "outrider/options/settings.h"
#include "outrider/server/server.h"
#include "outrider/telemetry/kv_event_publisher.h"

namespace outrider::cli {

/// Throws Error when --grpc-port is given and cannot be had, or the program was built without gRPC.
/// For finding that out before the model is loaded.
void CheckGrpc(const ServeSettings& serve);

/// Listens, and drains with `server`; null without --grpc-port. Throws as CheckGrpc.
std::unique_ptr<ServerCompanion> StartGrpc(const Settings& settings, const LoadedEngine& loaded,
                                           const std::optional<KvEventsConfig>& kv_events,
                                           Server& server);

}  // namespace outrider::cli
