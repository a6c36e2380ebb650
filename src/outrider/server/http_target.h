// The target of a request line, taken apart.
#pragma once

#include <string_view>

#include "outrider/server/http_message.h"

namespace outrider {

/// Sets path, decoded, and query of a request from "/path?query", or the same after "http://host"
/// as proxies write it.
void SetTarget(std::string_view target, HttpRequest* request);

}  // namespace outrider
