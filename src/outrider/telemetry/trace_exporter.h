// Sends spans to an OpenTelemetry collector, on a thread of its own: nobody waits for it. What a
// slow or absent collector does not take is dropped.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "outrider/http/http_address.h"
#include "outrider/http/http_post_client.h"

namespace outrider {

/// A collector's address: without a port 4318, the collectors' own, or 443 with TLS; without a path
/// /v1/traces.
using TracesEndpoint = HttpAddress;

/// Throws Error (kInvalidArgument) for what is no such address; `where` names the option.
TracesEndpoint ParseTracesEndpoint(const std::string& where, const std::string& url);

struct TraceExporterLimits {
  size_t max_waiting = 4096;  // spans that wait to be sent; more are dropped
  size_t max_batch = 512;     // spans in a request
  double batch_seconds = 1;   // a span waits for others this long
  double send_seconds = 5;    // for sending a batch
};

class TraceExporter {
 public:
  /// With TLS, the collector's certificate must be for its host and lead to an authority that this
  /// machine trusts; the environment's SSL_CERT_FILE may name others, as for all of OpenSSL.
  explicit TraceExporter(TracesEndpoint endpoint, const TraceExporterLimits& limits = {});
  /// Sends what waits, if the collector takes it, and ends.
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  /// Takes a span, as SpanJson writes it. Never waits. Thread-safe.
  void Add(std::string span);

  /// Spans that were not sent. Thread-safe.
  int64_t num_dropped() const;

 private:
  void Run();
  void Send(const std::vector<std::string>& spans);

  const TracesEndpoint endpoint_;
  const TraceExporterLimits limits_;
  HttpPostClient client_;  // own thread
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> waiting_;  // these three are guarded by mutex_
  int64_t num_dropped_ = 0;
  bool stopping_ = false;
  bool failing_ = false;  // own thread: the last batch was not taken
  std::thread thread_;
};

}  // namespace outrider
