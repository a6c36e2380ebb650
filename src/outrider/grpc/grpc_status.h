// Errors of the API as gRPC spells them.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "outrider/openai/api_error.h"

namespace outrider {

/// The code by HTTP status and name of the error. Fields have the names of the definitions in the
/// message: "stopping.max_new_tokens", not "max_tokens".
::grpc::Status GrpcStatusOf(const openai::ApiError& error);

/// Makes a status of an error's body (openai::ErrorJson) and its HTTP status.
::grpc::Status GrpcStatusOf(int http_status, std::string_view error_json);

/// The bytes of a FrameKind::kError frame, and what they say.
std::string ErrorFrame(const openai::ApiError& error);
::grpc::Status StatusOfErrorFrame(std::string_view bytes);

}  // namespace outrider
