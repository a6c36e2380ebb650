// What the bundled model writes, through the API: answers that begin with thinking, special tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/model_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// The bundled vocabulary.
constexpr const char* kEosId = "1";
constexpr const char* kAssistantId = "3";
constexpr const char* kThinkEndId = "5";

// The prompt ends with the message, which is the assistant's: it may have begun to think.
json ChatRequest(const std::string& message, uint64_t seed) {
  return {{"messages", {{{"role", "assistant"}, {"content", message}}}},
          {"max_tokens", 300},
          {"temperature", 1.5},
          {"seed", seed}};
}

json ChoiceOf(const ModelServer& server, const json& request) {
  const ClientResponse response = server.Post(request);
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body)["choices"][0];
}

// Answers are of bounded length: all of them come to an end.
const json kYesOrNo = {{"choice", {"yes", "no"}}};

const json kOneTool = json::parse(R"([{"type": "function", "function": {"name": "now",
    "parameters": {"type": "object", "properties": {}}}}])");

// A template whose prompts end with "<think>", and nobody who tells thinking from answers: all of
// the text is the answer.
TEST(ModelOutputTest, WithoutAReasoningParserAllOfTheTextIsConstrained) {
  const ModelServer server(DrafterKind::kChain);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    json request = ChatRequest("The rain <think>", seed);
    request["structured_outputs"] = kYesOrNo;
    const json choice = ChoiceOf(server, request);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_THAT(choice["message"]["content"], AnyOf("yes", "no"));
  }
  const ModelServer caller(DrafterKind::kChain, "deepseek_v31");
  json request = ChatRequest("The rain <think>", 1);
  request["tools"] = kOneTool;
  request["tool_choice"] = "required";
  request["parallel_tool_calls"] = false;
  const json choice = ChoiceOf(caller, request);
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
}

TEST(ModelOutputTest, NothingEndsTheThinkingButItsEnd) {
  for (const DrafterKind drafter : {DrafterKind::kChain, DrafterKind::kNone}) {
    const ModelServer server(drafter, "deepseek_v31", BundledTokenizer(), "deepseek_r1");
    json request = ChatRequest("The rain <think>", 7);
    request["structured_outputs"] = kYesOrNo;
    // However much the model wants to end, it cannot while it thinks.
    request["logit_bias"] = {{kEosId, 100}};
    request["max_tokens"] = 20;
    json choice = ChoiceOf(server, request);
    EXPECT_EQ(choice["finish_reason"], "length") << choice;
    EXPECT_NE(choice["message"]["reasoning"], nullptr) << choice;
    // The end of the thinking is a special token here, and known for what it is all the same.
    request["max_tokens"] = 300;
    request["logit_bias"][kThinkEndId] = 50;
    choice = ChoiceOf(server, request);
    EXPECT_EQ(choice["finish_reason"], "stop") << choice;
    EXPECT_THAT(choice["message"]["content"], AnyOf("yes", "no"));
    request.erase("structured_outputs");
    request["tools"] = kOneTool;
    request["tool_choice"] = "required";
    request["parallel_tool_calls"] = false;
    choice = ChoiceOf(server, request);
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    EXPECT_EQ(choice["message"]["content"], nullptr) << choice;
  }
}

// Under speculation, too: the same text and the same number of tokens.
TEST(ModelOutputTest, StopStringsAreAboutTheAnswer) {
  const ModelServer server(DrafterKind::kChain, "deepseek_v31", BundledTokenizer(), "deepseek_r1");
  const ModelServer plain(DrafterKind::kNone, "deepseek_v31", BundledTokenizer(), "deepseek_r1");
  for (uint64_t seed = 0; seed < 3; ++seed) {
    json thinking = ChatRequest("The rain <think>", seed);
    thinking["max_tokens"] = 60;
    thinking["stop"] = {" ", "e"};
    thinking["logit_bias"] = {{kThinkEndId, -100}};
    thinking["ignore_eos"] = true;
    json choice = ChoiceOf(server, thinking);
    EXPECT_EQ(choice["finish_reason"], "length") << choice;
    EXPECT_THAT(choice["message"]["reasoning"].get<std::string>(), HasSubstr(" "));
    EXPECT_EQ(choice, ChoiceOf(plain, thinking));
    json answer = ChatRequest("The rain", seed);
    answer["stop"] = {" ", "e"};
    answer["ignore_eos"] = true;
    choice = ChoiceOf(server, answer);
    EXPECT_EQ(choice["finish_reason"], "stop") << choice;
    EXPECT_THAT(choice["stop_reason"], AnyOf(" ", "e"));
    EXPECT_THAT(choice["message"]["content"].get<std::string>(), Not(HasSubstr(" ")));
    EXPECT_EQ(choice, ChoiceOf(plain, answer));
  }
}

// Tools had kept all special tokens in the text, for the marks around calls.
TEST(ModelOutputTest, SpecialTokensAreNoContentWithToolsEither) {
  const std::string assistant(BundledTokenizer().TokenBytes(std::stoi(kAssistantId)));
  ASSERT_TRUE(BundledTokenizer().IsSpecial(std::stoi(kAssistantId)));
  const ModelServer server(DrafterKind::kChain, "deepseek_v31", BundledTokenizer(), "deepseek_r1");
  json request = ChatRequest("The rain", 3);
  request["tools"] = kOneTool;
  request["logit_bias"] = {{kAssistantId, 20}};
  std::string all;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    request["seed"] = seed;
    request["skip_special_tokens"] = true;
    const json message = ChoiceOf(server, request)["message"];
    EXPECT_THAT(message.dump(), Not(HasSubstr(assistant))) << message;
    request["skip_special_tokens"] = false;
    all += ChoiceOf(server, request)["message"].dump();
  }
  EXPECT_THAT(all, HasSubstr(assistant)) << "or nothing was to be left out";
}

}  // namespace
}  // namespace outrider
