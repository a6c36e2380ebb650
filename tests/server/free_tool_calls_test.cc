// Tool calls that may come, with the bundled model and speculation: arguments of strict tools are
// what their schemas allow, tools that are not allowed are not called, and beside a format of the
// answer calls can come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "tests/sanitized.h"
#include "tests/server/model_server.h"
#include "tests/server/tool_call_checks.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

const Tokenizer& WithMarks() {
  static const Tokenizer tokenizer = TokenizerWithMarks();
  return tokenizer;
}

// What begins a call, as a token of that tokenizer.
std::string BeginToken(const char* format) {
  const ToolFormat& tools = *ChooseOutputFormat(format, "none", "", "").tools;
  return std::to_string(WithMarks().TokenId(std::string(tools.call_begin)).value());
}

json FreeRequest(uint64_t seed) {
  return {{"messages", {{{"role", "user"}, {"content", "The rain " + std::to_string(seed)}}}},
          {"tools", json::parse(kForcedTools)},
          {"max_tokens", 300},
          {"temperature", 1.3},
          {"seed", seed}};
}

constexpr uint64_t kStrictSeeds = kSanitized ? 2 : 4;

class StrictToolsTest : public testing::TestWithParam<const char*> {};

TEST_P(StrictToolsTest, ArgumentsFollowTheSchemaOnceACallBegins) {
  spdlog::default_logger();
  const ModelServer server(DrafterKind::kChain, GetParam(), WithMarks());
  const ModelServer plain(DrafterKind::kNone, GetParam(), WithMarks());
  size_t num_calls = 0;
  for (uint64_t seed = 0; seed < kStrictSeeds; ++seed) {
    json request = FreeRequest(seed);
    for (json& tool : request["tools"]) tool["function"]["strict"] = true;
    // The model would never call by itself.
    request["logit_bias"] = {{BeginToken(GetParam()), 30}};
    const json message = MessageOf(server, request, false);
    EXPECT_EQ(MessageOf(server, request, true), message);
    EXPECT_EQ(MessageOf(plain, request, false), message) << "speculation changes nothing";
    json calls = message.value("tool_calls", json::array());
    if (message["finish_reason"] == "length" && !calls.empty()) calls.erase(calls.size() - 1);
    for (const json& call : calls) {
      EXPECT_EQ(Problem(call["function"]["name"], call["function"]["arguments"]), "") << call;
    }
    num_calls += calls.size();
  }
  EXPECT_GT(num_calls, 0U);
  EXPECT_GT(server.Counters().speculation.num_accepted_tokens, 0);
}

// Without the word, nothing is said of arguments: what the model writes is read as it is.
TEST_P(StrictToolsTest, OtherToolsAreFree) {
  const ModelServer server(DrafterKind::kChain, GetParam(), WithMarks());
  size_t num_wrong = 0;
  for (uint64_t seed = 0; seed < 6 && num_wrong == 0; ++seed) {
    json request = FreeRequest(seed);
    request["tools"][1]["function"]["strict"] = true;  // so that calls are of these tools
    request["logit_bias"] = {{BeginToken(GetParam()), 30}};
    const json message = MessageOf(server, request, false);
    for (const json& call : message.value("tool_calls", json::array())) {
      const std::string name = call["function"]["name"];
      EXPECT_THAT(name, AnyOf("search", "now", "set.level"));
      const std::string problem = Problem(name, call["function"]["arguments"]);
      if (name == "now" && message["finish_reason"] != "length") {
        EXPECT_EQ(problem, "") << call;
      }
      if (!problem.empty()) ++num_wrong;
    }
  }
  EXPECT_GT(num_wrong, 0U);
}

TEST_P(StrictToolsTest, OnlyAllowedToolsAreCalled) {
  const ModelServer server(DrafterKind::kChain, GetParam(), WithMarks());
  const json now = {{"type", "function"}, {"function", {{"name", "now"}}}};
  size_t num_calls = 0;
  for (uint64_t seed = 0; seed < kStrictSeeds; ++seed) {
    json request = FreeRequest(seed);
    request["tool_choice"] = {{"type", "allowed_tools"},
                              {"allowed_tools", {{"mode", "auto"}, {"tools", {now}}}}};
    request["logit_bias"] = {{BeginToken(GetParam()), 30}};
    json calls = MessageOf(server, request, false).value("tool_calls", json::array());
    for (const json& call : calls) EXPECT_EQ(call["function"]["name"], "now");
    num_calls += calls.size();
    // One of these has to be called.
    request.erase("logit_bias");
    request["tool_choice"]["allowed_tools"]["mode"] = "required";
    ExpectCalls(MessageOf(server, request, false), {"now"}, 99);
  }
  EXPECT_GT(num_calls, 0U);
}

INSTANTIATE_TEST_SUITE_P(Formats, StrictToolsTest,
                         testing::Values("deepseek_v3", "deepseek_v31", "kimi_k2", "glm45",
                                         "glm47"),
                         [](const auto& test) { return std::string(test.param); });

const json kOneOfTwoWords = {{"choice", {"yes", "no"}}};

// The format is of an answer in text; a call is another kind of answer.
TEST(FreeToolCallsTest, BesideAFormatThereMayBeCalls) {
  for (const char* format : {"glm47", "deepseek_v3", "deepseek_v4"}) {
    const ModelServer server(DrafterKind::kChain, format, WithMarks());
    const ModelServer plain(DrafterKind::kNone, format, WithMarks());
    const json object = {
        {"type", "json_schema"},
        {"json_schema",
         {{"name", "x"},
          {"schema",
           {{"type", "object"},
            {"properties", {{"n", {{"type", "integer"}, {"maximum", 9}, {"minimum", 0}}}}},
            {"required", {"n"}}}}}}};
    for (uint64_t seed = 0; seed < 3; ++seed) {
      json request = FreeRequest(seed);
      request["max_tokens"] = 800;
      request["response_format"] = object;
      request["parallel_tool_calls"] = false;
      const json message = MessageOf(server, request, false);
      EXPECT_EQ(MessageOf(plain, request, false), message);
      if (message["finish_reason"] == "tool_calls") {
        ExpectCalls(message, {"search", "now", "set.level"}, 1);
      } else {
        EXPECT_EQ(message["finish_reason"], "stop") << message;
        EXPECT_EQ(json::parse(message["content"].get<std::string>()).size(), 1U) << message;
      }
    }
    // Either of the two can be drawn.
    json request = FreeRequest(1);
    request["max_tokens"] = 800;
    request["structured_outputs"] = kOneOfTwoWords;
    request["parallel_tool_calls"] = false;
    const std::string y = std::to_string(WithMarks().Encode("y", false)[0]);
    const std::string n = std::to_string(WithMarks().Encode("n", false)[0]);
    request["logit_bias"] = {{y, 100}, {n, 100}};
    EXPECT_THAT(MessageOf(server, request, false)["content"], AnyOf("yes", "no"));
    request["logit_bias"] = {{y, -100}, {n, -100}};
    const json yes = std::to_string(WithMarks().Encode("yes", false)[0]);
    const json no = std::to_string(WithMarks().Encode("no", false)[0]);
    request["logit_bias"][yes.get<std::string>()] = -100;
    request["logit_bias"][no.get<std::string>()] = -100;
    ExpectCalls(MessageOf(server, request, false), {"search", "now", "set.level"}, 1);
  }
}

TEST(FreeToolCallsTest, AForcedCallGoesBeforeAFormat) {
  const ModelServer server(DrafterKind::kChain, "glm47", WithMarks());
  json request = FreeRequest(1);
  request["max_tokens"] = 600;
  request["response_format"] = {{"type", "json_object"}};
  request["tool_choice"] = "required";
  request["parallel_tool_calls"] = false;
  ExpectCalls(MessageOf(server, request, false), {"search", "now", "set.level"}, 1);
  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "now"}}}};
  ExpectCalls(MessageOf(server, request, false), {"now"}, 1);
}

// What is wrong with a format is said as without tools.
TEST(FreeToolCallsTest, ErrorsNameTheField) {
  const ModelServer server(DrafterKind::kNone, "glm47", WithMarks());
  json request = FreeRequest(0);
  request["structured_outputs"] = {{"regex", "a("}};
  ClientResponse response = server.Post(request);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body)["error"]["param"], "structured_outputs.regex");
  request.erase("structured_outputs");
  request["tools"][0]["function"]["strict"] = true;
  request["tools"][0]["function"]["parameters"]["properties"]["query"]["not"] = {{"const", "x"}};
  response = server.Post(request);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("the parameters of \\\"search\\\""));
}

}  // namespace
}  // namespace outrider
