#include "outrider/http/http_stream.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace outrider {
namespace {

namespace asio = boost::asio;

constexpr std::string_view kPlainHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    "\r\n"
    R"({"error":{"message":"this server speaks HTTPS: use https:// in its address",)"
    R"("type":"invalid_request_error","param":null,"code":null}})";

}  // namespace

HttpStream::HttpStream(Socket socket, asio::ssl::context* tls) : socket_(std::move(socket)) {
  if (tls != nullptr) tls_.emplace(socket_, *tls);
}

std::string HttpStream::PeerAddress() const {
  Error error;
  const auto peer = socket_.remote_endpoint(error);
  if (error || (peer.protocol().family() != AF_INET && peer.protocol().family() != AF_INET6)) {
    return "";
  }
  asio::ip::tcp::endpoint endpoint;
  endpoint.resize(peer.size());
  std::memcpy(endpoint.data(), peer.data(), peer.size());
  const asio::ip::address address = endpoint.address();
  if (address.is_v4()) return address.to_string();
  if (address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  asio::ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  return asio::ip::address_v6(bytes).to_string();
}

asio::awaitable<bool> HttpStream::Open() {
  if (!tls_) co_return true;
  Error error;
  co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                 asio::redirect_error(asio::use_awaitable, error));
  if (!error) co_return true;
  const bool plain_http =
      error.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<uint64_t>(error.value())) == SSL_R_HTTP_REQUEST;
  if (plain_http) {
    co_await asio::async_write(socket_, asio::buffer(kPlainHttpAnswer),
                               asio::redirect_error(asio::use_awaitable, error));
  }
  co_return false;
}

asio::awaitable<void> HttpStream::OpenAsClient(std::string host) {
  if (!tls_) co_return;
  Error error;
  tls_->set_verify_mode(asio::ssl::verify_peer);
  tls_->set_verify_callback(asio::ssl::host_name_verification(host));
  asio::ip::make_address(host, error);
  // Servers of several names choose their certificate by this one. Addresses are no names.
  if (error) SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
  co_await tls_->async_handshake(asio::ssl::stream_base::client,
                                 asio::redirect_error(asio::use_awaitable, error));
  if (error) throw std::runtime_error(error.message());
}

asio::awaitable<size_t> HttpStream::ReadSome(asio::mutable_buffer buffer, Error& error) {
  auto token = asio::redirect_error(asio::use_awaitable, error);
  if (tls_) co_return co_await tls_->async_read_some(buffer, token);
  co_return co_await socket_.async_read_some(buffer, token);
}

asio::awaitable<void> HttpStream::Write(asio::const_buffer bytes, Error& error) {
  auto token = asio::redirect_error(asio::use_awaitable, error);
  if (tls_) {
    co_await asio::async_write(*tls_, bytes, token);
  } else {
    co_await asio::async_write(socket_, bytes, token);
  }
}

void HttpStream::EndWriting(std::shared_ptr<void> owner, Error& error) {
  if (!tls_) {
    socket_.shutdown(Socket::shutdown_send, error);
    return;
  }
  // Sends TLS's own end at once; the client's comes to the read that runs, or never.
  tls_->async_shutdown([owner = std::move(owner)](Error) {});
}

void HttpStream::Close() {
  Error ignored;
  socket_.close(ignored);
}

}  // namespace outrider
