// vllm.Control: what a router asks about a server, and ends of requests.
#pragma once

#include <string>

#include "control.grpc.pb.h"
#include "outrider/grpc/grpc_server.h"
#include "outrider/server/server_companion.h"

namespace outrider {

/// Each call needs a key where there are keys.
class ControlService final : public vllm::Control::CallbackService {
 public:
  ControlService(ServerParts parts, GrpcFacts facts);

  using Context = ::grpc::CallbackServerContext;
  using Reactor = ::grpc::ServerUnaryReactor;
  Reactor* GetServerInfo(Context* context, const vllm::GetServerInfoRequest* request,
                         vllm::ServerInfo* info) override;
  Reactor* GetModelInfo(Context* context, const vllm::GetModelInfoRequest* request,
                        vllm::ModelInfo* info) override;
  /// Ids of requests that have ended, or of others' keys, are ignored.
  Reactor* Abort(Context* context, const vllm::AbortRequest* request,
                 vllm::AbortResponse* response) override;
  Reactor* GetKvEventSources(Context* context, const vllm::GetKvEventSourcesRequest* request,
                             vllm::GetKvEventSourcesResponse* response) override;
  Reactor* IsPaused(Context* context, const vllm::IsPausedRequest* request,
                    vllm::IsPausedResponse* response) override;
  Reactor* IsSleeping(Context* context, const vllm::IsSleepingRequest* request,
                      vllm::IsSleepingResponse* response) override;
  Reactor* GetWeightVersion(Context* context, const vllm::GetWeightVersionRequest* request,
                            vllm::GetWeightVersionResponse* response) override;

 private:
  const ServerParts parts_;
  const GrpcFacts facts_;
  const std::string instance_id_;
};

}  // namespace outrider
