// From a request as the API's parsers give it to what the engine gets: templates, tokenizer, marks
// of reasoning and tool calls, and the limits that depend on the prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/grammar/compiled_grammar.h"
#include "outrider/openai/choices_writer.h"
#include "outrider/openai/request.h"
#include "outrider/output/output_format.h"
#include "outrider/output/output_parser.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider {

struct PreparedRequest {
  std::vector<GenerationRequest> requests;  // one per choice
  openai::AnswerInfo info;                  // with the prompts
  OutputTask task;                          // what to tell apart in the answer to a conversation
};

/// Thread-safe. All of it throws Error for what the request is to blame for.
class RequestPreparer {
 public:
  /// `encoder` must outlive this.
  RequestPreparer(const PromptEncoder& encoder, const OutputFormat& format, int32_t max_model_len)
      : encoder_(encoder), format_(format), max_model_len_(max_model_len) {}

  /// Refuses tools that the model would not see or whose calls nobody would recognise; sets the
  /// grammar of a call that must come, or that has to be right. `can_constrain`: there are
  /// grammars; without a tokenizer, which they need, the model writes no calls.
  void SettleTools(openai::TokenRequest* request, bool can_constrain) const;

  /// `info` has the answer's id, model and time. `grammar` is request.grammar, compiled.
  PreparedRequest Prepare(openai::TokenRequest request, openai::AnswerInfo info,
                          const std::shared_ptr<const CompiledGrammar>& grammar) const;

  /// What would run for a request, without running it: its prompts as token ids.
  std::vector<std::vector<int32_t>> Prompts(openai::TokenRequest* request) const;

  /// The text of tokens, special ones included unless `skip_special`.
  std::string TextOf(std::span<const int32_t> token_ids, bool skip_special = false) const;

  const PromptEncoder& encoder() const { return encoder_; }

 private:
  void SetCallGrammar(openai::TokenRequest* request, bool can_constrain) const;
  std::vector<int32_t> MarkTokens(const OutputTask& task) const;
  GrammarConstraint ConstraintOf(const OutputTask& task,
                                 const std::shared_ptr<const CompiledGrammar>& grammar) const;
  OutputTask TaskOf(const openai::TokenRequest& request, std::string_view prompt) const;
  size_t MostBytes(const openai::TokenRequest& request) const;
  [[noreturn]] void RefuseTooLong(const char* field, size_t bytes) const;
  EncodedChat EncodeChat(openai::TokenRequest* request) const;
  OutputTask EncodePrompts(openai::TokenRequest* request, openai::AnswerInfo* info) const;
  openai::EchoedPrompt EchoTokens(std::span<const int32_t> token_ids, bool skip_special) const;
  openai::EchoedPrompt EchoText(const std::string& text, std::span<const int32_t> token_ids) const;

  const PromptEncoder& encoder_;
  const OutputFormat format_;
  const int32_t max_model_len_;
};

}  // namespace outrider
