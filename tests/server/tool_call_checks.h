// Tools with parameters of many kinds, and whether calls of them are what their schemas allow.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/server/accumulated_message.h"
#include "tests/server/model_server.h"

namespace outrider {

// Names in an order that is not the alphabet's; a string beside other types; a definition.
inline const char* const kForcedTools = R"([
  {"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "$defs": {"day": {"type": "object", "properties": {
      "month": {"type": "integer", "minimum": 1, "maximum": 12}}, "required": ["month"]}},
    "properties": {
      "query": {"type": "string", "minLength": 1, "maxLength": 12},
      "count": {"type": "integer", "minimum": 1, "maximum": 50},
      "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
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
inline Tokenizer TokenizerWithMarks() {
  std::ifstream file(TinyModelDirectory() / "tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  nlohmann::json spec = nlohmann::json::parse(text.str());
  std::set<std::string> marks = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  for (const char* name : {"deepseek_v3", "kimi_k2", "glm45", "step3p5"}) {
    const ToolFormat& tools = *ChooseOutputFormat(name, "none", "", "").tools;
    marks.insert({std::string(tools.section_begin), std::string(tools.section_end),
                  std::string(tools.call_begin), std::string(tools.call_end),
                  std::string(tools.type_end), std::string(tools.header_end)});
  }
  for (const char* mark : {"\n", ">", "<function=", "</function>"}) marks.erase(mark);  // no tokens
  // DeepSeek-V4's marks are text around one token.
  marks.insert(std::string(ChooseOutputFormat("deepseek_v4", "none", "", "").tools->inner_mark));
  int id = BundledTokenizer().vocab_size();
  for (const std::string& mark : marks) {
    if (mark.empty()) continue;
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
inline nlohmann::json MessageOf(const ModelServer& server, nlohmann::json request, bool stream) {
  request["stream"] = stream;
  const ClientResponse response = server.Post(request);
  EXPECT_EQ(response.status, 200) << response.body;
  nlohmann::json message;
  if (stream) {
    message = Accumulate(EventsOf(response.body));
  } else {
    const nlohmann::json choice = nlohmann::json::parse(response.body)["choices"][0];
    message = choice["message"];
    message.erase("role");
    message["finish_reason"] = choice["finish_reason"];
  }
  for (nlohmann::json& call : message["tool_calls"]) {
    if (call["id"].get<std::string>().starts_with("call_")) call.erase("id");
  }
  if (message["content"] == "") message["content"] = nullptr;  // a stream begins with ""
  return message;
}

inline bool Matches(const nlohmann::json& value, bool is_type, const char* what,
                    std::string* problem) {
  if (!is_type) *problem += std::string(what) + " is " + value.dump() + "; ";
  return is_type;
}

// What is wrong with the arguments of a call; "" when they are what the tool's schema allows.
inline std::string Problem(const std::string& name, const std::string& text) {
  std::string problem;
  if (!nlohmann::json::accept(text)) return "no JSON: " + text;
  const nlohmann::json arguments = nlohmann::json::parse(text);
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
    const auto characters = [](const nlohmann::json& value) {
      const auto string = value.get<std::string>();
      return std::count_if(string.begin(), string.end(), [](char c) { return (c & 0xC0) != 0x80; });
    };
    check(
        "query",
        [&](const nlohmann::json& v) {
          return v.is_string() && characters(v) >= 1 && characters(v) <= 12;
        },
        true);
    check(
        "count", [](const nlohmann::json& v) { return v.is_number_integer() && v >= 1 && v <= 50; },
        true);
    check(
        "code",
        [](const nlohmann::json& v) {
          const std::string code = v.is_string() ? v.get<std::string>() : "";
          return code.size() == 6 && code[2] == '-' && isupper(code[0]) && isdigit(code[5]);
        },
        false);
    check(
        "unit", [](const nlohmann::json& v) { return v == "metre" || v == "5" || v == "inch"; },
        true);
    check(
        "note",
        [&](const nlohmann::json& v) {
          return v.is_null() || (v.is_string() && characters(v) <= 6);
        },
        true);
    check(
        "when",
        [](const nlohmann::json& v) {
          return v.is_object() && v.size() == 1 && v["month"] >= 1 && v["month"] <= 12;
        },
        false);
    check(
        "tags",
        [](const nlohmann::json& v) {
          return v.is_array() && v.size() <= 3 &&
                 std::all_of(v.begin(), v.end(),
                             [](const nlohmann::json& x) { return x.is_boolean(); });
        },
        false);
  } else if (name == "set.level") {
    known = {"level"};
    check(
        "level", [](const nlohmann::json& v) { return v.is_number_integer() && v >= -9 && v <= 9; },
        true);
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
inline void ExpectCalls(nlohmann::json message, const std::set<std::string>& tools, size_t most) {
  ASSERT_GE(message["tool_calls"].size(), 1U) << message;
  if (most > 1 && message["finish_reason"] == "length") {
    message["tool_calls"].erase(message["tool_calls"].size() - 1);
  } else {
    EXPECT_EQ(message["finish_reason"], "tool_calls") << message;
    EXPECT_EQ(message["content"], nullptr) << message;
  }
  EXPECT_LE(message["tool_calls"].size(), most) << message;
  for (const nlohmann::json& call : message["tool_calls"]) {
    const std::string name = call["function"]["name"];
    EXPECT_TRUE(tools.contains(name)) << name;
    EXPECT_EQ(Problem(name, call["function"]["arguments"]), "") << call;
  }
}

}  // namespace outrider
