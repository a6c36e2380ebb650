// What came with a call, as the head of an HTTP request: keys, ids and traces are read from that.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "outrider/http/http_message.h"

namespace outrider {

/// Metadata as header fields. `path`: of the method.
HttpRequest HeadOf(const ::grpc::CallbackServerContext& context, const char* path);

}  // namespace outrider
