// A validated request for tokens, from either OpenAI endpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "outrider/grammar/grammar_spec.h"
#include "outrider/output/value_types.h"
#include "outrider/sampling/sampling_params.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// Values for sampling fields that a request leaves out: those of the model's
/// generation_config.json. What is unset here too has OpenAI's default (temperature 1, top_p 1, all
/// tokens).
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int32_t> top_k;
  std::optional<float> repetition_penalty;
};

/// What an answer tells about its own speculation: nothing, sums, or every step's drafts as well.
enum class SpeculationMetrics { kOff, kSummary, kDetailed };

/// What the parser must know of the model and the server.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t max_logprobs = 20;
  int32_t num_speculative_tokens = 0;  // the engine's k
  /// For requests that do not say.
  SpeculationMetrics speculation_metrics = SpeculationMetrics::kOff;
  SamplingDefaults defaults;
  bool tells_experts = false;          // requests may ask for the experts of their tokens
  bool ignore_unknown_fields = false;  // with a warning; else they are refused
};

/// Whose shape an answer of token ids has: this server's, vLLM's or SGLang's.
enum class TokenForm : uint8_t { kOutrider, kVllm, kSglang };

/// Names of tools whose argument is one text (responses).
using CustomTools = std::set<std::string, std::less<>>;

/// What the answer is to hold.
struct AnswerOptions {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage in every chunk
  bool return_token_ids = false;
  SpeculationMetrics speculation_metrics = SpeculationMetrics::kOff;
  bool skip_special_tokens = true;                 // from the text
  bool echo = false;                               // completions: the prompt comes before the text
  std::string echoed_message = {};                 // chat: comes before the content
  bool echo_only = false;                          // the prompt is the whole answer (max_tokens 0)
  std::optional<int32_t> logprobs = std::nullopt;  // alternatives to list beside each token
  std::optional<int32_t> prompt_logprobs = std::nullopt;  // beside each token of the prompt
  TokenForm token_form = TokenForm::kOutrider;
  bool sglangs_experts = false;   // experts in SGLang's form beside vLLM's
  CustomTools custom_tools = {};  // whose argument "input" is told as their whole input
  // SGLang's.
  bool is_batch = false;                                // prompts came as a list: so do answers
  bool text_in_logprobs = false;                        // tokens with their text
  std::optional<int32_t> logprobs_from = std::nullopt;  // first token of the prompt to tell of
  // For gRPC.
  bool text = true;               // tell it
  bool prompt_token_ids = false;  // tell them
};

/// Whether the model may, must or must not call tools.
enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

/// The tools of a chat request; ChatPrompt::tools_json has them as the client spelled them.
struct ToolUse {
  std::vector<std::string> functions;  // their names
  ToolChoice choice = ToolChoice::kNone;
  std::string named;     // kNamed: the function to call
  bool parallel = true;  // the answer may have several calls
  /// Those that may be called; unset: all.
  std::optional<std::set<std::string, std::less<>>> allowed;
  CustomTools custom;
  std::set<std::string, std::less<>> strict;  // those whose arguments must follow their schema
  FunctionTypes types;                        // of the functions' parameters
};

/// A text or token ids.
using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;

struct TokenRequest {
  std::string model;                      // "": the client did not say
  std::vector<CompletionPrompt> prompts;  // completions: at least one
  bool add_special_tokens = true;         // to text prompts of completions
  ChatPrompt chat;                        // chat completions
  bool include_reasoning = true;          // chat completions: the answer shows the reasoning
  ToolUse tools;                          // chat completions
  SamplingParams sampling;                // max_tokens, bad_words and seeds of choices: not set yet
  std::vector<std::string> bad_words;     // not blank
  std::optional<GrammarSpec> grammar;     // what the text must be; unset: anything
  std::string grammar_field;              // that asked for it, for errors
  int32_t n = 1;                          // choices for each prompt
  std::optional<int32_t> max_tokens;
  /// Tokens at most where the request has no max_tokens; unset: 16 for completions, the rest of the
  /// context for chat.
  std::optional<int32_t> default_max_tokens = std::nullopt;
  int32_t truncate_prompt_tokens = 0;  // last tokens of the prompt that are kept; -1: what fits
  std::string request_id;              // that the client chose, "": none
  int32_t stream_interval = 1;         // tokens per event
  std::string response_members;        // responses: what of the answer repeats the request
  int32_t priority = 0;                // lower runs first
  std::string cache_salt;              // "": none
  std::optional<int32_t> num_speculative_tokens = std::nullopt;  // unset: the engine's k
  /// The experts of the prompt's tokens from this one on, and of the answer's, are told; unset: of
  /// none.
  std::optional<int32_t> experts_from = std::nullopt;
  AnswerOptions answer;
  /// Not empty: the answer is given, and its tokens are scored as if the model had written them.
  std::vector<int32_t> given_answer = {};
};

/// Parse a body of /v1/completions, /v1/chat/completions, /v1/responses and /generate. Every field
/// is checked; RequestError names the one that is wrong and says what would be right.
TokenRequest ParseCompletionRequest(std::string_view body, const RequestLimits& limits);
TokenRequest ParseChatRequest(std::string_view body, const RequestLimits& limits);
TokenRequest ParseResponseRequest(std::string_view body, const RequestLimits& limits);
TokenRequest ParseGenerateRequest(std::string_view body, const RequestLimits& limits,
                                  TokenForm form = TokenForm::kOutrider);

/// A body of /generate with SGLang's names, parsed as `value`.
TokenRequest ParseSglangRequest(const nlohmann::json& value, std::string_view body,
                                const RequestLimits& limits);

/// A body of /v1/messages; `only_prompt`: its tokens are to be counted, so max_tokens is not
/// needed.
TokenRequest ParseMessageRequest(std::string_view body, const RequestLimits& limits,
                                 bool only_prompt = false);

/// How many tokens the engine is to generate for a prompt of `prompt_tokens`: what was asked for,
/// or default_max_tokens. At least 1, of which echo_only shows
/// nothing. Throws RequestError: "context_length_exceeded" when prompt and answer do not fit into
/// `max_model_len`, or when min_tokens is more.
int32_t ResolveMaxTokens(const TokenRequest& request, int64_t prompt_tokens, int32_t max_model_len);

}  // namespace outrider::openai
