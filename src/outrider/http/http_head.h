// The head of a request: its target taken apart, and what is wrong with its fields.
#pragma once

#include <optional>
#include <string_view>

#include "outrider/http/http_message.h"

namespace outrider {

/// Sets path, decoded, and query of a request from "/path?query", or the same after "http://host"
/// as proxies write it.
void SetTarget(std::string_view target, HttpRequest* request);

/// A status of 4xx or 5xx with a reason, for a head that HTTP forbids or that asks for what this
/// server does not do; nothing for a good one. Where the body ends is then not known for certain.
struct HeadFault {
  int status;
  std::string_view reason;
};
std::optional<HeadFault> FindHeadFault(const HttpRequest& head, bool http_1_0);

}  // namespace outrider
