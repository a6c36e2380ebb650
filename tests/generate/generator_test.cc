#include "outrider/generate/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "outrider/openai/api_error.h"
#include "tests/server/stub_generation_service.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kMaxModelLen = 64;

openai::TokenRequest Completion(std::string prompt) {
  openai::TokenRequest request;
  request.prompts = {std::move(prompt)};
  request.max_tokens = 6;
  return request;
}

class GeneratorTest : public testing::Test {
 protected:
  std::string Refusal(openai::TokenRequest request) {
    try {
      generator_.Generate(std::move(request));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  BytePromptEncoder encoder_;
  StubGenerationService service_{StubOptions{}};
  Generator generator_{service_, encoder_, nullptr, OutputFormat{}, kMaxModelLen};
};

TEST_F(GeneratorTest, TextComesBackWhole) {
  openai::TokenRequest request = Completion("abc");
  request.add_special_tokens = false;
  request.n = 2;
  const std::vector<OutputDelta> answers = generator_.Generate(std::move(request));
  ASSERT_EQ(answers.size(), 2);
  for (const OutputDelta& answer : answers) {
    EXPECT_EQ(answer.text, "abcabc");
    EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
    EXPECT_EQ(answer.stats.completion_tokens, 6);
  }
}

TEST_F(GeneratorTest, DeltasComeInOrderAndTheRequestTellsItsPrompt) {
  std::string text;
  std::promise<void> finished;
  openai::TokenRequest request = Completion("xyz");
  request.add_special_tokens = false;
  const StartedRequest started =
      generator_.Stream(std::move(request), [&](size_t choice, OutputDelta&& delta) {
        EXPECT_EQ(choice, 0);
        text += delta.text;
        if (delta.finish_reason) finished.set_value();
      });
  finished.get_future().wait();
  EXPECT_EQ(text, "xyzxyz");
  EXPECT_EQ(started.ids.size(), 1);
  EXPECT_THAT(started.prompts, ElementsAre(ElementsAre('x', 'y', 'z')));
}

TEST_F(GeneratorTest, AnAbortedRequestEndsWithADelta) {
  std::promise<FinishReason> reason;
  openai::TokenRequest request = Completion("abc");
  request.max_tokens = 50;
  StubGenerationService slow({.step_time = std::chrono::milliseconds(20)});
  Generator generator(slow, encoder_, nullptr, OutputFormat{}, kMaxModelLen);
  const StartedRequest started =
      generator.Stream(std::move(request), [&](size_t /*choice*/, OutputDelta&& delta) {
        if (delta.finish_reason) reason.set_value(*delta.finish_reason);
      });
  generator.Abort(started.ids.front());
  EXPECT_EQ(reason.get_future().get(), FinishReason::kAbort);
}

TEST_F(GeneratorTest, ARefusedChoiceEndsThoseBeforeItWithoutAWord) {
  StubGenerationService full({.max_requests = 2, .refuses_late = true, .held = true});
  Generator generator(full, encoder_, nullptr, OutputFormat{}, kMaxModelLen);
  openai::TokenRequest request = Completion("abc");
  request.n = 3;
  int num_deltas = 0;
  EXPECT_THROW(generator.Stream(std::move(request), [&](size_t, OutputDelta&&) { ++num_deltas; }),
               Error);
  full.Release();
  while (full.num_aborted() < 2) std::this_thread::yield();
  EXPECT_EQ(num_deltas, 0);
}

TEST_F(GeneratorTest, WithoutMaxTokensTheDefaultHolds) {
  openai::TokenRequest request = Completion("abcd");
  request.add_special_tokens = false;
  request.max_tokens.reset();
  EXPECT_EQ(generator_.Generate(request).front().token_ids.size(), 16) << "OpenAI's default";
  request.default_max_tokens = 100;
  EXPECT_EQ(generator_.Generate(request).front().token_ids.size(), kMaxModelLen - 4);
  request.default_max_tokens = 20;
  EXPECT_EQ(generator_.Generate(request).front().token_ids.size(), 20);
}

TEST_F(GeneratorTest, MistakesNameTheirField) {
  EXPECT_THAT(Refusal(Completion(std::string(100, 'a'))), HasSubstr("prompt: has 100 bytes"));
  openai::TokenRequest constrained = Completion("abc");
  constrained.grammar = GrammarSpec{GrammarKind::kRegex, "a", {}};
  constrained.grammar_field = "structured_outputs.regex";
  EXPECT_THAT(Refusal(constrained), HasSubstr("structured_outputs.regex: this model has no"));
}

TEST_F(GeneratorTest, ScoresForceTheAnswer) {
  std::promise<void> finished;
  openai::TokenRequest request = Completion("abc");
  request.max_tokens.reset();
  request.sampling.stop = {"b"};
  request.sampling.stop_token_ids = {'x'};
  generator_.Score(std::move(request), {'x', 'y'}, [&](size_t /*choice*/, OutputDelta&& delta) {
    if (delta.finish_reason) finished.set_value();
  });
  finished.get_future().wait();
  EXPECT_THAT(service_.last_grammar().forced_tokens, ElementsAre('x', 'y'));
  const SamplingParams sampling = service_.last_sampling();
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.max_tokens, 2);
  EXPECT_TRUE(sampling.stop.empty());
  EXPECT_TRUE(sampling.stop_token_ids.empty());
  EXPECT_THROW(generator_.Score(Completion("abc"), {}, nullptr), Error);
}

TEST_F(GeneratorTest, AResetChangesTheSaltOfLaterRequests) {
  openai::TokenRequest request = Completion("abc");
  request.cache_salt = "mine";
  generator_.Generate(request);
  EXPECT_EQ(service_.last_cache_salt(), "mine");
  generator_.ResetPrefixCache();
  generator_.Generate(request);
  const std::string once = service_.last_cache_salt();
  EXPECT_NE(once, "mine");
  generator_.ResetPrefixCache();
  generator_.Generate(request);
  EXPECT_NE(service_.last_cache_salt(), once);
  EXPECT_THAT(service_.last_cache_salt(), HasSubstr("mine"));
}

}  // namespace
}  // namespace outrider
