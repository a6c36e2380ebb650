#include "outrider/server/allowed_hosts.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace outrider {

namespace {

/// The name in "name:port", "[::1]:port": without brackets, a final dot and the port.
std::string_view NameOf(std::string_view field) {
  if (field.starts_with('[')) return field.substr(1, field.find(']') - 1);
  std::string_view name = field.substr(0, field.find(':'));
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

/// Four numbers with dots between them, the first of them 127.
bool IsLoopbackAddress(std::string_view host) {
  const bool digits =
      std::ranges::all_of(host, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
  return digits && host.starts_with("127.") && std::ranges::count(host, '.') == 3;
}

}  // namespace

bool IsLoopbackHost(std::string_view host) {
  constexpr std::string_view kLocal = ".localhost";
  const bool below = host.size() > kLocal.size() &&
                     EqualIgnoringCase(host.substr(host.size() - kLocal.size()), kLocal);
  return EqualIgnoringCase(host, "localhost") || below || host == "::1" || IsLoopbackAddress(host);
}

AllowedHosts::AllowedHosts(std::vector<std::string> named, bool restricted)
    : named_(std::move(named)),
      any_(named_.empty() ? !restricted : std::ranges::find(named_, "*") != named_.end()) {}

bool AllowedHosts::Allows(const HttpRequest& head) const {
  const auto field = head.Header("Host");
  if (any_ || !field) return true;
  const std::string_view name = NameOf(*field);
  return IsLoopbackHost(name) || std::ranges::any_of(named_, [&](const std::string& allowed) {
           return EqualIgnoringCase(name, allowed);
         });
}

}  // namespace outrider
