// The bodies of the endpoints about tokens and requests: /tokenize, /detokenize, /abort.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "outrider/openai/request.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

struct TokenizeRequest {
  std::string model;                             // "": the client did not say
  std::variant<std::string, ChatPrompt> prompt;  // a text or a conversation
  bool add_special_tokens = true;                // to a text
  bool return_token_strings = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> token_ids;
};

// All throw RequestError.
TokenizeRequest ParseTokenizeRequest(std::string_view body);
DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits);
/// The ids of the requests to abort, at least one.
std::vector<std::string> ParseAbortRequest(std::string_view body);

}  // namespace outrider::openai
