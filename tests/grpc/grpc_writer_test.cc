#include "outrider/grpc/grpc_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference.pb.h"
#include "outrider/grpc/answer_frames.h"
#include "tests/server/stub_generation_service.h"

namespace outrider {
namespace {

openai::AnswerInfo InfoOf(openai::AnswerOptions options, int32_t n = 1) {
  openai::AnswerInfo info;
  info.options = std::move(options);
  info.n = n;
  info.prompts = {{256, 'a', 'b'}};
  return info;
}

std::vector<vllm::GenerateResponse> MessagesOf(std::string_view body) {
  std::vector<vllm::GenerateResponse> messages;
  while (const auto frame = TakeFrame(&body)) {
    EXPECT_EQ(frame->kind, FrameKind::kMessage);
    EXPECT_TRUE(messages.emplace_back().ParseFromString(frame->bytes));
  }
  return messages;
}

PositionLogprobs Position(int32_t token, float logprob, int32_t rank,
                          std::vector<TokenLogprob> top = {}) {
  return {.chosen = {token, logprob}, .top = std::move(top), .rank = rank};
}

OutputDelta DeltaOf(std::vector<int32_t> ids, const std::string& text) {
  OutputDelta delta;
  delta.token_ids = std::move(ids);
  delta.text = text;
  return delta;
}

class GrpcWriterTest : public testing::Test {
 protected:
  BytePromptEncoder encoder_;
};

TEST_F(GrpcWriterTest, TheFirstMessageOfAStreamTellsOfThePrompt) {
  GrpcWriter writer(InfoOf({.stream = true, .prompt_token_ids = true}), encoder_);
  std::string body;
  writer.WriteStart(&body);
  OutputDelta held;  // text that waits for a stop string
  writer.WriteDelta(0, held, &body);
  writer.WriteDelta(0, DeltaOf({'x', 'y'}, "xy"), &body);
  OutputDelta last = DeltaOf({257}, "");
  last.finish_reason = FinishReason::kStop;
  writer.WriteDelta(0, last, &body);
  const auto messages = MessagesOf(body);
  ASSERT_EQ(messages.size(), 3);
  EXPECT_EQ(messages[0].prompt_info().num_prompt_tokens(), 3);
  EXPECT_EQ(messages[0].prompt_info().token_ids(2), 'b');
  EXPECT_FALSE(messages[0].has_outputs());
  EXPECT_FALSE(messages[1].has_prompt_info());
  EXPECT_EQ(messages[1].outputs().text(), "xy");
  EXPECT_EQ(messages[1].outputs().num_tokens(), 2);
  EXPECT_EQ(messages[1].outputs().token_ids_size(), 0);  // not asked for
  EXPECT_FALSE(messages[1].outputs().has_finish_info());
  const vllm::FinishInfo& finish = messages[2].outputs().finish_info();
  EXPECT_EQ(finish.num_output_tokens(), 3);
  EXPECT_EQ(finish.finish_reason(), vllm::FinishInfo::STOP);
  EXPECT_EQ(finish.eos_token_id(), 257);
}

TEST_F(GrpcWriterTest, ThePromptsLogprobsComeWithTheFirstChoice) {
  GrpcWriter writer(InfoOf({.stream = true, .prompt_logprobs = 1}, 2), encoder_);
  std::string body;
  writer.WriteStart(&body);
  EXPECT_EQ(body, "");
  EXPECT_TRUE(writer.MustWait(1));
  EXPECT_FALSE(writer.MustWait(0));
  OutputDelta first = DeltaOf({'x'}, "x");
  first.prompt_logprobs = {Position('a', -1, 2, {{'z', -0.5F}}), Position('b', -2, 1, {{'b', -2}})};
  writer.WriteDelta(0, first, &body);
  EXPECT_FALSE(writer.MustWait(1));
  writer.WriteDelta(1, DeltaOf({'y'}, "y"), &body);
  const auto messages = MessagesOf(body);
  ASSERT_EQ(messages.size(), 2);
  const vllm::PromptInfo& prompt = messages[0].prompt_info();
  ASSERT_EQ(prompt.logprobs_size(), 3);
  EXPECT_EQ(prompt.logprobs(0), 0);
  EXPECT_EQ(prompt.ranks(0), 0);
  EXPECT_EQ(prompt.logprobs(1), -1);
  EXPECT_EQ(prompt.ranks(1), 2);
  ASSERT_EQ(prompt.candidate_tokens(1).tokens_size(), 1);
  EXPECT_EQ(prompt.candidate_tokens(1).tokens(0).id(), 'z');
  EXPECT_EQ(prompt.candidate_tokens(1).tokens(0).rank(), 1);
  EXPECT_EQ(prompt.candidate_tokens(2).tokens_size(), 0);  // the token itself is no candidate
  EXPECT_EQ(messages[1].outputs().index(), 1);
}

TEST_F(GrpcWriterTest, LogprobsAreFinite) {
  GrpcWriter writer(InfoOf({.logprobs = 1}), encoder_);
  OutputDelta whole = DeltaOf({'x'}, "x");
  const float never = -std::numeric_limits<float>::infinity();
  whole.logprobs = {Position('x', never, 300, {{'y', never}})};
  whole.finish_reason = FinishReason::kLength;
  const auto messages = MessagesOf(writer.Body({whole}));
  ASSERT_EQ(messages.size(), 1);
  EXPECT_EQ(messages[0].outputs().logprobs(0), -9999);
  EXPECT_EQ(messages[0].outputs().candidate_tokens(0).tokens(0).logprob(), -9999);
  EXPECT_EQ(messages[0].outputs().finish_info().stop_reason_case(),
            vllm::FinishInfo::STOP_REASON_NOT_SET);
}

TEST_F(GrpcWriterTest, StopReasons) {
  const auto finish_of = [&](const OutputDelta& delta) {
    GrpcWriter writer(InfoOf({}), encoder_);
    return MessagesOf(writer.Body({delta})).at(0).outputs().finish_info();
  };
  OutputDelta delta = DeltaOf({'x', '.'}, "x");
  delta.finish_reason = FinishReason::kStop;
  // A grammar that is complete ends a text behind any token.
  EXPECT_EQ(finish_of(delta).stop_reason_case(), vllm::FinishInfo::STOP_REASON_NOT_SET);
  delta.stop_reason = int32_t{'.'};
  EXPECT_EQ(finish_of(delta).stop_token_id(), '.');
  delta.stop_reason = std::string("END");
  EXPECT_EQ(finish_of(delta).stop_string(), "END");
  delta.stop_reason = {};
  delta.finish_reason = FinishReason::kAbort;
  EXPECT_EQ(finish_of(delta).finish_reason(), vllm::FinishInfo::ABORTED);
}

TEST_F(GrpcWriterTest, AnErrorIsAFrameOfItsOwn) {
  GrpcWriter writer(InfoOf({.stream = true}), encoder_);
  std::string body;
  writer.WriteError({.status = 500, .message = "no", .param = "", .code = "engine_error"}, &body);
  std::string_view rest = body;
  EXPECT_EQ(TakeFrame(&rest)->kind, FrameKind::kError);
}

}  // namespace
}  // namespace outrider
