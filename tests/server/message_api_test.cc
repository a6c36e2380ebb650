// /v1/messages over loopback, as Anthropic's clients use it. The stub engine repeats the last
// message, which here is what a model would write.
#include <fmt/format.h>
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

constexpr const char* kThinkAndCall =
    "<think>Hm</think>I look.<tool_call>search\n<arg_key>query</arg_key>\n"
    "<arg_value>rain</arg_value>\n</tool_call>";

const json kSearchTool = json::parse(R"([{"name":"search","description":"d",
    "input_schema":{"type":"object","properties":{"query":{"type":"string"}}}}])");

ServerOptions MessageOptions() {
  ServerOptions options = TestServerOptions();
  options.output_format = ChooseOutputFormat("glm45", "glm45", "", "");
  return options;
}

// What the model says ends with '.', where the stub stops.
json MessageRequest(const std::string& text) {
  return {{"model", "stub"},
          {"max_tokens", 1000},
          {"messages", json::array({{{"role", "user"}, {"content", text}}})}};
}

json Ask(RunningServer& running, const json& request, int status = 200) {
  const ClientResponse response = HttpClient(running.port()).Post("/v1/messages", request.dump());
  EXPECT_EQ(response.status, status) << response.body;
  return json::parse(response.body);
}

TEST(MessageApiTest, AnswersWithBlocks) {
  RunningServer running({.tokens_per_step = 7}, MessageOptions());
  json request = MessageRequest(kThinkAndCall);
  request["tools"] = kSearchTool;
  request["ignore_eos"] = true;
  request["max_tokens"] = std::string(kThinkAndCall).size();
  const json body = Ask(running, request);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  const json& content = body["content"];
  ASSERT_EQ(content.size(), 3) << content;
  EXPECT_EQ(content[0], (json{{"type", "thinking"}, {"thinking", "Hm"}, {"signature", ""}}));
  EXPECT_EQ(content[1], (json{{"type", "text"}, {"text", "I look."}}));
  EXPECT_EQ(content[2]["type"], "tool_use");
  EXPECT_EQ(content[2]["name"], "search");
  EXPECT_EQ(content[2]["input"], (json{{"query", "rain"}}));
  EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu_"));
  // One token of the prompt was cached, says the stub; one more begins the turn.
  EXPECT_EQ(body["usage"]["input_tokens"], std::string(kThinkAndCall).size());
  EXPECT_EQ(body["usage"]["cache_read_input_tokens"], 1);
  EXPECT_EQ(body["usage"]["output_tokens"], std::string(kThinkAndCall).size());
  EXPECT_EQ(body["usage"]["output_tokens_details"]["thinking_tokens"], 17);
}

TEST(MessageApiTest, StreamsEvents) {
  RunningServer running({.tokens_per_step = 7}, MessageOptions());
  json request = MessageRequest(
      "<think>Hm</think>I look!<tool_call>search\n<arg_key>query</arg_key>\n"
      "<arg_value>rain</arg_value>\n</tool_call>.");
  request["tools"] = kSearchTool;
  request["stream"] = true;
  const ClientResponse response =
      HttpClient(running.port()).Post("/v1/messages?beta=true", request.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  std::vector<std::string> types;
  std::string text;
  std::string thinking;
  std::string input;
  json last_delta;
  for (const std::string& data : EventsOf(response.body)) {
    const json event = json::parse(data);
    const std::string type = event["type"];
    EXPECT_THAT(response.body, HasSubstr("event: " + type + "\ndata: {\"type\":\"" + type + "\""));
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "message_start") {
      EXPECT_EQ(event["message"]["content"], json::array());
      EXPECT_EQ(event["message"]["usage"]["output_tokens"], 0);
    }
    if (type == "message_delta") last_delta = event;
    if (type != "content_block_delta") continue;
    const json& delta = event["delta"];
    if (delta["type"] == "text_delta" && event["index"] == 1) text += delta["text"];
    if (delta["type"] == "thinking_delta") thinking += delta["thinking"];
    if (delta["type"] == "input_json_delta") input += delta["partial_json"];
  }
  EXPECT_THAT(types, ElementsAre("message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop",
                                 // The full stop.
                                 "content_block_start", "content_block_delta", "content_block_stop",
                                 "message_delta", "message_stop"));
  EXPECT_EQ(thinking, "Hm");
  EXPECT_EQ(text, "I look!");
  EXPECT_EQ(json::parse(input), (json{{"query", "rain"}}));
  EXPECT_EQ(last_delta["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(last_delta["usage"]["cache_read_input_tokens"], 1);
}

// A call that was cut off is no block of a whole message: nobody can run it.
TEST(MessageApiTest, LeavesOutCallsThatAreCutOff) {
  RunningServer running({}, MessageOptions());
  json request = MessageRequest(kThinkAndCall);
  request["tools"] = kSearchTool;
  request["ignore_eos"] = true;
  request["max_tokens"] = std::string(kThinkAndCall).size() - 14;
  const json body = Ask(running, request);
  EXPECT_EQ(body["content"].size(), 2) << body;
  EXPECT_EQ(body["stop_reason"], "max_tokens");
}

TEST(MessageApiTest, SaysWhyItStopped) {
  RunningServer running({}, MessageOptions());
  EXPECT_EQ(Ask(running, MessageRequest("Yes."))["stop_reason"], "end_turn");
  json short_answer = MessageRequest("Yes.");
  short_answer["max_tokens"] = 2;
  EXPECT_EQ(Ask(running, short_answer)["stop_reason"], "max_tokens");
}

TEST(MessageApiTest, TakesStopSequencesAndSampling) {
  RunningServer running({}, MessageOptions());
  json request = MessageRequest("Yes.");
  request["stop_sequences"] = {"END", "\n\n"};
  request["temperature"] = 0.5;
  request["top_k"] = 7;
  request["seed"] = 3;
  request["metadata"] = {{"user_id", "7"}};
  request["cache_control"] = {{"type", "ephemeral"}};
  request["service_tier"] = "auto";
  Ask(running, request);
  const SamplingParams sampling = running.engine.last_sampling();
  EXPECT_THAT(sampling.stop, ElementsAre("END", "\n\n"));
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.max_tokens, 1000);
}

TEST(MessageApiTest, CountsTokens) {
  RunningServer running({}, MessageOptions());
  json request = MessageRequest("Hello");
  request.erase("max_tokens");
  request["tools"] = kSearchTool;
  request["system"] = "Be kind";
  const ClientResponse response =
      HttpClient(running.port()).Post("/v1/messages/count_tokens", request.dump());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body), (json{{"input_tokens", 6}}));
  EXPECT_EQ(running.engine.Counters().num_steps, 0);
}

TEST(MessageApiTest, ErrorsHaveAnthropicsForm) {
  ServerOptions options = MessageOptions();
  options.api_keys = {"secret"};
  options.http.limits.max_body_bytes = 1000;
  RunningServer running({}, options);
  const auto post = [&](const std::string& body, const std::string& headers) {
    const ClientResponse response = HttpClient(running.port()).Post("/v1/messages", body, headers);
    const json error = json::parse(response.body);
    EXPECT_EQ(error["type"], "error") << error;
    return fmt::format("{} {}", response.status, error["error"]["type"].get<std::string>());
  };
  const std::string key = "X-Api-Key: secret\r\n";
  const std::string good = MessageRequest("Hi.").dump();
  EXPECT_EQ(post(good, ""), "401 authentication_error");
  EXPECT_EQ(post(good, "X-Api-Key: secre\r\n"), "401 authentication_error");
  EXPECT_EQ(post("{", key), "400 invalid_request_error");
  json other = MessageRequest("Hi.");
  other["model"] = "gpt";
  EXPECT_EQ(post(other.dump(), key), "404 not_found_error");
  EXPECT_EQ(post(std::string(2000, ' '), key), "413 request_too_large");
  EXPECT_EQ(HttpClient(running.port()).Post("/v1/messages", good, key).status, 200);
  const ClientResponse count =
      HttpClient(running.port()).Post("/v1/messages/count_tokens", "{}", key);
  EXPECT_EQ(json::parse(count.body)["error"]["type"], "invalid_request_error");
}

// Anthropic's client looks for this code, and goes on without threads.
TEST(MessageApiTest, ThreadsAreRefusedSoThatClientsGoOn) {
  RunningServer running({}, MessageOptions());
  json request = MessageRequest("Hi.");
  request["thread"] = {{"type", "create"}};
  const json error = Ask(running, request, 400)["error"];
  EXPECT_EQ(error["details"]["error_code"], "thread_unsupported_request");
}

TEST(MessageApiTest, FullQueueIsOverloaded) {
  RunningServer running({.max_requests = 0}, MessageOptions());
  const json error = Ask(running, MessageRequest("Hi."), 503);
  EXPECT_EQ(error["error"]["type"], "overloaded_error");
}

openai::TokenRequest Parse(const json& request) {
  openai::RequestLimits limits;
  limits.vocab_size = 300;
  limits.max_model_len = 4096;
  return openai::ParseMessageRequest(request.dump(), limits);
}

TEST(ParseMessageRequestTest, ConversationsOfToolCalls) {
  json request = MessageRequest("");
  request["system"] = json::parse(
      R"([{"type":"text","text":"Be kind","cache_control":{"type":"ephemeral"}},
          {"type":"text","text":"Be brief"}])");
  request["tools"] = kSearchTool;
  request["messages"] = json::parse(R"([
    {"role":"user","content":[{"type":"text","text":"Rain?"}]},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"Hm","signature":"x"},
      {"type":"text","text":"I look."},
      {"type":"tool_use","id":"toolu_1","name":"search","input":{"z":1.50,"a":"b"}},
      {"type":"tool_use","id":"toolu_2","name":"search","input":{}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"toolu_1","content":"dry"},
      {"type":"tool_result","tool_use_id":"toolu_2","is_error":true,
       "content":[{"type":"text","text":"none"}]},
      {"type":"text","text":"And?"}]}])");
  std::string spelled = request.dump();
  openai::RequestLimits limits;
  limits.max_model_len = 4096;
  // As the client wrote it: the order of names, and numbers.
  const size_t input = spelled.find(R"({"a":"b","z":1.5})");
  spelled.replace(input, 17, R"({"z": 1.50,"a":"b"})");
  const openai::TokenRequest parsed = openai::ParseMessageRequest(spelled, limits);
  const json messages = json::parse(parsed.chat.messages_json);
  EXPECT_EQ(messages, json::parse(R"([
    {"role":"system","content":"Be kind\nBe brief"},
    {"role":"user","content":"Rain?"},
    {"role":"assistant","content":"I look.","reasoning_content":"Hm","tool_calls":[
      {"id":"toolu_1","type":"function",
       "function":{"name":"search","arguments":"{\"z\": 1.50,\"a\":\"b\"}"}},
      {"id":"toolu_2","type":"function","function":{"name":"search","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"toolu_1","content":"dry"},
    {"role":"tool","tool_call_id":"toolu_2","content":"none"},
    {"role":"user","content":"And?"}])"));
  EXPECT_EQ(json::parse(parsed.chat.tools_json)[0]["function"]["parameters"],
            kSearchTool[0]["input_schema"]);
  EXPECT_TRUE(parsed.chat.add_generation_prompt);
}

TEST(ParseMessageRequestTest, TheModelGoesOnInAnAssistantsMessage) {
  json request = MessageRequest("Hi");
  request["messages"].push_back({{"role", "assistant"}, {"content", "Well, "}});
  const openai::TokenRequest parsed = Parse(request);
  EXPECT_TRUE(parsed.chat.continue_final_message);
  EXPECT_FALSE(parsed.chat.add_generation_prompt);
}

TEST(ParseMessageRequestTest, Choices) {
  json request = MessageRequest("Hi");
  request["tools"] = kSearchTool;
  EXPECT_EQ(Parse(request).tools.choice, openai::ToolChoice::kAuto);
  request["tool_choice"] = {{"type", "any"}, {"disable_parallel_tool_use", true}};
  EXPECT_EQ(Parse(request).tools.choice, openai::ToolChoice::kRequired);
  EXPECT_FALSE(Parse(request).tools.parallel);
  request["tool_choice"] = {{"type", "tool"}, {"name", "search"}};
  EXPECT_EQ(Parse(request).tools.named, "search");
  request["tool_choice"] = {{"type", "none"}};
  EXPECT_EQ(Parse(request).tools.choice, openai::ToolChoice::kNone);
}

TEST(ParseMessageRequestTest, ThinkingAndEffort) {
  const auto arguments = [](const json& request) {
    return json::parse(Parse(request).chat.template_arguments_json);
  };
  json request = MessageRequest("Hi");
  EXPECT_EQ(arguments(request), json::object());
  request["thinking"] = {{"type", "enabled"}, {"budget_tokens", 2048}};
  EXPECT_EQ(arguments(request), (json{{"thinking", true}, {"enable_thinking", true}}));
  EXPECT_TRUE(Parse(request).include_reasoning);
  request["output_config"] = {{"effort", "low"}};
  request["thinking"] = {{"type", "disabled"}};
  EXPECT_EQ(arguments(request),
            (json{{"thinking", false}, {"enable_thinking", false}, {"reasoning_effort", "low"}}));
  request["thinking"] = {{"type", "adaptive"}, {"display", "omitted"}};
  EXPECT_FALSE(Parse(request).include_reasoning);
}

TEST(ParseMessageRequestTest, FormatIsAGrammar) {
  json request = MessageRequest("Hi");
  request["output_config"]["format"] = {{"type", "json_schema"}, {"schema", {{"type", "object"}}}};
  const openai::TokenRequest parsed = Parse(request);
  ASSERT_TRUE(parsed.grammar);
  EXPECT_EQ(parsed.grammar->text, R"({"type":"object"})");
  EXPECT_EQ(parsed.grammar_field, "output_config.format");
}

// Every one of them names the field and says what would be right.
TEST(ParseMessageRequestTest, RefusesWhatCannotWork) {
  struct Case {
    const char* field;
    const char* value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"max_tokens", "null", "max_tokens: is missing"},
      {"max_tokens", "0", "max_tokens: 0 is out of range"},
      {"messages", "[]", "messages: must be an array of at least one message"},
      {"messages", R"([{"role":"tool","content":"x"}])", "messages[0].role: must be"},
      {"messages", R"([{"role":"user"}])", "messages[0].content: is missing"},
      {"messages", R"([{"role":"user","content":[{"type":"image","source":{}}]}])",
       "messages[0].content[0].type: \"image\" is not supported"},
      {"messages", R"([{"role":"user","content":[{"type":"tool_use","id":"a","name":"b"}]}])",
       "messages[0].content[0].type: \"tool_use\" is not supported in a message of the user's"},
      {"messages", R"([{"role":"assistant","content":[{"type":"redacted_thinking","data":""}]}])",
       "messages[0].content[0].type: \"redacted_thinking\" is not supported"},
      {"messages",
       R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}]}])",
       "messages[0].content[0].content[0].type: must be \"text\""},
      {"tools", R"([{"type":"web_search_20250305","name":"web_search"}])",
       "tools[0].type: \"web_search_20250305\" is not supported"},
      {"tools", R"([{"name":"f"}])", "tools[0].input_schema: is missing"},
      {"tool_choice", R"({"type":"any"})", "tool_choice: asks for a call"},
      {"tool_choice", R"({"type":"required"})", "tool_choice.type: must be"},
      {"thinking", R"({"type":"between_tools"})", "thinking.type: must be"},
      {"output_config", R"({"effort":"huge"})", "output_config.effort: \"huge\" is unknown"},
      {"output_config", R"({"format":{"type":"text"}})", "output_config.format.type: must be"},
      {"messages", R"([{"role":"user","content":[{"type":"text","text":"a","cache_control":[]}]}])",
       "messages[0].content[0].cache_control: must be an object"},
      {"cache_control", "5", "cache_control: must be an object"},
      {"tools", R"([{"name":"f","input_schema":{},"input_examples":{}}])",
       "tools[0].input_examples: must be an array"},
      {"mcp_servers", R"([{"url":"x"}])", "mcp_servers: not supported"},
      {"container", R"("c")", "container: not supported"},
      {"stop", R"("x")", "stop: is not of this API; use \"stop_sequences\""},
      {"stop_sequences", R"([""])", "stop_sequences: must hold strings"},
      {"n", "2", "n: not supported"},
      {"max_token", "3", "max_token"}};
  for (const Case& one : cases) {
    json request = MessageRequest("Hi");
    request[one.field] = json::parse(one.value);
    try {
      Parse(request);
      ADD_FAILURE() << one.field << " " << one.value;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(one.message));
    }
  }
}

}  // namespace
}  // namespace outrider
