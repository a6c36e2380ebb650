// vllm.Inference: tokens for a prompt, at once or as a stream.
#pragma once

#include "inference.grpc.pb.h"
#include "outrider/grpc/grpc_call.h"

namespace outrider {

/// Messages stay serialized up to the threads that parse and write them.
class InferenceService final
    : public vllm::Inference::WithRawCallbackMethod_Generate<
          vllm::Inference::WithRawCallbackMethod_GenerateStream<vllm::Inference::Service>> {
 public:
  /// `calls` must outlive the service.
  explicit InferenceService(GrpcCalls& calls) : calls_(calls) {}

  ::grpc::ServerUnaryReactor* Generate(::grpc::CallbackServerContext* context,
                                       const ::grpc::ByteBuffer* request,
                                       ::grpc::ByteBuffer* response) override;
  ::grpc::ServerWriteReactor<::grpc::ByteBuffer>* GenerateStream(
      ::grpc::CallbackServerContext* context, const ::grpc::ByteBuffer* request) override;

 private:
  GrpcCalls& calls_;
};

}  // namespace outrider
