// What the HTTP layer and the application behind it say to each other: requests, responses, and the
// producer that answers one request piece by piece. No network library shows here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // of the target, without the query, percent escapes decoded
  std::string query;   // what follows '?', may be empty
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  // the client's address, without a port; "" on a unix socket
  /// To be kept as long as the body: its share of the server's memory for bodies.
  std::shared_ptr<void> body_share;

  /// The value of the first header of this name (case is ignored); nothing when there is none.
  std::optional<std::string_view> Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;  // besides Content-Type, Content-Length, Connection, Date
  std::string body;
};

/// Compares ASCII letters: names of fields and much of what they hold have no case.
bool EqualIgnoringCase(std::string_view a, std::string_view b);

/// One step of an answer. A producer sets `head` once, before or with the first bytes of `body`.
struct HttpOutput {
  std::optional<HttpResponse> head;  // its `body` is left empty
  std::string body;                  // bytes to append to the response's body
  bool end = false;                  // the answer is complete

  /// With `head`, for streams: sent when nothing else was for a while, to keep connections open.
  std::string heartbeat;
  /// With `head`, for streams that go by the clock: Produce is called again, without a Wake, when
  /// nothing was sent for this many seconds. 0: never.
  double produce_every = 0;
};

/// Answers one request. All calls come from a thread that serves others, too (the I/O thread, or
/// gRPC's loop), one at a time: none may block.
class HttpProducer {
 public:
  virtual ~HttpProducer() = default;

  /// Adds what can be sent now, possibly nothing. Called first after the request was handed over
  /// and again after each Wake, when the connection can take more.
  virtual void Produce(HttpOutput* output) = 0;

  /// The client is gone: free what the request holds. Produce is not called any more.
  virtual void Abandon() = 0;

  /// The server stops and has waited long enough: the next Produce ends the answer with an error.
  virtual void Cancel() = 0;
};

/// Tells the I/O thread, from any thread, that a producer has something to send.
class HttpWaker {
 public:
  /// `wake` may be called by any thread, at any time, also once nobody waits any more. It must not
  /// block.
  explicit HttpWaker(std::function<void()> wake) : wake_(std::move(wake)) {}
  void Wake() const { wake_(); }

 private:
  std::function<void()> wake_;
};

/// The application behind a server. All calls come from the I/O thread.
class HttpApplication {
 public:
  virtual ~HttpApplication() = default;

  /// Sees a request's head before its body is read. A response refuses the request.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& head) = 0;

  /// Starts answering. The body of an answer to HEAD is dropped by the HTTP layer.
  virtual std::shared_ptr<HttpProducer> Handle(HttpRequest request, HttpWaker waker) = 0;

  /// A response that the HTTP layer makes itself (400, 408, 413, 415, 417, 431, 501, 503). `head`
  /// is what is known of the request: possibly nothing.
  virtual HttpResponse RefusalOf(const HttpRequest& head, int status,
                                 const std::string& message) = 0;

  /// The server stops: from now on refuse what is new.
  virtual void OnDrain() = 0;

  /// How many requests, that came by other ways, must end before the server stops. Asked from
  /// OnDrain on, a few times a second.
  virtual size_t CountOthers() const { return 0; }

  /// The server has waited long enough for the others: cancel them.
  virtual void CancelOthers() {}
};

/// A producer for an answer that is known at once.
std::shared_ptr<HttpProducer> MakeReadyProducer(HttpResponse response);

}  // namespace outrider
