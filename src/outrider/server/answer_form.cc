#include "outrider/server/answer_form.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/openai/chat_writer.h"
#include "outrider/openai/completion_writer.h"
#include "outrider/openai/message_writer.h"
#include "outrider/openai/response_writer.h"
#include "outrider/openai/sglang_writer.h"
#include "outrider/openai/token_writer.h"

namespace outrider {
namespace {

using openai::AnswerWriter;
using openai::ErrorForm;
using openai::RequestLimits;
using openai::TokenForm;
using openai::TokenRequest;
using WriterPtr = std::unique_ptr<AnswerWriter>;

template <TokenRequest (*kParse)(std::string_view, const RequestLimits&)>
TokenRequest Parse(const std::string& body, const RequestLimits& limits) {
  return kParse(body, limits);
}

TokenRequest ParseMessage(const std::string& body, const RequestLimits& limits) {
  return openai::ParseMessageRequest(body, limits);
}

template <TokenForm kForm>
TokenRequest ParseTokens(const std::string& body, const RequestLimits& limits) {
  return openai::ParseGenerateRequest(body, limits, kForm);
}

WriterPtr CompletionWriterOf(PreparedRequest* prepared, const std::string& /*response_members*/,
                             const PromptEncoder& encoder) {
  return std::make_unique<openai::CompletionWriter>(std::move(prepared->info), encoder);
}

template <typename Writer>
WriterPtr ConversationWriterOf(PreparedRequest* prepared, const std::string& /*response_members*/,
                               const PromptEncoder& encoder) {
  return std::make_unique<Writer>(std::move(prepared->info), std::move(prepared->task), encoder);
}

WriterPtr ResponseWriterOf(PreparedRequest* prepared, const std::string& response_members,
                           const PromptEncoder& encoder) {
  return std::make_unique<openai::ResponseWriter>(
      std::move(prepared->info), std::move(prepared->task), response_members, encoder);
}

WriterPtr TokenWriterOf(PreparedRequest* prepared, const std::string& /*response_members*/,
                        const PromptEncoder& encoder) {
  if (prepared->info.options.token_form == TokenForm::kSglang) {
    return std::make_unique<openai::SglangWriter>(std::move(prepared->info), encoder);
  }
  return std::make_unique<openai::TokenWriter>(std::move(prepared->info), encoder);
}

}  // namespace

const AnswerForm& AnswerFormOf(AnswerKind kind) {
  static constexpr AnswerForm kCompletion = {
      "cmpl-", ErrorForm::kOpenAi, Parse<openai::ParseCompletionRequest>, CompletionWriterOf};
  static constexpr AnswerForm kChat = {"chatcmpl-", ErrorForm::kOpenAi,
                                       Parse<openai::ParseChatRequest>,
                                       ConversationWriterOf<openai::ChatWriter>};
  static constexpr AnswerForm kResponse = {"resp_", ErrorForm::kOpenAi,
                                           Parse<openai::ParseResponseRequest>, ResponseWriterOf};
  static constexpr AnswerForm kMessage = {"msg_", ErrorForm::kAnthropic, ParseMessage,
                                          ConversationWriterOf<openai::MessageWriter>};
  static constexpr AnswerForm kTokens = {"gen-", ErrorForm::kOpenAi,
                                         ParseTokens<TokenForm::kOutrider>, TokenWriterOf};
  static constexpr AnswerForm kInference = {"gen-", ErrorForm::kOpenAi,
                                            ParseTokens<TokenForm::kVllm>, TokenWriterOf};
  switch (kind) {
    case AnswerKind::kCompletion:
      return kCompletion;
    case AnswerKind::kChat:
      return kChat;
    case AnswerKind::kResponse:
      return kResponse;
    case AnswerKind::kMessage:
      return kMessage;
    case AnswerKind::kTokens:
      return kTokens;
    case AnswerKind::kInference:
      return kInference;
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
