// What a command line says of a server, for `outrider serve` and `outrider bench serve`.
#pragma once

#include <string>
#include <vector>

#include "outrider/engine/engine_loader.h"
#include "outrider/options/settings.h"
#include "outrider/server/server.h"

namespace outrider::cli {

/// Address, TLS, CORS and limits. Throws Error naming the option that makes no sense.
HttpServerOptions MakeHttpOptions(const ServeSettings& serve);

/// The keys that are given, those of the file too. Throws Error for a file without any.
std::vector<std::string> ApiKeysOf(const ServeSettings& serve);

/// All options of a server in front of `loaded`, under the names of settings.serve. Throws Error
/// for example questions in the model's folder that are none.
ServerOptions MakeServerOptions(const Settings& settings, const LoadedEngine& loaded);

}  // namespace outrider::cli
