// The bodies and events that clients read, by the letter.
#include "outrider/openai/answer_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/api_error.h"
#include "outrider/openai/chat_writer.h"
#include "outrider/openai/completion_writer.h"
#include "tests/server/stub_generation_service.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

AnswerInfo Info(AnswerOptions options, size_t choices = 1) {
  AnswerInfo info;
  info.id = options.chat ? "chatcmpl-1" : "cmpl-1";
  info.model = std::string("m");
  info.created = 7;
  info.options = options;
  info.prompts.assign(choices, {1, 2, 3});
  return info;
}

OutputDelta Delta(std::vector<int32_t> ids, std::string text,
                  std::optional<FinishReason> finish = std::nullopt) {
  OutputDelta delta;
  delta.token_ids = std::move(ids);
  delta.text = std::move(text);
  delta.finish_reason = finish;
  return delta;
}

const BytePromptEncoder kEncoder;

std::unique_ptr<AnswerWriter> Writer(const AnswerOptions& options) {
  if (options.chat) return std::make_unique<ChatWriter>(Info(options), OutputTask{}, kEncoder);
  return std::make_unique<CompletionWriter>(Info(options), kEncoder);
}

std::string BodyOf(const AnswerOptions& options, const OutputDelta& whole) {
  return Writer(options)->Body({whole});
}

TEST(AnswerWriterTest, ChatStreamByTheLetter) {
  const auto writer = Writer({.chat = true, .stream = true});
  std::string out;
  writer->WriteDelta(0, Delta({72, 105}, "Hi \"you\"\n"), &out);
  writer->WriteDelta(0, Delta({33}, "!", FinishReason::kStop), &out);
  writer->WriteEnd(&out);
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,)";
  EXPECT_EQ(
      out,
      head +
          R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})" +
          "\n\n" + head +
          R"("delta":{"content":"Hi \"you\"\n"},"logprobs":null,"finish_reason":null,"stop_reason":null}]})" +
          "\n\n" + head +
          R"("delta":{"content":"!"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]})" +
          "\n\ndata: [DONE]\n\n");
}

TEST(AnswerWriterTest, CompletionStreamByTheLetter) {
  const auto writer = Writer({.stream = true, .include_usage = true});
  std::string out;
  writer->WriteDelta(0, Delta({72}, "H"), &out);
  OutputDelta last = Delta({105}, "", FinishReason::kStop);
  last.stop_reason = std::string("i");
  last.stats.cached_tokens = 2;
  writer->WriteDelta(0, last, &out);
  writer->WriteEnd(&out);
  const std::string head =
      R"(data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[)";
  EXPECT_EQ(
      out,
      head +
          R"({"index":0,"text":"H","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null})" +
          "\n\n" + head +
          R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":"i"}],"usage":null})" +
          "\n\n" + head +
          R"(],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2}}})" +
          "\n\ndata: [DONE]\n\n");
}

// Tokens whose text is not certain yet make no event, unless something else tells of them.
TEST(AnswerWriterTest, SilentTokensMakeNoEvent) {
  std::string out;
  const auto silent = Writer({.stream = true});
  silent->WriteDelta(0, Delta({226, 130}, ""), &out);
  EXPECT_EQ(out, "");
  const auto ids = Writer({.stream = true, .return_token_ids = true});
  ids->WriteDelta(0, Delta({226, 130}, ""), &out);
  EXPECT_NE(out.find(R"("prompt_token_ids":[1,2,3],"token_ids":[226,130])"), std::string::npos);
  out.clear();
  ids->WriteDelta(0, Delta({172}, "\xE2\x82\xAC"), &out);
  EXPECT_NE(out.find(R"("stop_reason":null,"token_ids":[172])"), std::string::npos) << out;
}

// A step tells of its tokens before their text is certain; a part of a character gives its bytes.
TEST(AnswerWriterTest, StepsByTheLetter) {
  AnswerOptions options = {.stream = true};
  options.speculation_metrics = SpeculationMetrics::kDetailed;
  CompletionWriter writer(Info(options), kEncoder);
  OutputDelta delta = Delta({72, 226, 33}, "");
  delta.steps = {{{72, 73}, 1, 2, DraftLimit::kNone}, {{}, 0, 1, DraftLimit::kLength}};
  std::string out;
  writer.WriteDelta(0, delta, &out);
  EXPECT_NE(
      out.find(
          R"("speculative_steps":[{"drafts":[{"id":72,"text":"H"},{"id":73,"text":"I"}],)"
          R"("num_accepted":1,"tokens":[{"id":72,"text":"H"},)"
          "{\"id\":226,\"text\":\"\xEF\xBF\xBD\",\"bytes\":[226]}]},"
          R"({"drafts":[],"num_accepted":0,"tokens":[{"id":33,"text":"!"}],"draft_limit":"length"}]}]})"),
      std::string::npos)
      << out;
  delta = Delta({}, "", FinishReason::kStop);
  delta.stats.speculation.AddStep(2, 1);
  out.clear();
  writer.WriteDelta(0, delta, &out);
  // The step without drafts does not count, as in vLLM.
  EXPECT_NE(out.find(R"("num_spec_tokens":2,"per_step_drafted":[2],"per_step_accepted":[1]}}})"),
            std::string::npos)
      << out;
}

TEST(AnswerWriterTest, ChatTokenIds) {
  std::string out;
  const auto writer = Writer({.chat = true, .stream = true, .return_token_ids = true});
  writer->WriteDelta(0, Delta({72}, "H"), &out);
  EXPECT_NE(out.find(R"("finish_reason":null}],"prompt_token_ids":[1,2,3]})"), std::string::npos);
  EXPECT_NE(out.find(R"("token_ids":[72]}]})"), std::string::npos);
}

TEST(AnswerWriterTest, UsageInEveryChunk) {
  std::string out;
  const auto writer = Writer({.stream = true, .continuous_usage = true});
  writer->WriteDelta(0, Delta({72}, "H"), &out);
  EXPECT_NE(out.find(R"("usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1)"),
            std::string::npos);
}

TEST(AnswerWriterTest, StopReasonsOfEveryKind) {
  for (const auto& [reason, expected] :
       std::vector<std::pair<std::variant<std::monostate, int32_t, std::string>, std::string>>{
           {std::monostate(), "null"}, {int32_t{5}, "5"}, {std::string("\n"), R"("\n")"}}) {
    OutputDelta delta = Delta({1}, "a", FinishReason::kLength);
    delta.stop_reason = reason;
    EXPECT_NE(BodyOf({}, delta).find(R"("finish_reason":"length","stop_reason":)" + expected + "}"),
              std::string::npos);
  }
}

TEST(AnswerWriterTest, InvalidUtf8IsReplaced) {
  const std::string body = BodyOf({}, Delta({255}, "a\xFF", FinishReason::kStop));
  EXPECT_EQ(json::parse(body)["choices"][0]["text"], "a\xEF\xBF\xBD");
}

TEST(AnswerWriterTest, ChatBodyByTheLetter) {
  EXPECT_EQ(
      BodyOf({.chat = true, .return_token_ids = true},
             Delta({72, 105, 33}, "Hi!", FinishReason::kLength)),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"Hi!"},"logprobs":null,"finish_reason":"length",)"
      R"("stop_reason":null,"token_ids":[72,105,33]}],"usage":{"prompt_tokens":3,"total_tokens":6,)"
      R"("completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":[1,2,3]})");
}

OutputDelta WithLogprobs() {
  OutputDelta delta = Delta({0xC3, 'b'}, "\xC3");
  delta.logprobs.push_back({{0xC3, -1.5F}, {{'a', -0.25F}, {0xC3, -1.5F}}});
  delta.logprobs.push_back({{'b', -3.0F}, {{0xFF, -0.5F}, {0xFE, -0.125F}}});
  delta.finish_reason = FinishReason::kStop;
  return delta;
}

TEST(AnswerWriterTest, ChatLogprobs) {
  const std::string body = BodyOf({.chat = true, .logprobs = 2}, WithLogprobs());
  const json content = json::parse(body)["choices"][0]["logprobs"]["content"];
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(content[0], (json{{"token", bad},
                              {"logprob", -1.5},
                              {"bytes", {0xC3}},
                              {"top_logprobs",
                               {{{"token", "a"}, {"logprob", -0.25}, {"bytes", {97}}},
                                {{"token", bad}, {"logprob", -1.5}, {"bytes", {0xC3}}}}}}));
  EXPECT_EQ(content[1]["top_logprobs"].size(), 2);
}

// Tokens that are spelled alike share an entry, with the larger value; the chosen one is always
// there.
TEST(AnswerWriterTest, CompletionLogprobs) {
  const std::string body = BodyOf({.logprobs = 2}, WithLogprobs());
  const json logprobs = json::parse(body)["choices"][0]["logprobs"];
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(logprobs,
            (json{{"tokens", {bad, "b"}},
                  {"token_logprobs", {-1.5, -3.0}},
                  {"top_logprobs", {{{"a", -0.25}, {bad, -1.5}}, {{bad, -0.125}, {"b", -3.0}}}},
                  {"text_offset", {0, 1}}}));
}

TEST(AnswerWriterTest, TextOffsetsGoOnOverChunks) {
  const auto writer = Writer({.stream = true, .logprobs = 0});
  std::string out;
  OutputDelta delta = Delta({'a', 'b'}, "ab");
  delta.logprobs = {{{'a', -1}, {}}, {{'b', -1}, {}}};
  writer->WriteDelta(0, delta, &out);
  out.clear();
  writer->WriteDelta(0, delta, &out);
  EXPECT_NE(out.find(R"("text_offset":[2,3])"), std::string::npos) << out;
}

TEST(AnswerWriterTest, LogprobsThatJsonCannotHold) {
  OutputDelta delta = Delta({'a'}, "a", FinishReason::kStop);
  delta.logprobs = {{{'a', -1.0F}, {{'b', -std::numeric_limits<float>::infinity()}}}};
  EXPECT_EQ(
      json::parse(BodyOf({.logprobs = 1}, delta))["choices"][0]["logprobs"]["top_logprobs"][0]["b"],
      -9999.0);
}

TEST(ApiErrorTest, BodiesByTheLetter) {
  EXPECT_EQ(
      ErrorJson({.status = 400, .message = "a \"b\"", .param = "n", .code = ""}),
      R"({"error":{"message":"a \"b\"","type":"invalid_request_error","param":"n","code":null}})");
  const ApiError error = FromError(Error(ErrorCode::kUnavailable, "stopping"));
  EXPECT_EQ(error.status, 503);
  EXPECT_EQ(
      ErrorJson(error),
      R"({"error":{"message":"stopping","type":"service_unavailable_error","param":null,"code":")" +
          std::string(ErrorCodeName(ErrorCode::kUnavailable)) + R"("}})");
  EXPECT_EQ(Event("{}"), "data: {}\n\n");
}

// The engine scores a prompt for its first choice; the others have the same to tell.
TEST(AnswerWriterTest, ChoicesTellTheScoresOfTheirPromptsFirst) {
  AnswerInfo info = Info({.stream = true, .echo = true, .logprobs = 0}, 2);
  info.n = 2;
  info.echoed_prompts.assign(2, {"abc", {1, 1, 1}});
  CompletionWriter writer(info, kEncoder);
  OutputDelta first = Delta({97}, "a");
  first.logprobs = {{{97, -1.0F}, {}, 1}};
  first.prompt_logprobs = {{{2, -0.5F}, {}, 1}, {{3, -0.5F}, {}, 1}};
  OutputDelta other = Delta({98}, "b");
  other.logprobs = {{{98, -2.0F}, {}, 1}};
  EXPECT_FALSE(writer.MustWait(0));
  EXPECT_TRUE(writer.MustWait(1));
  EXPECT_TRUE(writer.MustWait(3));
  std::string out;
  writer.WriteDelta(0, first, &out);
  EXPECT_FALSE(writer.MustWait(1));
  EXPECT_TRUE(writer.MustWait(3)) << "of another prompt";
  out.clear();
  writer.WriteDelta(1, other, &out);
  EXPECT_EQ(json::parse(out.substr(6))["choices"][0]["logprobs"]["token_logprobs"],
            (json{nullptr, -0.5, -0.5, -2.0}));
  // A first choice that ends without them is waited for no longer.
  writer.WriteDelta(2, Delta({}, "", FinishReason::kAbort), &out);
  EXPECT_FALSE(writer.MustWait(3));
}

}  // namespace
}  // namespace outrider::openai
