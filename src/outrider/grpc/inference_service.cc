#include "outrider/grpc/inference_service.h"

#include <memory>
#include <string>
#include <utility>

#include "outrider/grpc/grpc_writer.h"
#include "outrider/grpc/parse_grpc_request.h"

namespace outrider {
namespace {

template <bool kStream>
openai::TokenRequest Parse(const std::string& body, const openai::RequestLimits& limits) {
  return ParseGrpcRequest(body, kStream, limits);
}

std::unique_ptr<openai::AnswerWriter> WriterOf(PreparedRequest* prepared,
                                               const std::string& /*response_members*/,
                                               const PromptEncoder& encoder) {
  return std::make_unique<GrpcWriter>(std::move(prepared->info), encoder);
}

constexpr AnswerForm kWhole = {"gen-", openai::ErrorForm::kOpenAi, Parse<false>, WriterOf};
constexpr AnswerForm kStreamed = {"gen-", openai::ErrorForm::kOpenAi, Parse<true>, WriterOf};

}  // namespace

::grpc::ServerUnaryReactor* InferenceService::Generate(::grpc::CallbackServerContext* context,
                                                       const ::grpc::ByteBuffer* request,
                                                       ::grpc::ByteBuffer* response) {
  const auto call = std::make_shared<UnaryCall>(calls_, kWhole, response);
  call->Open(context, "/vllm.Inference/Generate", *request);
  return call.get();
}

::grpc::ServerWriteReactor<::grpc::ByteBuffer>* InferenceService::GenerateStream(
    ::grpc::CallbackServerContext* context, const ::grpc::ByteBuffer* request) {
  const auto call = std::make_shared<StreamCall>(calls_, kStreamed);
  call->Open(context, "/vllm.Inference/GenerateStream", *request);
  return call.get();
}

}  // namespace outrider
