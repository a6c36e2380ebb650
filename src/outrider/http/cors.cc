#include "outrider/http/cors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

bool HasOrAll(const std::vector<std::string>& list, std::string_view text) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& entry) { return entry == "*" || entry == text; });
}

bool HasAll(const std::vector<std::string>& list) { return HasOrAll(list, "*"); }

}  // namespace

Cors::Cors(CorsOptions options) : options_(std::move(options)) {
  if (options_.allowed_origins.empty() && options_.allow_credentials) {
    throw InvalidArgument(
        "--allow-credentials: has no effect without origins; name them in --allowed-origins");
  }
  if (HasAll(options_.allowed_origins) && options_.allow_credentials) {
    throw InvalidArgument(
        "--allow-credentials: browsers refuse credentials where every origin is allowed; name the "
        "origins in --allowed-origins instead of *");
  }
}

bool Cors::Allows(const HttpRequest& head) const {
  const auto origin = head.Header("Origin");
  return origin && HasOrAll(options_.allowed_origins, *origin);
}

std::vector<HttpHeader> Cors::HeadersFor(const HttpRequest& head) const {
  std::vector<HttpHeader> headers;
  if (options_.allowed_origins.empty()) return headers;
  const bool all_origins = HasAll(options_.allowed_origins);
  if (!all_origins) headers.push_back({"Vary", "Origin"});  // caches must not mix origins
  if (!Allows(head)) return headers;
  headers.push_back(
      {"Access-Control-Allow-Origin", all_origins ? "*" : std::string(*head.Header("Origin"))});
  if (options_.allow_credentials) headers.push_back({"Access-Control-Allow-Credentials", "true"});
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
  const std::vector<std::string>& methods = options_.allowed_methods;
  response.headers.push_back(
      {"Access-Control-Allow-Methods",
       HasAll(methods) ? "GET, POST, OPTIONS" : fmt::format("{}", fmt::join(methods, ", "))});
  // "*" would leave out Authorization: all headers are those that were asked for.
  const std::vector<std::string>& allowed = options_.allowed_headers;
  const std::string headers =
      HasAll(allowed) ? std::string(head.Header("Access-Control-Request-Headers").value_or(""))
                      : fmt::format("{}", fmt::join(allowed, ", "));
  if (!headers.empty()) response.headers.push_back({"Access-Control-Allow-Headers", headers});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

}  // namespace outrider
