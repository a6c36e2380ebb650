// What tells one kind of request for tokens from another: how its body is read, how its answer is
// written, how errors are spelled.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outrider/generate/request_preparer.h"
#include "outrider/openai/answer_writer.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/request.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider {

/// Lives as long as the program.
struct AnswerForm {
  const char* id_prefix;  // of the answer's id, like "chatcmpl-"
  openai::ErrorForm error_form;
  /// Throws RequestError.
  openai::TokenRequest (*parse)(const std::string& body, const openai::RequestLimits& limits);
  /// Takes info and task of `prepared`. `response_members` are TokenRequest::response_members;
  /// `encoder` must outlive the writer.
  std::unique_ptr<openai::AnswerWriter> (*make_writer)(PreparedRequest* prepared,
                                                       const std::string& response_members,
                                                       const PromptEncoder& encoder);
};

/// Which HTTP endpoint is asked for tokens.
enum class AnswerKind : uint8_t { kCompletion, kChat, kResponse, kMessage, kTokens, kInference };

const AnswerForm& AnswerFormOf(AnswerKind kind);

}  // namespace outrider
