#include "outrider/http/http_address.h"

#include <algorithm>
#include <utility>

namespace outrider {

std::optional<HttpAddress> ParseHttpAddress(std::string_view url, std::string_view plain_port) {
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kTls = "https://";
  const bool tls = url.starts_with(kTls);
  if (!tls && !url.starts_with(kPlain)) return std::nullopt;
  if (url.find_first_of(" \t\r\n") != std::string_view::npos) return std::nullopt;
  const std::string_view rest = url.substr((tls ? kTls : kPlain).size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string host(rest.substr(0, slash));
  HttpAddress address{.host = {},
                      .port = std::string(tls ? "443" : plain_port),
                      .path = std::string(rest.substr(slash)),
                      .tls = tls};
  const size_t colon = host.rfind(':');
  // A colon inside brackets belongs to an IPv6 address.
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    address.port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool port_is_number = !address.port.empty() && address.port.size() <= 5 &&
                              address.port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !port_is_number) return std::nullopt;
  address.host = std::move(host);
  return address;
}

}  // namespace outrider
