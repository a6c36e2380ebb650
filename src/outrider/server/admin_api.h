// Routes that change what a server does, for trainers and operators: pause, resume, forget cached
// prefixes, other weights, sleep. They need a key of their own (--enable-admin-api).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/http/http_message.h"

namespace outrider {

enum class AdminRoute : uint8_t {
  kPause,        // vLLM's, with a query
  kPauseSglang,  // with a body
  kResume,       // vLLM's
  kResumeSglang,
  kResetPrefixCache,  // vLLM's
  kFlushCache,        // SGLang's
  kUpdateWeights,
  kSleep,        // vLLM's, with a query
  kSleepSglang,  // with a body
  kWakeUp,       // vLLM's
  kWakeUpSglang,
};

/// Answers when it is done. Throws RequestError for a query or a body that makes no sense. I/O
/// thread; `service` must outlive the answer. `weight_dirs`: below which weights may be read.
std::shared_ptr<HttpProducer> HandleAdminRoute(AdminRoute route, GenerationService& service,
                                               const std::vector<std::string>& weight_dirs,
                                               const HttpRequest& request, HttpWaker waker);

}  // namespace outrider
