// The web page at /: files of page/ that are part of the binary.
#pragma once

#include <string_view>

#include "outrider/http/http_message.h"

namespace outrider {

/// Whether "/" or "/page/NAME" is a file of the page.
bool IsPagePath(std::string_view path);

/// The file, gzipped for clients that accept it. IsPagePath(request.path).
HttpResponse PageResponse(const HttpRequest& request);

}  // namespace outrider
