// The bytes of one connection, of a server or of a client: a TCP or unix socket, with TLS around it
// or without.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace outrider {

/// One read and one write may run at a time. All calls come from the I/O thread.
class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Error = boost::system::error_code;

  /// `tls` must outlive the stream; null: no TLS.
  HttpStream(Socket socket, boost::asio::ssl::context* tls);

  auto get_executor() { return socket_.get_executor(); }

  /// The other side's address; of IPv6 the network (64 bits), which is one client's. "" on a unix
  /// socket.
  std::string PeerAddress() const;

  /// Before anything else: TLS's handshake. False when the client does not speak TLS as it should;
  /// one that speaks plain HTTP is told so. Close ends the wait.
  boost::asio::awaitable<bool> Open();
  /// Makes the client's side of a connection. Throws std::runtime_error when the
  /// server's certificate is not one for `host` that `tls` trusts.
  boost::asio::awaitable<void> OpenAsClient(std::string host);

  boost::asio::awaitable<size_t> ReadSome(boost::asio::mutable_buffer buffer, Error& error);
  boost::asio::awaitable<void> Write(boost::asio::const_buffer bytes, Error& error);

  /// Tells the client that no more comes; reading goes on. `owner` keeps the stream until then.
  void EndWriting(std::shared_ptr<void> owner, Error& error);

  void Close();

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace outrider
