// To which host a request must be addressed. A web page elsewhere can make its own name resolve to
// this machine (DNS rebinding), and browsers then take the server for the page's own: the name in
// the Host field gives that away.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "outrider/http/http_message.h"

namespace outrider {

/// "localhost", names that end with ".localhost", 127.0.0.0/8 and ::1.
bool IsLoopbackHost(std::string_view host);

class AllowedHosts {
 public:
  /// `named`: hosts that may be named besides those of the loopback interface; "*" for all.
  /// Without any, requests may name what they like unless `restricted`.
  AllowedHosts(std::vector<std::string> named, bool restricted);

  /// Whether the request's Host field, if it has one, names a host of these, with any port.
  bool Allows(const HttpRequest& head) const;

 private:
  std::vector<std::string> named_;
  bool any_;
};

}  // namespace outrider
