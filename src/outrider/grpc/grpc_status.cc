#include "outrider/grpc/grpc_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using ::grpc::StatusCode;
using nlohmann::json;

// It travels in a trailer, of which clients take 8 KiB.
constexpr size_t kMostMessageBytes = 2048;

StatusCode CodeOf(const openai::ApiError& error) {
  switch (error.status) {
    case 401:
      return StatusCode::UNAUTHENTICATED;
    case 403:
      return StatusCode::PERMISSION_DENIED;
    case 404:
      return StatusCode::NOT_FOUND;
    case 413:
    case 429:
      return StatusCode::RESOURCE_EXHAUSTED;
    case 503: {
      const bool is_full = error.code == ErrorCodeName(ErrorCode::kOverloaded) ||
                           error.code == openai::TooLittleMemory().code;
      return is_full ? StatusCode::RESOURCE_EXHAUSTED : StatusCode::UNAVAILABLE;
    }
    default:
      return error.status >= 500 ? StatusCode::INTERNAL : StatusCode::INVALID_ARGUMENT;
  }
}

// Names of fields, from those that the parsers know.
constexpr std::array kFieldNames = {
    std::pair{"n", "sampling.num_sequences"},
    std::pair{"top_k", "sampling.top_k"},
    std::pair{"top_p", "sampling.top_p"},
    std::pair{"min_p", "sampling.min_p"},
    std::pair{"presence_penalty", "decoding.presence_penalty"},
    std::pair{"frequency_penalty", "decoding.frequency_penalty"},
    std::pair{"repetition_penalty", "decoding.repetition_penalty"},
    std::pair{"logit_bias", "decoding.logit_bias"},
    std::pair{"allowed_token_ids", "decoding.allowed_token_ids"},
    std::pair{"max_tokens", "stopping.max_new_tokens"},
    std::pair{"min_tokens", "stopping.min_new_tokens"},
    std::pair{"stop_token_ids", "stopping.stop_token_ids"},
    std::pair{"stop", "stopping.stop_strings"},
    std::pair{"logprobs", "response.output_candidates"},
    std::pair{"prompt_logprobs", "response.prompt_candidates"},
    std::pair{"cache_salt", "kv.cache_salt"},
};
constexpr std::string_view kStructured = "structured_outputs.";

std::string FieldName(const std::string& param) {
  const size_t end = std::min(param.find('['), param.size());  // "stop_token_ids[2]"
  for (const auto& [name, grpc_name] : kFieldNames) {
    if (param.compare(0, end, name) == 0) return grpc_name + param.substr(end);
  }
  if (param.starts_with(kStructured)) return "decoding." + param.substr(kStructured.size());
  return param;
}

std::string CutMessage(std::string text) {
  if (text.size() <= kMostMessageBytes) return text;
  size_t end = kMostMessageBytes;
  while ((static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
  text.resize(end);
  return text + "...";
}

}  // namespace

::grpc::Status GrpcStatusOf(const openai::ApiError& error) {
  std::string message = error.message;
  const bool names_field = !error.param.empty() && message.starts_with(error.param + ":");
  if (names_field) message.replace(0, error.param.size(), FieldName(error.param));
  return {CodeOf(error), CutMessage(std::move(message))};
}

::grpc::Status GrpcStatusOf(int http_status, std::string_view error_json) {
  const json error = json::parse(error_json).at("error");
  const auto text = [&](const char* name) {
    return error.at(name).is_string() ? error.at(name).get<std::string>() : std::string();
  };
  return GrpcStatusOf({.status = http_status,
                       .message = text("message"),
                       .param = text("param"),
                       .code = text("code")});
}

std::string ErrorFrame(const openai::ApiError& error) {
  return fmt::format("[{},{}]", error.status, openai::ErrorJson(error));
}

::grpc::Status StatusOfErrorFrame(std::string_view bytes) {
  const json frame = json::parse(bytes);
  return GrpcStatusOf(frame.at(0).get<int>(), frame.at(1).dump());
}

}  // namespace outrider
