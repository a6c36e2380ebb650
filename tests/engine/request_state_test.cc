// What a request does with verified tokens: where it ends, what it delivers.
#include "outrider/engine/request_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "outrider/text/tokenizer.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

constexpr int32_t kEos = 1;

/// A request with a prompt of two tokens, and what it delivered last.
struct OpenRequest {
  explicit OpenRequest(SamplingParams sampling, int32_t max_model_len = 50,
                       const Tokenizer* tokenizer = nullptr, MakeStopScope stop_scope = {})
      : state(
            1, Request(std::move(sampling), std::move(stop_scope)),
            [this](RequestId, OutputDelta&& d) { delta = std::move(d); }, tokenizer, eos,
            max_model_len, 0) {}

  static GenerationRequest Request(SamplingParams sampling, MakeStopScope stop_scope) {
    GenerationRequest request;
    request.prompt_token_ids = {8, 9};
    request.sampling = std::move(sampling);
    request.stop_scope = std::move(stop_scope);
    return request;
  }

  /// Emits tokens of which all but the last were drafts.
  int32_t Emit(std::vector<int32_t> tokens, bool dead_end = false) {
    RequestResult result;
    VerifiedTokens& verified = result.verified;
    verified.num_accepted = static_cast<int32_t>(tokens.size()) - (dead_end ? 0 : 1);
    verified.dead_end = dead_end;
    verified.logprobs.resize(tokens.size());
    verified.tokens = std::move(tokens);
    result.drafts.assign(verified.tokens.begin(), verified.tokens.begin() + verified.num_accepted);
    return state.Emit(result);
  }

  std::vector<int32_t> eos = {kEos};
  OutputDelta delta;
  RequestState state;
};

// Reference scenario 12: what follows the end inside the window is not emitted.
TEST(RequestStateTest, EosAtAcceptedDraft1Of3) {
  SamplingParams sampling;
  sampling.logprobs = 0;
  OpenRequest request(sampling);
  EXPECT_EQ(request.Emit({kEos, 20, 21, 22}), 1);
  EXPECT_EQ(request.delta.token_ids, (std::vector<int32_t>{kEos}));
  EXPECT_EQ(request.delta.logprobs.size(), 1U);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(request.delta.stats.completion_tokens, 1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(request.delta.stop_reason));
}

TEST(RequestStateTest, EosIsIgnoredOnRequestAndStopIdsAreNot) {
  SamplingParams sampling;
  sampling.ignore_eos = true;
  sampling.stop_token_ids = {21};
  OpenRequest request(sampling);
  EXPECT_EQ(request.Emit({kEos, 20, 21, 22}), 3);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<int32_t>(request.delta.stop_reason), 21);
}

TEST(RequestStateTest, MaxTokensMidWindow) {
  SamplingParams sampling;
  sampling.max_tokens = 5;
  OpenRequest request(sampling);
  EXPECT_EQ(request.Emit({20, 21, 22}), 3);
  EXPECT_EQ(request.Emit({23, 24, 25, 26}), 2);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kLength);
  // The context's end comes first when it is nearer.
  OpenRequest shorter(sampling, 4);
  EXPECT_EQ(shorter.Emit({20, 21, 22}), 2);
  EXPECT_EQ(shorter.delta.finish_reason, FinishReason::kLength);
}

TEST(RequestStateTest, ADeadEndFinishesAfterTheAcceptedDrafts) {
  OpenRequest request({});
  EXPECT_EQ(request.Emit({20, 21}, /*dead_end=*/true), 2);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(request.delta.stop_reason), kNoTokenAllowed);
  OpenRequest at_once({});
  EXPECT_EQ(at_once.Emit({}, /*dead_end=*/true), 0);
  EXPECT_EQ(at_once.delta.finish_reason, FinishReason::kStop);
  // An end before the dead end is the reason.
  OpenRequest ended({});
  EXPECT_EQ(ended.Emit({kEos}, /*dead_end=*/true), 1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(ended.delta.stop_reason));
}

TEST(RequestStateTest, OverflownLogitsEndTheRequestWithAnError) {
  OpenRequest request({});
  RequestResult result;
  result.verified.dead_end = true;
  result.verified.overflown = true;
  request.state.Emit(result);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kError);
  EXPECT_EQ(std::get<std::string>(request.delta.stop_reason), kLogitsOverflown);
  EXPECT_TRUE(request.state.finished());
}

TEST(RequestStateTest, OverflownRowsOfThePromptEndTheRequestWithAnError) {
  SamplingParams sampling;
  sampling.prompt_logprobs = 0;
  OpenRequest request(sampling);
  RequestResult result;
  result.verified.tokens = {20};
  result.prompt_logprobs.resize(2);
  result.prompt_logprobs[1].chosen.logprob = std::numeric_limits<float>::quiet_NaN();
  request.state.Emit(result);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kError);
  EXPECT_EQ(std::get<std::string>(request.delta.stop_reason), kLogitsOverflown);
}

// Masks keep this from happening; if it does, one request ends and says why.
TEST(RequestStateTest, ATokenThatTheGrammarRefusesEndsTheRequestWithAnError) {
  OpenRequest request({});
  ASSERT_EQ(request.Emit({20}), 1);
  EXPECT_FALSE(request.delta.finish_reason.has_value());
  RequestResult result;
  result.verified.tokens = {21};
  result.grammar_failed = true;
  request.state.Emit(result);
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kError);
  EXPECT_EQ(std::get<std::string>(request.delta.stop_reason), kGrammarFailed);
  EXPECT_TRUE(request.state.finished());
  EXPECT_EQ(request.state.finish_reason(), FinishReason::kError);
}

TEST(RequestStateTest, PromptLogprobsComeWithTheFirstTokenAndNotAgain) {
  SamplingParams sampling;
  sampling.prompt_logprobs = 0;
  OpenRequest request(sampling);
  EXPECT_EQ(request.state.most_shared(), 0);
  RequestResult result;
  result.verified.tokens = {20};
  result.prompt_logprobs.resize(1);
  request.state.Emit(result);
  EXPECT_EQ(request.delta.prompt_logprobs.size(), 1U);
  request.Emit({21});
  EXPECT_TRUE(request.delta.prompt_logprobs.empty());
}

TEST(RequestStateTest, ExpertsAreTakenOnceAndEndBeforeTheLastToken) {
  GenerationRequest given;
  given.prompt_token_ids = {8, 9, 10};
  given.sampling.max_tokens = 2;
  given.experts_from = 1;
  OutputDelta delta;
  RequestState state(1, std::move(given), [&](RequestId, OutputDelta&& d) { delta = std::move(d); },
                     nullptr, {}, 50, 0, {.layers = 2, .top_k = 1});
  EXPECT_EQ(state.most_shared(), 1);
  const auto take = [&](int32_t from, const std::vector<int16_t>& ids) {
    RequestResult result;
    result.experts = ids;
    result.experts_from = from;
    state.TakeExperts(result);
  };
  take(1, {1, 2});
  take(0, {0, 0, 30, 30, 3, 4});  // computed again after a preemption
  RequestResult result;
  result.verified.tokens = {20};
  state.Emit(result);
  EXPECT_EQ(delta.experts, nullptr);
  take(3, {5, 6, 7, 8});  // with the row of a draft behind the end
  state.Emit(result);
  ASSERT_NE(delta.experts, nullptr);
  EXPECT_EQ(delta.experts->from, 1);
  EXPECT_EQ(delta.experts->tokens, 3);
  EXPECT_EQ(delta.experts->ids, (std::vector<int16_t>{1, 2, 3, 4, 5, 6}));
}

TEST(RequestStateTest, StopStringsAreLookedForAfterMinTokens) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  const std::vector<int32_t> ids = tokenizer.Encode("one two one two", false);
  SamplingParams sampling;
  sampling.stop = {"two"};
  OpenRequest plain(sampling, 50, &tokenizer);
  const int32_t first = plain.Emit(ids);
  ASSERT_LT(first, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(plain.delta.text, "one ");
  sampling.min_tokens = first;
  OpenRequest later(sampling, 50, &tokenizer);
  EXPECT_EQ(later.Emit(ids), static_cast<int32_t>(ids.size()));
  EXPECT_EQ(later.delta.text, "one two one ");
  EXPECT_EQ(std::get<std::string>(later.delta.stop_reason), "two");
}

// The odd-numbered pieces of a text between bars.
class BetweenBars : public StopScope {
 public:
  void Push(std::string_view text, bool /*final*/, std::vector<Run>* runs) override {
    for (const char c : text) {
      if (c == '|') inside_ = !inside_;
      runs->push_back({1, inside_ && c != '|'});
    }
  }

 private:
  bool inside_ = false;
};

TEST(RequestStateTest, StopStringsAreLookedForInTheirScope) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  const std::vector<int32_t> ids = tokenizer.Encode("one two |one two|", false);
  SamplingParams sampling;
  sampling.stop = {"two"};
  const MakeStopScope scope = [] { return std::make_unique<BetweenBars>(); };
  OpenRequest request(sampling, 50, &tokenizer, scope);
  EXPECT_LT(request.Emit(ids), static_cast<int32_t>(ids.size()));
  EXPECT_EQ(request.delta.text, "one two |one ");
  EXPECT_EQ(request.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(request.delta.stop_reason), "two");
}

}  // namespace
}  // namespace outrider
