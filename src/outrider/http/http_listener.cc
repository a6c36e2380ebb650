#include "outrider/http/http_listener.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/system/system_error.hpp>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Unix = asio::local::stream_protocol;
using Protocol = asio::generic::stream_protocol;

void Listen(HttpListener::Acceptor& acceptor, const Protocol::endpoint& endpoint, bool reuse,
            error_code& error) {
  if (!acceptor.open(endpoint.protocol(), error)) {
    if (reuse) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    error_code ignored;
    acceptor.close(ignored);
  }
}

// Removes a socket that nobody answers on; refuses to touch anything else.
void ClearPath(asio::io_context& io, const Unix::endpoint& endpoint, const std::string& path) {
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) return;
  if (!S_ISSOCK(found.st_mode)) {
    throw InvalidArgument("--uds: {} exists and is no socket; choose another path or remove it",
                          path);
  }
  error_code error;
  Unix::socket probe(io);
  probe.connect(endpoint, error);
  if (!error) {
    throw InvalidArgument(
        "unix socket {} is in use; stop what listens there or choose another --uds", path);
  }
  if (error == asio::error::connection_refused) unlink(path.c_str());
}

}  // namespace

HttpListener::HttpListener(asio::io_context& io, const HttpServerOptions& options)
    : acceptor_(io), uds_(options.uds) {
  if (!uds_.empty()) {
    ListenOnUnixSocket(io);
    return;
  }
  ListenOnTcp(io, options.host, options.port);
  const bool ipv6 = options.host.find(':') != std::string::npos;
  const std::string host = ipv6 ? fmt::format("[{}]", options.host) : options.host;
  address_ = fmt::format("{}://{}:{}", options.tls ? "https" : "http", host, port_);
}

HttpListener::~HttpListener() {
  struct stat found{};
  const bool own = !uds_.empty() && lstat(uds_.c_str(), &found) == 0 && found.st_dev == device_ &&
                   found.st_ino == inode_;
  if (own) unlink(uds_.c_str());
}

void HttpListener::ListenOnTcp(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error) {
    throw InvalidArgument("host \"{}\" is not an address of this machine: {}", host,
                          error.message());
  }
  for (const auto& entry : found) {
    Listen(acceptor_, entry.endpoint(), true, error);
    if (error) continue;
    tcp::endpoint bound;
    const auto local = acceptor_.local_endpoint();
    bound.resize(local.size());
    std::memcpy(bound.data(), local.data(), local.size());
    port_ = bound.port();
    return;
  }
  if (error == asio::error::address_in_use) {
    throw InvalidArgument(
        "port {} on {} is in use; stop what listens there or choose another --port", port, host);
  }
  throw InvalidArgument("cannot listen on {} port {}: {}", host, port, error.message());
}

void HttpListener::ListenOnUnixSocket(asio::io_context& io) {
  Unix::endpoint endpoint;
  try {
    endpoint = Unix::endpoint(uds_);
  } catch (const boost::system::system_error&) {
    throw InvalidArgument("unix socket path \"{}\" is too long ({} bytes)", uds_, uds_.size());
  }
  ClearPath(io, endpoint, uds_);
  error_code error;
  Listen(acceptor_, endpoint, false, error);
  if (error) throw InvalidArgument("cannot listen on unix socket {}: {}", uds_, error.message());
  address_ = "unix:" + uds_;
  struct stat made{};
  if (lstat(uds_.c_str(), &made) == 0) {
    device_ = made.st_dev;
    inode_ = made.st_ino;
  }
}

}  // namespace outrider
