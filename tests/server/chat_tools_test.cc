// Reasoning and tool calls in chat answers, over loopback. The stub engine repeats the last
// message, which here is what a model would write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/grammar/bundled_grammars.h"
#include "tests/server/accumulated_message.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ServerOptions OptionsFor(const char* parser) {
  ServerOptions options = TestServerOptions();
  options.output_format = ChooseOutputFormat(parser, "deepseek_r1", "", "");
  return options;
}

const json kTools = json::parse(R"([{"type":"function","function":{"name":"search","parameters":{
    "type":"object","properties":{"query":{"type":"string"},"count":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"now"}}])");

constexpr const char* kGlm =
    "<think>\nHm\n</think>\nI look\n<tool_call>search\n<arg_key>query</arg_key>\n"
    "<arg_value>\"rain\"</arg_value>\n<arg_key>count</arg_key>\n<arg_value>5</arg_value>\n"
    "</tool_call>\n<tool_call>now\n</tool_call>\n";

// The stub stops at '.', and shows it.
json Request(const std::string& text, bool tools) {
  json request = {{"messages", {{{"role", "user"}, {"content", text + "."}}}}, {"max_tokens", 999}};
  if (tools) request["tools"] = kTools;
  return request;
}

json Post(HttpClient& client, const json& request) {
  const ClientResponse response = client.Post("/v1/chat/completions", request.dump());
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body);
}

TEST(ChatToolsTest, AMessageHasReasoningContentAndCalls) {
  RunningServer running({.tokens_per_step = 5}, OptionsFor("glm45"));
  HttpClient client(running.port());
  const json body = Post(client, Request(kGlm, true));
  const json& choice = body["choices"][0];
  // The stub's '.' comes after the calls.
  EXPECT_EQ(choice["message"]["content"], "I look\n.");
  EXPECT_EQ(choice["message"]["reasoning"], "Hm");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Hm");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"]["name"], "search");
  EXPECT_EQ(json::parse(calls[0]["function"]["arguments"].get<std::string>()),
            (json{{"query", "\"rain\""}, {"count", 5}}));
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_TRUE(running.engine.last_sampling().skip_special_tokens);
  // All of "<think>\nHm\n</think>".
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 7 + 4 + 8);
}

// However many tokens come at once.
TEST(ChatToolsTest, AStreamSaysTheSame) {
  for (const char* parser : {"glm45", "kimi_k2", "deepseek_v3"}) {
    std::string text = kGlm;
    if (parser == std::string("kimi_k2")) {
      text =
          "<think>Hm<|tool_calls_section_begin|><|tool_call_begin|>search:0"
          "<|tool_call_argument_begin|>{\"query\": \"é\"}<|tool_call_end|>"
          "<|tool_calls_section_end|>";
    } else if (parser == std::string("deepseek_v3")) {
      text =
          "Yes <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n"
          "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    }
    for (const int32_t tokens : {1, 3, 16, 1000}) {
      RunningServer running({.tokens_per_step = tokens}, OptionsFor(parser));
      HttpClient client(running.port());
      json request = Request(text, true);
      const json whole = Post(client, request);
      json expected = whole["choices"][0]["message"];
      expected.erase("role");
      for (json& call : expected["tool_calls"]) {
        if (parser != std::string("kimi_k2")) call["id"] = "any";
      }
      expected["finish_reason"] = whole["choices"][0]["finish_reason"];
      expected["usage"] = whole["usage"];
      request["stream"] = true;
      request["stream_options"] = {{"include_usage", true}};
      json streamed =
          Accumulate(EventsOf(client.Post("/v1/chat/completions", request.dump()).body));
      for (json& call : streamed["tool_calls"]) {
        if (parser != std::string("kimi_k2")) call["id"] = "any";
      }
      EXPECT_EQ(streamed, expected) << parser << " " << tokens;
    }
  }
}

TEST(ChatToolsTest, IdsAreTheModelsWhereItGivesThem) {
  RunningServer running({}, OptionsFor("kimi_k2"));
  HttpClient client(running.port());
  const json body = Post(client, Request("<|tool_call_begin|>now:3"
                                         "<|tool_call_argument_begin|>{}<|tool_call_end|>",
                                         true));
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"][0]["id"], "now:3");
}

TEST(ChatToolsTest, WithoutToolsCallsAreContent) {
  RunningServer running({}, OptionsFor("glm45"));
  HttpClient client(running.port());
  json request = Request("<tool_call>now\n</tool_call>", false);
  const json expected = {{"role", "assistant"}, {"content", "<tool_call>now\n</tool_call>."}};
  EXPECT_EQ(Post(client, request)["choices"][0]["message"], expected);
  request["tools"] = kTools;
  request["tool_choice"] = "none";
  const json body = Post(client, request);
  EXPECT_EQ(body["choices"][0]["message"], expected);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(running.engine.last_sampling().skip_special_tokens);
}

TEST(ChatToolsTest, ACallThatIsCutOffEndsByLength) {
  RunningServer running({}, OptionsFor("deepseek_v31"));
  HttpClient client(running.port());
  const std::string text = "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": 1}";
  json request = Request(text, true);
  request["max_tokens"] = text.size() - 3;
  const json choice = Post(client, request)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":");
}

TEST(ChatToolsTest, ReasoningMayBeLeftOut) {
  RunningServer running({}, OptionsFor("none"));
  HttpClient client(running.port());
  json request = Request("<think>Hm</think>Yes", false);
  request["include_reasoning"] = false;
  const json body = Post(client, request);
  EXPECT_EQ(body["choices"][0]["message"], (json{{"role", "assistant"}, {"content", "Yes."}}));
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 17);
}

// The stub's chat template shows the last message as the whole prompt.
TEST(ChatToolsTest, APromptMayEndInReasoning) {
  RunningServer running({}, OptionsFor("none"));
  HttpClient client(running.port());
  json request = {{"messages", {{{"role", "assistant"}, {"content", "a.<think>\n"}}}},
                  {"max_tokens", 99}};
  EXPECT_EQ(Post(client, request)["choices"][0]["message"]["reasoning"], "a.");
  request["messages"][0]["content"] = "<think>a.b";
  EXPECT_EQ(Post(client, request)["choices"][0]["message"]["reasoning"], "a.");
  request["messages"][0]["content"] = "<think>a</think>b.";
  EXPECT_EQ(Post(client, request)["choices"][0]["message"]["reasoning"], "a");
  request["continue_final_message"] = true;
  request["messages"][0]["content"] = "k<think>a.b";
  EXPECT_EQ(Post(client, request)["choices"][0]["message"]["reasoning"], "k<think>a.");
}

// Prompts of these requests end with what a user wrote: that says nothing of the answer.
TEST(ChatToolsTest, WhatAUserWritesDoesNotOpenTheReasoning) {
  RunningServer running({}, OptionsFor("none"));
  HttpClient client(running.port());
  const auto message_of = [&](const json& request) {
    return Post(client, request)["choices"][0]["message"];
  };
  json request = {{"messages", {{{"role", "user"}, {"content", "a.<think>"}}}}, {"max_tokens", 99}};
  EXPECT_EQ(message_of(request)["content"], "a.");
  request["add_generation_prompt"] = false;
  EXPECT_EQ(message_of(request)["content"], "a.");
  request["continue_final_message"] = true;
  EXPECT_EQ(message_of(request)["content"], "a.");
  request = {{"messages",
              {{{"role", "user"}, {"content", "What does <think> do?"}},
               {{"role", "assistant"}, {"content", "It begins."}}}},
             {"continue_final_message", true},
             {"max_tokens", 99}};
  EXPECT_EQ(message_of(request)["content"], "It begins.");
  EXPECT_EQ(message_of(request).count("reasoning"), 0);
  request["messages"][0] = {{"role", "assistant"}, {"content", "<think>open"}};
  EXPECT_EQ(message_of(request)["content"], "It begins.");
  request["messages"][1]["content"] = "<think>It begins.";
  EXPECT_EQ(message_of(request)["reasoning"], "It begins.");
}

// A grammar begins where the answer does: from the first token on, whatever a user wrote.
TEST(ChatToolsTest, WhatAUserWritesSwitchesNoConstraintOff) {
  GrammarCompiler grammars(BundledTokenizer(), kBundledVocab, {});
  RunningServer running({}, OptionsFor("none"), &grammars);
  HttpClient client(running.port());
  json request = {{"messages",
                   {{{"role", "user"}, {"content", "What does <think> do?"}},
                    {{"role", "assistant"}, {"content", "It"}}}},
                  {"continue_final_message", true},
                  {"response_format", {{"type", "json_object"}}},
                  {"max_tokens", 5}};
  Post(client, request);
  EXPECT_TRUE(running.engine.last_grammar().start_after.empty());
  request["messages"][1]["content"] = "<think>It";
  Post(client, request);
  EXPECT_FALSE(running.engine.last_grammar().start_after.empty());
}

// Tokens of hidden reasoning are hidden too.
TEST(ChatToolsTest, HiddenReasoningHasNoTokens) {
  for (const int32_t tokens : {1, 3, 16, 1000}) {
    RunningServer running({.tokens_per_step = tokens}, OptionsFor("glm45"));
    HttpClient client(running.port());
    const std::string call = "<tool_call>now\n</tool_call>";
    json request = Request("<think>Hm</think>Yes" + call + "<think>b</think>" + call, true);
    request["include_reasoning"] = false;
    request["return_token_ids"] = true;
    request["logprobs"] = true;
    const json choice = Post(client, request)["choices"][0];
    std::string spelled;
    for (const json& id : choice["token_ids"]) spelled += static_cast<char>(id.get<int>());
    EXPECT_EQ(spelled, "Yes" + call + call + ".");
    ASSERT_EQ(choice["logprobs"]["content"].size(), spelled.size());
    EXPECT_EQ(choice["logprobs"]["content"][0]["token"], "Y");
    request["stream"] = true;
    std::string streamed;
    size_t logprobs = 0;
    for (const std::string& event :
         EventsOf(client.Post("/v1/chat/completions", request.dump()).body)) {
      if (event == "[DONE]") break;
      const json chunk = json::parse(event);
      for (const json& part : chunk["choices"]) {
        for (const json& id : part.value("token_ids", json::array())) {
          streamed += static_cast<char>(id.get<int>());
        }
        if (part["logprobs"].is_object()) logprobs += part["logprobs"]["content"].size();
      }
    }
    EXPECT_EQ(streamed, spelled);
    EXPECT_EQ(logprobs, spelled.size());
  }
}

TEST(ChatToolsTest, AnEndWithinACallIsNoCall) {
  RunningServer running({}, OptionsFor("glm47"));
  HttpClient client(running.port());
  const std::string begin = "<tool_call>search<arg_key>query</arg_key><arg_value>x";
  // The stub stops at '.', as a model that ends by itself.
  json choice = Post(client, Request(begin, true))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"query\": \"x.");
  choice = Post(client, Request(begin + "</arg_value>", true))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"query\": \"x\"}");
  json request = Request(begin + "</arg_value>", true);
  request["max_tokens"] = (begin + "</arg_value>").size();
  choice = Post(client, request)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"query\": \"x\"");
}

TEST(ChatToolsTest, RefusesToolsThatNobodyWouldSee) {
  RunningServer running({}, OptionsFor("none"));
  HttpClient client(running.port());
  const ClientResponse response = client.Post("/v1/chat/completions", Request("now", true).dump());
  EXPECT_EQ(response.status, 400);
  const json error = json::parse(response.body)["error"];
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--tool-call-parser"));
}

}  // namespace
}  // namespace outrider
