// Another protocol in front of the engine that the HTTP server serves: what both share, and how one
// ends with the other.
#pragma once

#include <cstddef>
#include <string>

#include "outrider/engine/generation_service.h"
#include "outrider/openai/request.h"
#include "outrider/server/api_keys.h"
#include "outrider/server/request_starter.h"
#include "outrider/server/served_models.h"

namespace outrider {

/// Lives as long as the server. Thread-safe.
struct ServerParts {
  const ApiKeys& keys;
  const ServedModels& models;
  const openai::RequestLimits& limits;
  GenerationService& service;
  RequestStarter& starter;
  const std::string& model_root;  // the checkpoint, as it was given
};

/// But for Stop, called on the HTTP server's I/O thread, where nothing may block.
class ServerCompanion {
 public:
  virtual ~ServerCompanion() = default;

  /// The server stops: from now on refuse what is new.
  virtual void Drain() = 0;
  /// Requests that have not ended.
  virtual size_t CountRequests() const = 0;
  /// They have had long enough.
  virtual void Cancel() = 0;

  /// Ends what there is still, and then the engine has none of its requests. After the server's
  /// run, not on its thread.
  virtual void Stop() = 0;
};

}  // namespace outrider
