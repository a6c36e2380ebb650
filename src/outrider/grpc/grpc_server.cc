#include "outrider/grpc/grpc_server.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <thread>

#include "outrider/base/error.h"
#include "outrider/base/file.h"
#include "outrider/grpc/control_service.h"
#include "outrider/grpc/grpc_call.h"
#include "outrider/grpc/inference_service.h"

namespace outrider {
namespace {

constexpr uint64_t kMostPemBytes = 1 << 20;
constexpr int kMostMetadataBytes = 16 << 10;
constexpr int kMostStreams = 1024;    // of a connection at a time
constexpr int kKeepaliveMs = 60'000;  // silence before a client is asked whether it is there
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kLeastPingMs = 5'000;                   // between pings of a client that has no call
constexpr std::chrono::milliseconds kStopGrace{200};  // for statuses that are on their way
constexpr std::chrono::milliseconds kPoll{1};

// gRPC's own words go where the server's go.
void LogOfGrpc(gpr_log_func_args* args) {
  const auto level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug;
  spdlog::log(level, "gRPC: {}", args->message);
}

std::shared_ptr<::grpc::ServerCredentials> CredentialsOf(const std::optional<TlsFiles>& tls) {
  if (!tls) return ::grpc::InsecureServerCredentials();
  ::grpc::SslServerCredentialsOptions options(
      tls->ca_certs.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  const std::string& keyfile = tls->keyfile.empty() ? tls->certfile : tls->keyfile;
  options.pem_key_cert_pairs.push_back(
      {ReadTextFile(keyfile, kMostPemBytes), ReadTextFile(tls->certfile, kMostPemBytes)});
  if (!tls->ca_certs.empty()) options.pem_root_certs = ReadTextFile(tls->ca_certs, kMostPemBytes);
  return ::grpc::SslServerCredentials(options);
}

std::string AddressOf(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(const GrpcOptions& options, const ServerParts& parts)
      : calls(parts, options.max_bodies_bytes), inference(calls), control(parts, options.facts) {}

  // "": of the server as a whole.
  void SetHealthy(bool healthy) const {
    ::grpc::HealthCheckServiceInterface* const health = server->GetHealthCheckService();
    health->SetServingStatus(healthy);
    for (const char* name : {"", "vllm.Inference", "vllm.Control"}) {
      health->SetServingStatus(name, healthy);
    }
  }

  GrpcCalls calls;
  InferenceService inference;
  ControlService control;
  std::unique_ptr<::grpc::Server> server;
};

GrpcServer::GrpcServer(const GrpcOptions& options, ServerParts parts)
    : impl_(std::make_unique<Impl>(options, parts)) {
  gpr_set_log_function(LogOfGrpc);
  // It would repeat what clients send.
  google::protobuf::SetLogHandler(nullptr);
  ::grpc::EnableDefaultHealthCheckService(true);
  ::grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  ::grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port that is in use is an error
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingMs);
  int port = 0;
  builder.AddListeningPort(AddressOf(options.host, options.port), CredentialsOf(options.tls),
                           &port);
  builder.RegisterService(&impl_->inference);
  builder.RegisterService(&impl_->control);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || port == 0) {
    throw InvalidArgument("--grpc-port: cannot listen on {}",
                          AddressOf(options.host, options.port));
  }
  impl_->SetHealthy(true);
  address_ = AddressOf(options.host, port);
  port_ = static_cast<uint16_t>(port);
}

GrpcServer::~GrpcServer() { Stop(); }

void GrpcServer::Drain() {
  impl_->calls.draining = true;
  impl_->SetHealthy(false);
}

size_t GrpcServer::CountRequests() const { return impl_->calls.num_admitted; }

void GrpcServer::Cancel() {
  impl_->calls.loop->Post([calls = &impl_->calls] {
    for (GrpcCall* const call : std::vector(calls->admitted.begin(), calls->admitted.end())) {
      call->CancelByServer();
    }
  });
}

void GrpcServer::Stop() {
  if (impl_->server == nullptr) return;
  impl_->calls.draining = true;
  impl_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
  impl_->server->Wait();
  // gRPC is done with them, but they may not know yet.
  while (impl_->calls.num_open > 0) std::this_thread::sleep_for(kPoll);
  impl_->calls.loop->Close();
  impl_->server.reset();
}

}  // namespace outrider
