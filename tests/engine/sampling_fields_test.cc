// Sampling fields in an engine that speculates: the output is the one without drafts, and does what
// the fields say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "outrider/base/error.h"
#include "outrider/text/tokenizer.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

using testing::HasSubstr;

class SamplingFieldsTest : public testing::Test {
 protected:
  SamplingFieldsTest()
      : tokenizer_(Tokenizer::FromModelDirectory(TinyModelDirectory())),
        plain_(MakeTestEngine({.drafter = DrafterKind::kNone}, &tokenizer_)),
        speculative_(MakeTestEngine({.k = 3}, &tokenizer_)) {
    // A text that the model continues with long runs of accepted drafts.
    prompt_ = tokenizer_.Encode("one two three one two three one two three one two", true);
  }

  static GenerationRequest Request(const std::vector<int32_t>& prompt,
                                   const SamplingParams& sampling) {
    GenerationRequest request;
    request.prompt_token_ids = prompt;
    request.sampling = sampling;
    return request;
  }

  Generated Run(Engine& engine, const SamplingParams& sampling) {
    return RunOne(engine, Request(prompt_, sampling));
  }

  /// What both engines give.
  Generated RunBoth(const SamplingParams& sampling) {
    const Generated alone = Run(*plain_, sampling);
    Generated result = Run(*speculative_, sampling);
    EXPECT_EQ(result.tokens, alone.tokens);
    EXPECT_EQ(result.finish_reason, alone.finish_reason);
    EXPECT_EQ(result.text, alone.text);
    return result;
  }

  std::string ErrorOf(const SamplingParams& sampling, const std::vector<int32_t>& prompt) {
    try {
      plain_->Submit(Request(prompt, sampling), [](RequestId, OutputDelta&&) {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  static SamplingParams Greedy(int32_t max_tokens) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.ignore_eos = true;
    sampling.max_tokens = max_tokens;
    return sampling;
  }

  Tokenizer tokenizer_;
  std::unique_ptr<Engine> plain_;
  std::unique_ptr<Engine> speculative_;
  std::vector<int32_t> prompt_;
};

// Reference scenario 12: the end falls on every place of a window.
TEST_F(SamplingFieldsTest, OutputEndsAtTheSameTokenWithDrafts) {
  const Generated free = RunBoth(Greedy(16));
  EXPECT_GT(free.stats.speculation.num_accepted_tokens, 6);
  for (int32_t n = 1; n <= 12; ++n) {
    const Generated cut = RunBoth(Greedy(n));
    EXPECT_EQ(cut.tokens, std::vector<int32_t>(free.tokens.begin(), free.tokens.begin() + n));
    EXPECT_EQ(cut.finish_reason, FinishReason::kLength);

    SamplingParams stopped = Greedy(16);
    stopped.stop_token_ids = {free.tokens[static_cast<size_t>(n - 1)]};
    const Generated stop = RunBoth(stopped);
    EXPECT_EQ(stop.finish_reason, FinishReason::kStop);
    EXPECT_EQ(stop.tokens.back(), stopped.stop_token_ids[0]);
    EXPECT_EQ(std::count(stop.tokens.begin(), stop.tokens.end(), stop.tokens.back()), 1);

    stopped.min_tokens = n;
    const Generated late = RunBoth(stopped);
    EXPECT_GE(late.tokens.size(), static_cast<size_t>(n));
    EXPECT_EQ(std::count(late.tokens.begin(), late.tokens.begin() + n, stopped.stop_token_ids[0]),
              0);
  }
}

TEST_F(SamplingFieldsTest, MasksHoldInEveryRow) {
  const Generated free = RunBoth(Greedy(24));
  SamplingParams sampling = Greedy(24);
  sampling.bad_words = {{free.tokens[4], free.tokens[5]}};
  const Generated polite = RunBoth(sampling);
  EXPECT_EQ(std::search(polite.tokens.begin(), polite.tokens.end(), sampling.bad_words[0].begin(),
                        sampling.bad_words[0].end()),
            polite.tokens.end());
  EXPECT_NE(polite.tokens, free.tokens);

  sampling = Greedy(24);
  sampling.allowed_token_ids = {{300, 200, 100}};
  for (const int32_t token : RunBoth(sampling).tokens) EXPECT_EQ(token % 100, 0);

  sampling = Greedy(24);
  sampling.logit_bias = {{77, 100}};
  EXPECT_EQ(RunBoth(sampling).tokens, std::vector<int32_t>(24, 77));

  sampling.bad_words = {{77, 77}};
  sampling.allowed_token_ids = {{77}};
  const Generated dead_end = RunBoth(sampling);
  EXPECT_EQ(dead_end.tokens, std::vector<int32_t>{77});
  EXPECT_EQ(dead_end.finish_reason, FinishReason::kStop);
}

TEST_F(SamplingFieldsTest, PenaltiesEndRepetition) {
  const auto distinct = [](std::vector<int32_t> tokens) {
    std::sort(tokens.begin(), tokens.end());
    return std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  };
  const Generated free = RunBoth(Greedy(40));
  SamplingParams sampling = Greedy(40);
  sampling.repetition_penalty = 100;
  EXPECT_GT(distinct(RunBoth(sampling).tokens), distinct(free.tokens) + 5);
  sampling = Greedy(40);
  sampling.frequency_penalty = 2;
  EXPECT_GT(distinct(RunBoth(sampling).tokens), distinct(free.tokens));
  sampling = Greedy(40);
  sampling.presence_penalty = 2;
  EXPECT_NE(RunBoth(sampling).tokens, free.tokens);
}

// A prompt's log-probabilities are those that its tokens have when they are generated.
TEST_F(SamplingFieldsTest, PromptLogprobsScoreThePrompt) {
  SamplingParams sampling = Greedy(90);  // more rows than a tile of logits
  const Generated generated = Run(*plain_, sampling);
  const size_t length = prompt_.size();
  prompt_.insert(prompt_.end(), generated.tokens.begin(), generated.tokens.end());
  sampling = Greedy(4);
  sampling.prompt_logprobs = 2;
  const Generated scored = RunBoth(sampling);
  ASSERT_EQ(scored.prompt_logprobs.size(), prompt_.size() - 1);
  for (size_t i = 0; i + 1 < prompt_.size(); ++i) {
    const PositionLogprobs& position = scored.prompt_logprobs[i];
    EXPECT_EQ(position.chosen.token_id, prompt_[i + 1]);
    ASSERT_EQ(position.top.size(), 2U);
    EXPECT_EQ(position.rank == 1, position.top[0].token_id == prompt_[i + 1]);
    // Greedy tokens are the likeliest, up to what the prompt's form changes in the last bits.
    if (i + 1 >= length) {
      EXPECT_LE(position.rank, 2) << i;
    }
  }
  // However the prompt is cut into chunks.
  const auto chunked = MakeTestEngine({.block_size = 4, .max_num_batched_tokens = 7}, &tokenizer_);
  const Generated again = Run(*chunked, sampling);
  ASSERT_EQ(again.prompt_logprobs.size(), scored.prompt_logprobs.size());
  for (size_t i = 0; i < again.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(again.prompt_logprobs[i].chosen.logprob),
              std::bit_cast<uint32_t>(scored.prompt_logprobs[i].chosen.logprob));
  }
}

TEST_F(SamplingFieldsTest, ImpossibleRequestsAreRefusedOnArrival) {
  SamplingParams sampling;
  const std::vector<int32_t> long_prompt(1020, 7);
  sampling.max_tokens = sampling.min_tokens = 5;
  EXPECT_THAT(ErrorOf(sampling, long_prompt),
              HasSubstr("min_tokens is 5: the prompt has 1020 tokens, so at most 4 fit into the "
                        "context of 1024"));
  EXPECT_THAT(ErrorOf({}, std::vector<int32_t>(1024, 7)), HasSubstr("at most 1023"));
  sampling.stop_token_ids = {9};
  sampling.allowed_token_ids = {{9, 9}};
  EXPECT_THAT(ErrorOf(sampling, {7}), HasSubstr("min_tokens is 5, but allowed_token_ids holds"));
  sampling.allowed_token_ids = {{9, 10}};
  EXPECT_EQ(ErrorOf(sampling, {7}), "");
  RunUntilIdle(*plain_);
}

}  // namespace
}  // namespace outrider
