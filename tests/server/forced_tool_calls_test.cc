// Tool calls that must come, with the bundled model and speculation, in every known format:
// whatever is drawn, the answer is calls of offered tools with arguments that their schemas allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/sanitized.h"
#include "tests/server/accumulated_message.h"
#include "tests/server/model_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Names in an order that is not the alphabet's; a string beside other types; a definition.
const char* const kForcedTools = R"([
  {"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "$defs": {"day": {"type": "object", "properties": {
      "month": {"type": "integer", "minimum": 1, "maximum": 12}}, "required": ["month"]}},
    "properties": {
      "query": {"type": "string", "minLength": 1, "maxLength": 12},
      "count": {"type": "integer", "minimum": 1, "maximum": 50},
      "code": {"type": "string", "pattern": "[A-Z]{2}-[0-9]{3}"},
      "unit": {"enum": ["metre", "5", "inch"]},
      "note": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "null"}]},
      "when": {"$ref": "#/$defs/day"},
      "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["query", "count", "unit", "note"]}}},
  {"type": "function", "function": {"name": "now", "parameters": {
    "type": "object", "properties": {}}}},
  {"type": "function", "function": {"name": "set.level", "parameters": {
    "properties": {"level": {"type": "integer", "minimum": -9, "maximum": 9}}, "required": ["level"]}}}])";

// The bundled tokenizer with the marks of all formats added, at ids that the model has spare.
Tokenizer TokenizerWithMarks() {
  std::ifstream file(TinyModelDirectory() / "tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  json spec = json::parse(text.str());
  std::set<std::string> marks = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  for (const char* name : {"deepseek_v3", "kimi_k2", "glm45"}) {
    const ToolFormat& tools = *ChooseOutputFormat(name, "none", "", "").tools;
    marks.insert({std::string(tools.section_begin), std::string(tools.section_end),
                  std::string(tools.call_begin), std::string(tools.call_end),
                  std::string(tools.type_end), std::string(tools.header_end)});
  }
  // DeepSeek-V4's marks are text around one token.
  marks.insert(std::string(ChooseOutputFormat("deepseek_v4", "none", "", "").tools->inner_mark));
  int id = BundledTokenizer().vocab_size();
  for (const std::string& mark : marks) {
    if (mark.empty() || mark == "\n") continue;
    spec["added_tokens"].push_back({{"id", id++},
                                    {"content", mark},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", false}});
  }
  return Tokenizer::FromJson(spec.dump(), "test");
}

// The message with its finish_reason; ids that the server made up are left out.
json MessageOf(const ModelServer& server, json request, bool stream) {
  request["stream"] = stream;
  const ClientResponse response = server.Post(request);
  EXPECT_EQ(response.status, 200) << response.body;
  json message;
  if (stream) {
    message = Accumulate(EventsOf(response.body));
  } else {
    const json choice = json::parse(response.body)["choices"][0];
    message = choice["message"];
    message.erase("role");
    message["finish_reason"] = choice["finish_reason"];
  }
  for (json& call : message["tool_calls"]) {
    if (call["id"].get<std::string>().starts_with("call_")) call.erase("id");
  }
  if (message["content"] == "") message["content"] = nullptr;  // a stream begins with ""
  return message;
}

bool Matches(const json& value, bool is_type, const char* what, std::string* problem) {
  if (!is_type) *problem += std::string(what) + " is " + value.dump() + "; ";
  return is_type;
}

// What is wrong with the arguments of a call; "" when they are what the tool's schema allows.
std::string Problem(const std::string& name, const std::string& text) {
  std::string problem;
  if (!json::accept(text)) return "no JSON: " + text;
  const json arguments = json::parse(text);
  if (!arguments.is_object()) return "no object: " + text;
  const auto check = [&](const char* member, auto is_right, bool required) {
    if (!arguments.contains(member)) {
      if (required) problem += std::string(member) + " is missing; ";
      return;
    }
    Matches(arguments[member], is_right(arguments[member]), member, &problem);
  };
  std::set<std::string> known;
  if (name == "search") {
    known = {"query", "count", "code", "unit", "note", "when", "tags"};
    const auto characters = [](const json& value) {
      const auto string = value.get<std::string>();
      return std::count_if(string.begin(), string.end(), [](char c) { return (c & 0xC0) != 0x80; });
    };
    check(
        "query",
        [&](const json& v) { return v.is_string() && characters(v) >= 1 && characters(v) <= 12; },
        true);
    check("count", [](const json& v) { return v.is_number_integer() && v >= 1 && v <= 50; }, true);
    check(
        "code",
        [](const json& v) {
          const std::string code = v.is_string() ? v.get<std::string>() : "";
          return code.size() == 6 && code[2] == '-' && isupper(code[0]) && isdigit(code[5]);
        },
        false);
    check("unit", [](const json& v) { return v == "metre" || v == "5" || v == "inch"; }, true);
    check(
        "note", [&](const json& v) { return v.is_null() || (v.is_string() && characters(v) <= 6); },
        true);
    check(
        "when",
        [](const json& v) {
          return v.is_object() && v.size() == 1 && v["month"] >= 1 && v["month"] <= 12;
        },
        false);
    check(
        "tags",
        [](const json& v) {
          return v.is_array() && v.size() <= 3 &&
                 std::all_of(v.begin(), v.end(), [](const json& x) { return x.is_boolean(); });
        },
        false);
  } else if (name == "set.level") {
    known = {"level"};
    check("level", [](const json& v) { return v.is_number_integer() && v >= -9 && v <= 9; }, true);
  } else if (name != "now") {
    problem = "no such tool: " + name;
  }
  for (const auto& [member, value] : arguments.items()) {
    if (!known.contains(member)) problem += member + " is too much; ";
  }
  return problem;
}

// Calls of these tools, at most `most`, and nothing else. Where there may be several, the last one
// may be cut off.
void ExpectCalls(json message, const std::set<std::string>& tools, size_t most) {
  ASSERT_GE(message["tool_calls"].size(), 1U) << message;
  if (most > 1 && message["finish_reason"] == "length") {
    message["tool_calls"].erase(message["tool_calls"].size() - 1);
  } else {
    EXPECT_EQ(message["finish_reason"], "tool_calls") << message;
    EXPECT_EQ(message["content"], nullptr) << message;
  }
  EXPECT_LE(message["tool_calls"].size(), most) << message;
  for (const json& call : message["tool_calls"]) {
    const std::string name = call["function"]["name"];
    EXPECT_TRUE(tools.contains(name)) << name;
    EXPECT_EQ(Problem(name, call["function"]["arguments"]), "") << call;
  }
}

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
    if (GetParam() == std::string_view("deepseek_v4")) request["max_tokens"] = 800;
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
                         testing::Values("deepseek_v3", "deepseek_v31", "deepseek_v4", "kimi_k2",
                                         "glm45", "glm47"),
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
