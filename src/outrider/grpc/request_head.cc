#include "outrider/grpc/request_head.h"

#include <algorithm>
#include <string_view>

namespace outrider {
namespace {

// Without the port, of "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000".
std::string AddressOf(std::string_view peer) {
  peer.remove_prefix(std::min(peer.find(':') + 1, peer.size()));
  return std::string(peer.substr(0, peer.rfind(':')));
}

}  // namespace

HttpRequest HeadOf(const ::grpc::CallbackServerContext& context, const char* path) {
  HttpRequest head;
  head.method = "POST";
  head.path = path;
  head.peer = AddressOf(context.peer());
  for (const auto& [name, value] : context.client_metadata()) {
    head.headers.push_back({{name.data(), name.size()}, {value.data(), value.size()}});
  }
  return head;
}

}  // namespace outrider
