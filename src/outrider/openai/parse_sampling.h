// The sampling fields of a request body.
#pragma once

#include <cstdint>
#include <optional>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/request.h"

namespace outrider::openai {

/// Reads every sampling field that both endpoints have (logprobs and token limits are theirs) into
/// request.sampling, and n and bad_words, which are resolved later. Throws RequestError.
void ParseSampling(FieldReader& body, const RequestLimits& limits, TokenRequest* request);

/// Reads stop strings from the field `name`, in addition to those that there are. Throws
/// RequestError.
void ParseStop(FieldReader& body, const char* name, SamplingParams* sampling);

/// A seed in the field `name`. Throws RequestError.
std::optional<uint64_t> ParseSeed(FieldReader& body, const char* name);

}  // namespace outrider::openai
