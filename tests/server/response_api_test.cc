// /v1/responses over loopback. The stub engine repeats the input's last message, which here is what
// a model would write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/openai/request.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kText =
    "<think>Hm</think>I look.<tool_call>search\n<arg_key>query</arg_key>\n"
    "<arg_value>rain</arg_value>\n</tool_call>";

const json kResponseTools =
    json::parse(R"([{"type":"function","name":"search","description":"d","strict":true,
    "parameters":{"type":"object","properties":{"query":{"type":"string"}}}}])");

ServerOptions Options() {
  ServerOptions options = TestServerOptions();
  options.output_format = ChooseOutputFormat("glm45", "glm45", "", "");
  return options;
}

// "ignore_eos": the stub would stop at the first '.'.
json Request() {
  return {{"input", kText},
          {"tools", kResponseTools},
          {"ignore_eos", true},
          {"max_output_tokens", std::string(kText).size()},
          {"instructions", "Be kind"},
          {"metadata", {{"a", "b"}}}};
}

TEST(ResponseApiTest, AnswersWithItems) {
  RunningServer running({.tokens_per_step = 7}, Options());
  HttpClient client(running.port());
  const ClientResponse response = client.Post("/v1/responses", Request().dump());
  ASSERT_EQ(response.status, 200) << response.body;
  const json body = json::parse(response.body);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(body["object"], "response");
  // The stub ends by length.
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["instructions"], "Be kind");
  EXPECT_EQ(body["metadata"], (json{{"a", "b"}}));
  EXPECT_EQ(body["tools"], kResponseTools);
  EXPECT_EQ(body["tool_choice"], "auto");
  EXPECT_EQ(body["text"]["format"]["type"], "text");
  const json& output = body["output"];
  ASSERT_EQ(output.size(), 3) << output;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], json::parse(R"([{"type":"reasoning_text","text":"Hm"}])"));
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["content"][0]["type"], "output_text");
  EXPECT_EQ(output[1]["content"][0]["text"], "I look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "search");
  EXPECT_EQ(output[2]["arguments"], R"({"query": "rain"})");
  EXPECT_TRUE(output[2]["call_id"].get<std::string>().starts_with("call_"));
  const json& usage = body["usage"];
  EXPECT_EQ(usage["output_tokens"], std::string(kText).size());
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 17);
  EXPECT_EQ(usage["total_tokens"],
            usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
}

TEST(ResponseApiTest, StreamsTypedEvents) {
  RunningServer running({.tokens_per_step = 7}, Options());
  HttpClient client(running.port());
  json request = Request();
  request["stream"] = true;
  const ClientResponse response = client.Post("/v1/responses", request.dump());
  std::vector<std::string> types;
  std::string text;
  std::string arguments;
  std::string reasoning;
  json last;
  json items = json::array();
  for (const std::string& event : EventsOf(response.body)) {
    last = json::parse(event);
    const std::string type = last["type"];
    EXPECT_THAT(response.body, HasSubstr("event: " + type + "\ndata: {\"type\":\"" + type + "\""));
    EXPECT_EQ(last["sequence_number"], types.empty() ? 0 : last["sequence_number"].get<int>());
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.output_text.delta") text += last["delta"];
    if (type == "response.reasoning_text.delta") reasoning += last["delta"];
    if (type == "response.function_call_arguments.delta") arguments += last["delta"];
    if (type == "response.output_item.done") {
      EXPECT_EQ(last["output_index"], items.size());
      items.push_back(last["item"]);
    }
  }
  EXPECT_THAT(
      types,
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta",
                  "response.reasoning_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.incomplete"));
  EXPECT_EQ(reasoning, "Hm");
  EXPECT_EQ(text, "I look.");
  EXPECT_EQ(arguments, R"({"query": "rain"})");
  EXPECT_EQ(last["response"]["output"], items);
  EXPECT_EQ(items.size(), 3);
}

TEST(ResponseApiTest, AStopIsACompletedResponse) {
  RunningServer running({}, Options());
  HttpClient client(running.port());
  const json body = json::parse(
      client.Post("/v1/responses", R"({"input":[{"role":"user","content":"Yes."}]})").body);
  EXPECT_EQ(body["status"], "completed");
  EXPECT_TRUE(body["incomplete_details"].is_null());
  EXPECT_GE(body["completed_at"].get<int64_t>(), body["created_at"].get<int64_t>());
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Yes.");
}

openai::TokenRequest Parse(const std::string& body) {
  openai::RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_model_len = 50;
  return openai::ParseResponseRequest(body, limits);
}

std::string ErrorOf(const std::string& body) {
  try {
    Parse(body);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ResponseRequestTest, ItemsBecomeMessages) {
  const openai::TokenRequest request = Parse(R"({"instructions":"s","input":[
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"Hm"}]},
      {"type":"message","id":"m","status":"completed","role":"assistant","content":[
        {"type":"output_text","text":"I look","annotations":[],"logprobs":[]}]},
      {"type":"function_call","id":"f","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":""},
      {"type":"function_call_output","call_id":"c1","output":"one"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
      {"role":"assistant","content":"done"},{"role":"developer","content":"t"}]})");
  EXPECT_EQ(request.chat.messages_json,
            R"([{"role":"system","content":"s"},{"role":"user","content":"a\nb"},)"
            R"({"role":"assistant","content":"I look","reasoning_content":"Hm","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},)"
            R"({"role":"tool","tool_call_id":"c1","content":"one"},)"
            R"({"role":"tool","tool_call_id":"c2","content":"two"},)"
            R"({"role":"assistant","content":"done"},{"role":"system","content":"t"}])");
}

TEST(ResponseRequestTest, ReadsItsOwnFields) {
  const openai::TokenRequest request = Parse(
      R"({"input":"hi","max_output_tokens":9,"reasoning":{"effort":"low"},"tool_choice":)"
      R"({"type":"function","name":"f"},"tools":[{"type":"function","name":"f","description":"d",)"
      R"("parameters":{"z":1,"a":2},"strict":null}],"text":{"format":{"type":"text"}}})");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.chat.tools_json,
            R"([{"type":"function","function":{"name":"f","description":"d",)"
            R"("parameters":{"z":1,"a":2}}}])");
  EXPECT_EQ(request.tools.named, "f");
  EXPECT_EQ(json::parse(request.chat.template_arguments_json)["reasoning_effort"], "low");
  EXPECT_FALSE(request.grammar.has_value());
  const openai::TokenRequest constrained = Parse(
      R"({"input":"hi","text":{"format":{"type":"json_schema","name":"n","schema":{"b":1,"a":2}}}})");
  EXPECT_EQ(constrained.grammar->kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(constrained.grammar->text, R"({"b":1,"a":2})");
}

TEST(ResponseRequestTest, RefusesWhatItCannotDo) {
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("input: is missing"));
  EXPECT_THAT(ErrorOf(R"({"input":[]})"), HasSubstr("input: must be a string or an array"));
  EXPECT_THAT(ErrorOf(R"({"input":[{"type":"item_reference","id":"x"}]})"),
              HasSubstr("input[0].type: \"item_reference\" is not supported"));
  EXPECT_THAT(ErrorOf(R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})"),
              HasSubstr("input[0].content[0].type: must be \"input_text\""));
  EXPECT_THAT(ErrorOf(R"({"input":[{"type":"function_call","name":"f"}]})"),
              HasSubstr("input[0].call_id: is missing"));
  for (const char* field :
       {R"("previous_response_id":"x")", R"("background":true)", R"("truncation":"some")",
        R"("include":["message.output_text.logprobs"])", R"("n":2)", R"("messages":[])",
        R"("tools":[{"type":"web_search"}])", R"("text":{"format":{"type":"xml"}})"}) {
    EXPECT_NE(ErrorOf(std::string(R"({"input":"a",)") + field + "}"), "no error") << field;
  }
}

// A tool that takes one text, as Codex's apply_patch: the model calls it with the argument "input".
TEST(ResponseApiTest, CustomToolsTakeOneText) {
  const std::string text =
      "<tool_call>apply_patch\n<arg_key>input</arg_key>\n"
      "<arg_value>*** Begin Patch\n+\"a\"</arg_value>\n</tool_call>";
  json request = {{"input", text},
                  {"tools", json::parse(R"([{"type":"custom","name":"apply_patch","description":"d",
           "format":{"type":"grammar","syntax":"lark","definition":"start: x"}}])")},
                  {"tool_choice",
                   {{"type", "allowed_tools"},
                    {"mode", "auto"},
                    {"tools", {{{"type", "custom"}, {"name", "apply_patch"}}}}}},
                  {"ignore_eos", true},
                  {"max_output_tokens", text.size()}};
  RunningServer running({.tokens_per_step = 7}, Options());
  HttpClient client(running.port());
  const json body = json::parse(client.Post("/v1/responses", request.dump()).body);
  const json& call = body["output"][0];
  EXPECT_EQ(call["type"], "custom_tool_call") << body;
  EXPECT_EQ(call["name"], "apply_patch");
  EXPECT_EQ(call["input"], "*** Begin Patch\n+\"a\"");
  EXPECT_FALSE(call.contains("arguments"));
  EXPECT_EQ(body["tools"], request["tools"]);

  request["stream"] = true;
  std::string input;
  json done;
  for (const std::string& text_of : EventsOf(client.Post("/v1/responses", request.dump()).body)) {
    const json event = json::parse(text_of);
    const std::string type = event["type"];
    EXPECT_EQ(type.find("function_call"), std::string::npos);
    if (type == "response.custom_tool_call_input.delta") input += event["delta"];
    if (type == "response.custom_tool_call_input.done") {
      EXPECT_EQ(event["input"].get<std::string>(), input);
    }
    if (type == "response.output_item.done") done = event["item"];
  }
  EXPECT_EQ(input, call["input"].get<std::string>());
  EXPECT_EQ(done["type"], "custom_tool_call");
  EXPECT_EQ(done["input"].get<std::string>(), input);
}

TEST(ResponseApiTest, HistoryOfCustomTools) {
  const openai::TokenRequest request = Parse(R"({"input":[
      {"type":"message","role":"user","content":"x"},
      {"type":"custom_tool_call","id":"ctc_1","status":"completed","call_id":"c1","name":"p",
       "input":"a \"b\""},
      {"type":"custom_tool_call_output","call_id":"c1","output":"done"}],
      "tools":[{"type":"custom","name":"p","description":"d",
                "format":{"type":"grammar","syntax":"regex","definition":"x+"}},
               {"type":"custom","name":"q","format":{"type":"text"}}],
      "tool_choice":{"type":"custom","name":"q"}})");
  const json messages = json::parse(request.chat.messages_json);
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"], R"({"input":"a \"b\""})");
  EXPECT_EQ(messages[2], (json{{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "done"}}));
  EXPECT_EQ(request.tools.named, "q");
  const json tools = json::parse(request.chat.tools_json);
  EXPECT_EQ(tools[0]["type"], "function");
  EXPECT_EQ(tools[0]["function"]["description"],
            "d\n\nThe input follows this grammar (regex):\nx+");
  EXPECT_EQ(tools[0]["function"]["parameters"]["required"], json::array({"input"}));
  EXPECT_EQ(tools[1]["function"]["description"], "");
  EXPECT_THAT(ErrorOf(R"({"input":"a","tools":[{"type":"custom","name":"p",
                          "format":{"type":"grammar","syntax":"bnf","definition":"x"}}]})"),
              HasSubstr("tools[0].format.syntax: must be \"lark\" or \"regex\""));
  EXPECT_THAT(ErrorOf(R"({"input":[{"type":"custom_tool_call","call_id":"c","name":"f"}]})"),
              HasSubstr("input[0].input: is missing"));
}

}  // namespace
}  // namespace outrider
