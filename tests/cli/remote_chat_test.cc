// What `outrider chat --url` sends, and what it makes of the events that come back.
#include "outrider/cli/remote_chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "outrider/base/error.h"

namespace outrider::cli {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

const std::string kMessages = R"([{"role":"user","content":"1 + 1?"}])";

TEST(ChatBodyTest, HoldsWhatWasGivenAndNothingElse) {
  EXPECT_EQ(Json::parse(ChatBody({}, kMessages, "")),
            (Json{{"messages", Json::parse(kMessages)},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}},
                  {"per_request_spec_decode_metrics", "summary"},
                  {"seed", 0}}));
  GenerateSettings settings;
  settings.temperature = 0.5;
  settings.top_k = 0;
  settings.max_tokens = 7;
  settings.stop = {"\n"};
  settings.sampling.min_tokens = 2;
  settings.sampling.logit_bias = {{17, -100.0F}};
  const Json body = Json::parse(ChatBody(settings, kMessages, "glm"));
  EXPECT_EQ(body["model"], "glm");
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_k"], 0);
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_EQ(body["stop"], Json{"\n"});
  EXPECT_EQ(body["min_tokens"], 2);
  EXPECT_EQ(body["logit_bias"], (Json{{"17", -100}}));
}

const std::string kEvents =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning\":\"One \"}}]}\n\n"
    ": ping\n\n"
    "data: {\"choices\":[{\"delta\":{\"reasoning\":\"more.\"}}],\"usage\":null}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"It is \"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"2.\"},\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5},"
    "\"metrics\":{\"speculative_decoding\":{\"num_spec_steps\":2,\"num_draft_tokens\":6,"
    "\"num_accepted_draft_tokens\":3}}}\n\n"
    "data: [DONE]\n\n";

TEST(ChatStreamTest, EventsAddUpHoweverTheyAreCut) {
  for (const size_t size : {size_t{1}, size_t{2}, size_t{50}, kEvents.size()}) {
    std::string shown;
    ChatStream stream([&](std::string_view text) { shown += text; });
    for (size_t i = 0; i < kEvents.size(); i += size) {
      stream.Take(200, std::string_view(kEvents).substr(i, size), i + size >= kEvents.size());
    }
    EXPECT_EQ(shown, "<think>One more.</think>\nIt is 2.");
    const OutputDelta& answer = stream.answer();
    EXPECT_TRUE(stream.complete());
    EXPECT_EQ(answer.text, "It is 2.");
    EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
    EXPECT_EQ(answer.stats.prompt_tokens, 9);
    EXPECT_EQ(answer.stats.completion_tokens, 5);
    EXPECT_EQ(answer.stats.speculation.num_drafts, 2);
    EXPECT_EQ(answer.stats.speculation.num_draft_tokens, 6);
    EXPECT_EQ(answer.stats.speculation.num_accepted_tokens, 3);
  }
}

std::pair<ErrorCode, std::string> Failure(int status, std::string_view body) {
  ChatStream stream([](std::string_view) {});
  try {
    stream.Take(status, body, true);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kNotFound, "none"};
}

TEST(ChatStreamTest, WhatGoesWrongIsSaid) {
  using testing::Pair;
  const std::string error = R"({"error":{"message":"too long","code":"x"}})";
  EXPECT_THAT(Failure(400, error),
              Pair(ErrorCode::kInvalidArgument, "the server answered 400: too long"));
  EXPECT_THAT(Failure(503, error),
              Pair(ErrorCode::kUnavailable, "the server answered 503: too long"));
  EXPECT_THAT(Failure(404, "<html>"), Pair(ErrorCode::kInvalidArgument, HasSubstr("404: <html>")));
  EXPECT_THAT(Failure(200, "data: " + error + "\n\n"),
              Pair(ErrorCode::kInvalidArgument, "too long"));
  EXPECT_THAT(Failure(200, "data: no JSON\n\n"),
              Pair(ErrorCode::kUnavailable, HasSubstr("no JSON")));
  EXPECT_THAT(Failure(200, kEvents.substr(0, kEvents.size() - 14)),
              Pair(ErrorCode::kUnavailable, "the server broke its answer off"));
}

}  // namespace
}  // namespace outrider::cli
