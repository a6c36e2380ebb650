#include "outrider/engine/request_check.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

void CheckRequest(const GenerationRequest& request, const EngineCore& core) {
  const EngineParts& parts = core.parts();
  const int32_t vocab = core.vocab_size();
  request.sampling.Validate(vocab, parts.max_logprobs);
  if (request.prompt_token_ids.empty()) {
    throw InvalidArgument("the prompt is empty: give at least one token");
  }
  const int32_t limit = parts.scheduler.max_model_len - 1;
  if (request.prompt_token_ids.size() > static_cast<size_t>(limit)) {
    throw InvalidArgument(
        "the prompt has {} tokens: this model takes at most {} (context of {}, one left to "
        "generate)",
        request.prompt_token_ids.size(), limit, limit + 1);
  }
  for (const int32_t id : request.prompt_token_ids) {
    if (id < 0 || id >= vocab) {
      throw InvalidArgument("the prompt holds token id {}: ids of this model are 0 to {}", id,
                            vocab - 1);
    }
  }
  const int32_t k = parts.scheduler.max_drafts;
  const auto wanted = request.num_speculative_tokens;
  if (wanted && (*wanted < 0 || *wanted > k)) {
    throw InvalidArgument(
        "speculation.num_speculative_tokens is {}: it must be 0 to {}, the engine's", *wanted, k);
  }
  if (const auto from = request.experts_from) {
    if (!parts.routed) {
      throw InvalidArgument(
          "the experts of tokens are asked for (return_routed_experts), and this engine does not "
          "tell them: start it with --enable-return-routed-experts");
    }
    if (*from < 0 || static_cast<size_t>(*from) > request.prompt_token_ids.size()) {
      throw InvalidArgument(
          "experts are asked for from token {} on (routed_experts_prompt_start): it must be 0 to "
          "{}, the length of the prompt",
          *from, request.prompt_token_ids.size());
    }
  }
  const auto ends = [&](int32_t id) {
    const auto eos = core.eos_token_ids();
    const auto& stops = request.sampling.stop_token_ids;
    return std::find(eos.begin(), eos.end(), id) != eos.end() ||
           std::find(stops.begin(), stops.end(), id) != stops.end();
  };
  const auto& allowed = request.sampling.allowed_token_ids;
  if (request.sampling.min_tokens > 0 && allowed &&
      std::all_of(allowed->begin(), allowed->end(), ends)) {
    throw InvalidArgument(
        "min_tokens is {}, but allowed_token_ids holds only tokens that end the output: allow "
        "others too, or set min_tokens to 0",
        request.sampling.min_tokens);
  }
  const int32_t room = limit + 1 - static_cast<int32_t>(request.prompt_token_ids.size());
  if (request.sampling.min_tokens > room) {
    throw InvalidArgument(
        "min_tokens is {}: the prompt has {} tokens, so at most {} fit into the context of {}",
        request.sampling.min_tokens, request.prompt_token_ids.size(), room, limit + 1);
  }
  if (request.grammar.grammar != nullptr && request.grammar.grammar->vocab_size() != vocab) {
    throw InvalidArgument("the grammar was compiled for {} tokens: this model has {}",
                          request.grammar.grammar->vocab_size(), vocab);
  }
  for (const int32_t id : request.grammar.forced_tokens) {
    if (id < 0 || id >= vocab) {
      throw InvalidArgument("the answer holds token id {}: ids of this model are 0 to {}", id,
                            vocab - 1);
    }
  }
  if (!request.sampling.stop.empty() && parts.tokenizer == nullptr) {
    throw InvalidArgument("stop strings need a tokenizer, and this engine has none");
  }
}

}  // namespace outrider
