// What requests for tokens have in common, whatever their endpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/request.h"

namespace outrider::openai {

// The Parse functions throw RequestError.

/// Everything that the endpoints share. The sampling fields are in `sampling`, which has the text
/// `raw`: the body itself, or an object in it.
void ParseShared(FieldReader& body, FieldReader& sampling, std::string_view raw,
                 const RequestLimits& limits, TokenRequest* request);

/// Whether an id that a client gave can stand in a header and a log line.
bool IsUsableRequestId(std::string_view id);

/// Fields of SGLang's that routers add to every completion and chat with their defaults, which ask
/// for nothing.
void ParseWhatRoutersAdd(FieldReader& fields, TokenRequest* request);

/// A number of tokens.
std::optional<int32_t> ParseTokenCount(FieldReader& fields, const char* name, int64_t min);

/// `return_routed_experts` and from which token on, under vLLM's name, in `sampling`, or SGLang's.
/// Where the server tells experts, requests that do not say get them `by_default`.
void ParseExperts(FieldReader& body, FieldReader& sampling, const RequestLimits& limits,
                  bool by_default, TokenRequest* request);

/// `generated_from`: how many of the token ids of the only prompt are the prompt. The others are an
/// answer that was generated elsewhere and is scored here. Call it after max_tokens and the shared
/// fields are parsed.
void ParseGeneratedFrom(FieldReader& body, TokenRequest* request);

/// `logprobs` as a number of alternatives beside each token.
void ParseTokenLogprobs(FieldReader& fields, const RequestLimits& limits, TokenRequest* request);

}  // namespace outrider::openai
