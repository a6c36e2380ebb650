// What a command line says of a server, for `outrider serve` and `outrider bench serve`.
#pragma once

#include "outrider/engine/engine_loader.h"
#include "outrider/options/settings.h"
#include "outrider/server/server.h"

namespace outrider::cli {

/// Address, TLS, CORS and limits. Throws Error naming the option that makes no sense.
HttpServerOptions MakeHttpOptions(const ServeSettings& serve);

/// All options of a server in front of `loaded`.
ServerOptions MakeServerOptions(const Settings& settings, const LoadedEngine& loaded);

}  // namespace outrider::cli
