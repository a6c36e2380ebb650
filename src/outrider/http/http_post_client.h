// Sends JSON to an HTTP/1.1 server and takes its answers as they arrive. All connections of a
// client run on the calling thread. No network library shows here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

struct HttpPost {
  std::string target;  // path and query
  std::string body;    // JSON
  std::string bearer;  // the server's API key; "": none
  bool last = false;   // the connection's last: the server is told to close it
  /// Takes a piece of the answer's body, without chunk framing, possibly empty. `end`: the answer
  /// is complete. Called at least once. What it throws, Run throws.
  std::function<void(int status, std::string_view piece, bool end)> on_answer;
};

class HttpPostClient {
 public:
  struct Server {
    std::string host;  // an address or a name
    std::string port;
    bool tls = false;
  };

  /// With TLS, the server's certificate must be for its host and lead to an authority that this
  /// machine trusts; the environment's SSL_CERT_FILE may name others, as for all of OpenSSL.
  explicit HttpPostClient(Server server);
  ~HttpPostClient();
  HttpPostClient(const HttpPostClient&) = delete;
  HttpPostClient& operator=(const HttpPostClient&) = delete;

  /// Opens `connections` connections. Each sends what `next` gives, one request after the answer to
  /// the other, until that is nothing. True when all have ended. `give_up` is asked every 50 ms;
  /// once it says so all connections are cut, and Run returns false. Throws std::runtime_error when
  /// a server cannot be reached, is not trusted, or breaks an answer off; the others are cut then.
  bool Run(size_t connections, const std::function<std::optional<HttpPost>()>& next,
           const std::function<bool()>& give_up);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
