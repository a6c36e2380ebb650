// An HTTP/1.1 server for one application: listens on a TCP port or a unix socket, runs all
// connections as coroutines on the thread that calls Run, and stops without dropping what runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "outrider/http/cors.h"
#include "outrider/http/http_message.h"

namespace outrider {

/// Sizes in bytes, times in seconds. A client that breaks one is answered where that is possible
/// (431, 413, 408) and disconnected.
struct HttpLimits {
  int64_t max_header_bytes = int64_t{16} << 10;
  int64_t max_body_bytes = int64_t{32} << 20;
  /// Bytes of all bodies together, until the application has read them; more are refused (503).
  /// Bodies of up to free_body_bytes do not count.
  int64_t max_bodies_bytes = int64_t{256} << 20;
  int64_t free_body_bytes = int64_t{64} << 10;
  size_t max_connections = 8192;  // more are answered with 503 and closed
  double header_seconds = 10;     // from the first byte of a request to the end of its head
  double body_seconds = 60;       // from there to the end of its body
  double idle_seconds = 75;       // between the requests of a connection
  double write_seconds = 60;      // for a client that does not read
  double heartbeat_seconds = 15;  // silence in a stream before its heartbeat is sent
};

/// Files in PEM format.
struct TlsFiles {
  std::string certfile;  // the server's certificate and those that lead to its issuer
  std::string keyfile;   // its private key; "": in certfile too
  std::string ca_certs;  // clients must show a certificate of one of these; "": they need none
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name
  uint16_t port = 8000;            // 0: any free port
  CorsOptions cors;                // what web pages of other origins may do: nothing
  std::string uds;                 // a path: listen on this unix socket instead
  std::optional<TlsFiles> tls;     // HTTPS instead of HTTP
  double shutdown_seconds = 25;    // for requests that run when Stop is called
  /// The server is what its process is for: SIGINT, SIGTERM and SIGHUP (unless it is ignored, as by
  /// nohup) call Stop, a second one ends at once, and 2 s after shutdown_seconds the process ends
  /// whatever its threads do.
  bool handle_signals = false;
  HttpLimits limits;
};

class HttpServer {
 public:
  /// Binds and listens. Throws Error (kInvalidArgument) when the address cannot be had
  /// or TLS has no good files.
  /// Raises the process's limit of open files to its hard limit.
  HttpServer(HttpServerOptions options, HttpApplication& application);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Throws Error as the constructor does when the address cannot be had now: for finding that out
  /// before long work. Listens for a moment; nothing is left of it.
  static void CheckAddress(const HttpServerOptions& options);

  /// Serves until stopped. Call once; the calling thread is the I/O thread.
  void Run();

  /// Makes Run return: new requests are refused, running ones finish within `shutdown_seconds` and
  /// are cancelled after that. Thread-safe.
  void Stop();
  /// Makes Run return in a second, not before: so long new requests are refused, and those that run
  /// finish or are cancelled. Thread-safe.
  void StopAfterFailure();

  /// The TCP port that was bound; 0 on a unix socket.
  uint16_t port() const;
  /// "http://127.0.0.1:8000" or "unix:/path".
  std::string address() const;
  /// The bytes that count against max_bodies_bytes now. Thread-safe.
  int64_t body_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
