// Which web pages of other origins may read this server's answers. Browsers ask and obey; other
// clients do not care.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "outrider/server/http_message.h"

namespace outrider {

class Cors {
 public:
  /// Origins as browsers write them ("https://example.org"); "*" is every origin; none: off.
  explicit Cors(std::vector<std::string> allowed_origins);

  /// What goes with every answer to a request; nothing for origins that are not allowed.
  std::vector<HttpHeader> HeadersFor(const HttpRequest& head) const;

  /// The answer to a browser's question whether a request would be allowed. It brings no API key,
  /// so it comes before keys are looked at. Nothing when the request is no such question, or its
  /// origin is not allowed.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& head) const;

 private:
  bool Allows(const HttpRequest& head) const;

  std::vector<std::string> allowed_origins_;
  bool all_ = false;
};

}  // namespace outrider
