// Tool calls that must come, with the bundled model and speculation, in every known format:
// whatever is drawn, the answer is calls of offered tools with arguments that their schemas allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "tests/sanitized.h"
#include "tests/server/model_server.h"
#include "tests/server/tool_call_checks.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json ForcedRequest(uint64_t seed, json tool_choice) {
  return {
      {"messages", {{{"role", "user"}, {"content", "The rain in Spain " + std::to_string(seed)}}}},
      {"tools", json::parse(kForcedTools)},
      {"tool_choice", std::move(tool_choice)},
      {"max_tokens", 400},
      {"temperature", seed % 3 == 0 ? 0.0 : 1.3},
      {"seed", seed}};
}

constexpr uint64_t kSeeds = kSanitized ? 1 : 2;
constexpr uint64_t kMostSeeds = 30;

class ForcedToolCallsTest : public testing::TestWithParam<const char*> {
 protected:
  // DeepSeek-V4's marks are long where no token is within them.
  static json RequestOf(uint64_t seed, json tool_choice) {
    json request = ForcedRequest(seed, std::move(tool_choice));
    if (std::string_view(GetParam()).starts_with("deepseek_v")) request["max_tokens"] = 800;
    return request;
  }
};

TEST_P(ForcedToolCallsTest, WhateverIsDrawn) {
  static const Tokenizer with_marks = TokenizerWithMarks();
  spdlog::default_logger();  // before two servers' threads share it: spdlog knows no sanitizer
  for (const Tokenizer* tokenizer : {&BundledTokenizer(), &with_marks}) {
    const ModelServer server(DrafterKind::kChain, GetParam(), *tokenizer);
    const ModelServer plain(DrafterKind::kNone, GetParam(), *tokenizer);
    const auto accepted = [&] { return server.Counters().speculation.num_accepted_tokens; };
    // The calls of one seed can be so short that no draft is accepted: then more seeds.
    for (uint64_t seed = 0; seed < kSeeds || (accepted() == 0 && seed < kMostSeeds); ++seed) {
      json request = RequestOf(seed, "required");
      request["parallel_tool_calls"] = seed % 2 == 0;
      const json message = MessageOf(server, request, false);
      ExpectCalls(message, {"search", "now", "set.level"}, seed % 2 == 0 ? 99 : 1);
      EXPECT_EQ(MessageOf(server, request, true), message);
      EXPECT_EQ(MessageOf(plain, request, false), message);
      request = RequestOf(seed, {{"type", "function"}, {"function", {{"name", "search"}}}});
      const json named = MessageOf(server, request, seed % 2 == 0);
      ExpectCalls(named, {"search"}, 1);
      EXPECT_EQ(MessageOf(plain, request, false), named);
    }
    EXPECT_GT(accepted(), 0) << "no draft was accepted in the calls of " << kMostSeeds << " seeds";
    EXPECT_EQ(plain.Counters().speculation.num_draft_tokens, 0);
    if (kSanitized) break;  // one tokenizer is enough
  }
}

TEST_P(ForcedToolCallsTest, InTheResponsesApi) {
  const ModelServer server(DrafterKind::kChain, GetParam());
  const json tools = json::parse(kForcedTools);
  json request = {{"input", "hi"}, {"tool_choice", "required"}, {"tools", json::array()}};
  for (json tool : tools) {
    json flat = tool["function"];
    flat["type"] = "function";
    request["tools"].push_back(flat);
  }
  request["max_output_tokens"] = 700;
  request["parallel_tool_calls"] = false;
  const ClientResponse response = server.Post(request, "/v1/responses");
  ASSERT_EQ(response.status, 200) << response.body;
  const json output = json::parse(response.body)["output"];
  ASSERT_EQ(output.size(), 1U) << output;
  EXPECT_EQ(output[0]["type"], "function_call");
  EXPECT_EQ(Problem(output[0]["name"], output[0]["arguments"]), "");
}

INSTANTIATE_TEST_SUITE_P(Formats, ForcedToolCallsTest,
                         testing::Values("deepseek_v3", "deepseek_v31", "deepseek_v32",
                                         "deepseek_v4", "kimi_k2", "glm45", "glm47", "ling3",
                                         "step3p5"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ForcedToolCallsTest, ParametersThatAreNoObjectAreRefused) {
  const ModelServer server(DrafterKind::kNone, "glm47");
  for (const char* parameters :
       {R"({"type": "string"})", R"({"anyOf": [{"type": "object"}, {"type": "null"}]})",
        R"({"enum": [{}]})"}) {
    json request = ForcedRequest(0, "required");
    request["tools"][1]["function"]["parameters"] = json::parse(parameters);
    const ClientResponse response = server.Post(request);
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_THAT(response.body, HasSubstr("the parameters of \\\"now\\\" must be a schema"));
  }
}

}  // namespace
}  // namespace outrider
