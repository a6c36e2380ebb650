// The description of the API that is served at /openapi.json: openapi.json, compiled in.
#pragma once

#include <string_view>

namespace outrider {

extern const std::string_view kOpenApiJson;

}  // namespace outrider
