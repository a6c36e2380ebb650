// The socket on which a server listens, TCP or unix.
#pragma once

#include <sys/types.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <string>

#include "outrider/http/http_server.h"

namespace outrider {

class HttpListener {
 public:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

  /// Listens on options.uds, or else on host and port. A socket that a dead server left at `uds` is
  /// replaced. Throws Error (kInvalidArgument) when the address cannot be had: it is in use, or
  /// something else than a socket is at `uds`, which stays as it is.
  HttpListener(boost::asio::io_context& io, const HttpServerOptions& options);
  /// Removes the unix socket, unless something else has taken its place.
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  Acceptor& acceptor() { return acceptor_; }
  /// The port of TCP; 0 on a unix socket.
  uint16_t port() const { return port_; }
  /// "http://127.0.0.1:8000" or "unix:/path".
  const std::string& address() const { return address_; }

 private:
  void ListenOnUnixSocket(boost::asio::io_context& io);
  void ListenOnTcp(boost::asio::io_context& io, const std::string& host, uint16_t port);

  Acceptor acceptor_;
  uint16_t port_ = 0;
  std::string address_;
  std::string uds_;  // "": TCP
  // The file that was made at uds_.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace outrider
