// A small blocking HTTP client for tests, with its own parser, so that the server is not checked by
// the library it is made of. Every wait ends after a few seconds by failing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended before a response did
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk framing
  bool chunked = false;
};

class HttpClient {
 public:
  /// Connects to 127.0.0.1:`port`. `receive_buffer` > 0 makes it a reader that takes little.
  explicit HttpClient(uint16_t port, int receive_buffer = 0);
  explicit HttpClient(const std::string& unix_socket_path);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Send(std::string_view bytes);
  /// A body is said to be JSON.
  void SendRequest(std::string_view method, std::string_view path, std::string_view body = "",
                   std::string_view more_headers = "");
  /// Reads one response. `head_only`: it has no body (an answer to HEAD).
  ClientResponse Receive(bool head_only = false);
  /// Reads until `text` was received; false if the connection ends first.
  bool ReceiveUntil(std::string_view text);
  /// Reads on to the next server-sent event of a stream and returns its data; "" when the
  /// connection ends first.
  std::string NextEvent();
  /// True when the server closed the connection and nothing was left to read.
  bool AtEnd();
  void Close();
  /// Says that no more will be sent, as `nc -N` does.
  void ShutdownSend();

  ClientResponse Post(std::string_view path, std::string_view body,
                      std::string_view more_headers = "");
  ClientResponse Get(std::string_view path, std::string_view more_headers = "");

 private:
  bool Fill();
  std::string Line();
  std::string Bytes(size_t count);

  int socket_ = -1;
  std::string input_;
};

/// The data of each server-sent event of a body.
std::vector<std::string> EventsOf(const std::string& body);

}  // namespace outrider
