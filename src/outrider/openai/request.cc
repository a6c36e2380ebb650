#include "outrider/openai/request.h"

#include <fmt/format.h>

#include <algorithm>

#include "outrider/openai/api_error.h"

namespace outrider::openai {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;

}  // namespace

int32_t ResolveMaxTokens(const TokenRequest& request, int64_t prompt_tokens,
                         int32_t max_model_len) {
  const char* const param = request.answer.chat ? "messages" : "prompt";
  if (prompt_tokens == 0) {
    throw RequestError(ErrorCode::kInvalidArgument, param,
                       fmt::format("{}: is empty; at least one token is needed", param));
  }
  const int64_t room = max_model_len - prompt_tokens;
  if (room < 1) {
    throw RequestError(ErrorCode::kInvalidArgument, param,
                       fmt::format("{}: has {} tokens; the model's context of {} holds prompts of "
                                   "at most {}",
                                   param, prompt_tokens, max_model_len, max_model_len - 1),
                       "context_length_exceeded");
  }
  if (request.max_tokens && *request.max_tokens > room) {
    throw RequestError(ErrorCode::kInvalidArgument, "max_tokens",
                       fmt::format("max_tokens: {} do not fit; the prompt has {} tokens, so at "
                                   "most {} are left of the model's context of {}",
                                   *request.max_tokens, prompt_tokens, room, max_model_len),
                       "context_length_exceeded");
  }
  int64_t max_tokens = room;
  if (request.max_tokens) {
    max_tokens = std::max(*request.max_tokens, 1);  // 0: the engine's one token is not shown
  } else if (request.default_max_tokens) {
    max_tokens = std::min<int64_t>(*request.default_max_tokens, room);
  } else if (!request.answer.chat) {
    max_tokens = std::min<int64_t>(kDefaultCompletionTokens, room);
  }
  const int64_t most = request.answer.echo_only ? 0 : max_tokens;
  if (request.sampling.min_tokens > most) {
    throw RequestError(ErrorCode::kInvalidArgument, "min_tokens",
                       fmt::format("min_tokens: {} is out of range: must be from 0 to max_tokens, "
                                   "which is {}",
                                   request.sampling.min_tokens, most));
  }
  return static_cast<int32_t>(max_tokens);
}

}  // namespace outrider::openai
