// vLLM's gRPC services in front of the engine that an HTTP server serves: vllm.Inference and
// vllm.Control, with gRPC's health checks and reflection. No gRPC library shows here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "outrider/http/http_server.h"
#include "outrider/server/server_companion.h"
#include "outrider/telemetry/kv_event_publisher.h"

namespace outrider {

/// What routers are told, besides what the engine knows.
struct GrpcFacts {
  int32_t tensor_parallel_size = 1;
  bool has_tokenizer = true;
  std::optional<KvEventsConfig> kv_events;  // where they are published
};

struct GrpcOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  std::optional<TlsFiles> tls;
  int64_t max_message_bytes = int64_t{32} << 20;  // of a request; more are refused
  /// Bytes of all requests together, until they have been read.
  int64_t max_bodies_bytes = int64_t{256} << 20;
  GrpcFacts facts;
};

class GrpcServer : public ServerCompanion {
 public:
  /// Listens from then on. Throws Error (kInvalidArgument) when the address cannot be had. What
  /// `parts` refers to must outlive the server.
  GrpcServer(const GrpcOptions& options, ServerParts parts);
  /// Ends what runs.
  ~GrpcServer() override;
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  void Drain() override;
  size_t CountRequests() const override;
  void Cancel() override;
  void Stop() override;

  /// "127.0.0.1:50051".
  const std::string& address() const { return address_; }
  uint16_t port() const { return port_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string address_;
  uint16_t port_ = 0;
};

}  // namespace outrider
