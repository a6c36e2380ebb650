#include "outrider/server/cors.h"

#include <algorithm>
#include <utility>

namespace outrider {

Cors::Cors(std::vector<std::string> allowed_origins)
    : allowed_origins_(std::move(allowed_origins)),
      all_(std::find(allowed_origins_.begin(), allowed_origins_.end(), "*") !=
           allowed_origins_.end()) {}

bool Cors::Allows(const HttpRequest& head) const {
  const auto origin = head.Header("Origin");
  return origin && (all_ || std::find(allowed_origins_.begin(), allowed_origins_.end(), *origin) !=
                                allowed_origins_.end());
}

std::vector<HttpHeader> Cors::HeadersFor(const HttpRequest& head) const {
  std::vector<HttpHeader> headers;
  if (allowed_origins_.empty()) return headers;
  if (!all_) headers.push_back({"Vary", "Origin"});  // caches must not mix origins
  if (!Allows(head)) return headers;
  headers.push_back(
      {"Access-Control-Allow-Origin", all_ ? "*" : std::string(*head.Header("Origin"))});
  headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  return headers;
}

std::optional<HttpResponse> Cors::AnswerPreflight(const HttpRequest& head) const {
  if (head.method != "OPTIONS" || !head.Header("Access-Control-Request-Method") || !Allows(head)) {
    return std::nullopt;
  }
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, OPTIONS"});
  const std::string asked(head.Header("Access-Control-Request-Headers").value_or(""));
  if (!asked.empty()) response.headers.push_back({"Access-Control-Allow-Headers", asked});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

}  // namespace outrider
