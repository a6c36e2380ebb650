#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <stdexcept>

namespace outrider {
namespace {

void SetTimeouts(int socket) {
  const timeval limit{.tv_sec = 120, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

}  // namespace

HttpClient::HttpClient(uint16_t port, int receive_buffer)
    : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  SetTimeouts(socket_);
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(fmt::format("connect: {}", std::strerror(errno)));
  }
}

HttpClient::HttpClient(const std::string& unix_socket_path)
    : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
  SetTimeouts(socket_);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  unix_socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(fmt::format("connect: {}", std::strerror(errno)));
  }
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void HttpClient::ShutdownSend() { shutdown(socket_, SHUT_WR); }

void HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server closed: what it said is still to be read
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void HttpClient::SendRequest(std::string_view method, std::string_view path, std::string_view body,
                             std::string_view more_headers) {
  std::string about_body = method == "POST" ? "Content-Type: application/json\r\n" : "";
  if (!body.empty()) about_body += fmt::format("Content-Length: {}\r\n", body.size());
  Send(fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}{}\r\n{}", method, path, about_body,
                   more_headers, body));
}

bool HttpClient::Fill() {
  std::array<char, 16384> buffer;
  ssize_t size = 0;
  do {  // a process that was stopped and goes on is interrupted here
    size = recv(socket_, buffer.data(), buffer.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    throw std::runtime_error("the server sent nothing for 120 s");
  }
  if (size <= 0) return false;
  input_.append(buffer.data(), static_cast<size_t>(size));
  return true;
}

std::string HttpClient::Line() {
  size_t end = 0;
  while ((end = input_.find("\r\n")) == std::string::npos) {
    if (!Fill()) throw std::runtime_error("the connection ended inside a line");
  }
  std::string line = input_.substr(0, end);
  input_.erase(0, end + 2);
  return line;
}

std::string HttpClient::Bytes(size_t count) {
  while (input_.size() < count) {
    if (!Fill()) throw std::runtime_error("the connection ended inside a body");
  }
  std::string bytes = input_.substr(0, count);
  input_.erase(0, count);
  return bytes;
}

ClientResponse HttpClient::Receive(bool head_only) {
  ClientResponse response;
  if (input_.empty() && !Fill()) return response;
  const std::string status = Line();
  response.status = std::stoi(status.substr(status.find(' ')));
  for (std::string line = Line(); !line.empty(); line = Line()) {
    const size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers[name] = line.substr(colon + 2);
  }
  response.chunked = response.headers["transfer-encoding"] == "chunked";
  if (head_only || response.status == 100 || response.status == 204) return response;
  if (response.chunked) {
    for (size_t size = std::stoul(Line(), nullptr, 16); size > 0;
         size = std::stoul(Line(), nullptr, 16)) {
      response.body += Bytes(size);
      Line();
    }
    Line();
  } else if (response.headers.contains("content-length")) {
    response.body = Bytes(std::stoul(response.headers["content-length"]));
  } else {
    while (Fill()) {
    }
    response.body = std::move(input_);
    input_.clear();
  }
  return response;
}

bool HttpClient::ReceiveUntil(std::string_view text) {
  while (input_.find(text) == std::string::npos) {
    if (!Fill()) return false;
  }
  return true;
}

std::string HttpClient::NextEvent() {
  constexpr std::string_view kStart = "data: ";
  if (!ReceiveUntil(kStart)) return "";
  input_.erase(0, input_.find(kStart) + kStart.size());
  if (!ReceiveUntil("\n\n")) return "";
  const size_t end = input_.find("\n\n");
  std::string data = input_.substr(0, end);
  input_.erase(0, end + 2);
  return data;
}

bool HttpClient::AtEnd() { return input_.empty() && !Fill(); }

ClientResponse HttpClient::Post(std::string_view path, std::string_view body,
                                std::string_view more_headers) {
  SendRequest("POST", path, body, more_headers);
  return Receive();
}

ClientResponse HttpClient::Get(std::string_view path, std::string_view more_headers) {
  SendRequest("GET", path, "", more_headers);
  return Receive();
}

std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  size_t begin = 0;
  for (size_t end = body.find("\n\n"); end != std::string::npos; end = body.find("\n\n", begin)) {
    const std::string event = body.substr(begin, end - begin);
    // The data may follow the event's name.
    const size_t data = event.starts_with("data: ") ? 0 : event.find("\ndata: ") + 1;
    if (event.starts_with("data: ") || data > 0) events.push_back(event.substr(data + 6));
    begin = end + 2;
  }
  return events;
}

}  // namespace outrider
