// Which web pages of other origins may read this server's answers. Browsers ask and obey; other
// clients do not care.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/http/http_message.h"

namespace outrider {

/// What pages of other origins may do. In each list "*" is all there are.
struct CorsOptions {
  /// As browsers write them ("https://example.org"); none: methods and headers have no effect.
  std::vector<std::string> allowed_origins = {};
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  /// Whether pages may send what the browser keeps for this server, such as a client certificate.
  /// Only with origins by name: browsers refuse it with "*".
  bool allow_credentials = false;
};

class Cors {
 public:
  /// Throws Error (kInvalidArgument) for credentials with every origin or with none.
  explicit Cors(CorsOptions options);

  /// What goes with every answer to a request; nothing for origins that are not allowed.
  std::vector<HttpHeader> HeadersFor(const HttpRequest& head) const;

  /// The answer to a browser's question whether a request would be allowed. It brings no API key,
  /// so it comes before keys are looked at. Nothing when the request is no such question, or its
  /// origin is not allowed.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& head) const;

 private:
  bool Allows(const HttpRequest& head) const;

  CorsOptions options_;
};

}  // namespace outrider
