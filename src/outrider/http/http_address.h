// Where an HTTP server is: http://HOST[:PORT][/PATH] or https://, taken apart.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

struct HttpAddress {
  std::string host;  // an IPv6 address without its brackets
  std::string port;  // unless given: 443 with TLS, else what the caller says
  std::string path;  // from its slash on; "": none
  bool tls = false;
};

/// Nothing where `url` is no such address.
std::optional<HttpAddress> ParseHttpAddress(std::string_view url, std::string_view plain_port);

}  // namespace outrider
