// Chat templates in the shape of eight families: rendered as transformers would, recognised by what
// they say, and the calls that they write are those that the family's reader reads.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/output/output_format.h"
#include "outrider/output/output_parser.h"
#include "outrider/text/chat_template.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

struct Family {
  const char* name;        // of the template and of the format
  const char* model_type;  // of a config.json
  const char* begin;       // what the prompt has before the assistant's turn ...
  const char* turn;        // ... the turn: content, two calls ...
  const char* rest;        // ... and after it, to where the model goes on
};

const std::vector<Family> kFamilies = {
    {"deepseek_v3", "deepseek_v3",
     "<BOS>Be brief.\n\n## Functions\n{\"name\": \"look\", \"parameters\": {\"type\": \"object\", "
     "\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}\n"
     "<｜User｜>Rain in Köln?<｜Assistant｜>",
     "Looking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
     "{\"city\": \"Köln\", \"days\": 3}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>wet<｜tool▁output▁end｜>"
     "\n"
     "<｜tool▁output▁begin｜>12:00<｜tool▁output▁end｜><｜tool▁outputs▁end｜><｜User｜>Thanks"
     "<｜Assistant｜><think>\n"},
    {"deepseek_v31", "deepseek_v3",
     "<BOS>Be brief.\n\n## Tools\nThese may be called:\n\n### look\n\nParameters: {\"type\": "
     "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
     "\"integer\"}}}\n<｜User｜>Rain in Köln?<｜Assistant｜></think>",
     "Looking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
     "{\"city\": \"Köln\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "<｜end▁of▁sentence｜><｜tool▁output▁begin｜>wet<｜tool▁output▁end｜><｜tool▁output▁begin｜>"
     "12:00"
     "<｜tool▁output▁end｜><｜User｜>Thanks<｜Assistant｜></think>"},
    {"deepseek_v4", "deepseek_v4",
     "<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\n\nYou have access to a set of tools to help "
     "answer "
     "the user's question. You can invoke tools by writing a \"<｜DSML｜tool_calls>\" block like "
     "the "
     "following:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$TOOL_NAME\">\n<｜DSML｜parameter "
     "name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n"
     "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜invoke>\n"
     "</｜DSML｜tool_calls>\n\nString parameters should be specified as is and set "
     "`string=\"true\"`. "
     "For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and "
     "set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by <think>), you MUST "
     "output "
     "your complete reasoning inside <think>...</think> BEFORE any tool calls or final "
     "response.\n\n"
     "Otherwise, output directly after </think> with tool calls or final response.\n\n### "
     "Available "
     "Tool Schemas\n\n{\"name\": \"look\", \"parameters\": {\"type\": \"object\", \"properties\": "
     "{\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}\n\nYou MUST strictly "
     "follow the above defined tool name and parameter schemas to invoke tool calls.\n"
     "<｜User｜>Rain in Köln?<｜Assistant｜>",
     "<think>Hm</think>Looking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
     "<｜DSML｜parameter name=\"city\" string=\"true\">Köln</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "<｜end▁of▁sentence｜><｜User｜><tool_result>wet</tool_result>\n\n<tool_result>12:00</"
     "tool_result>"
     "\n\nThanks<｜Assistant｜><think>"},
    {"kimi_k2", "kimi_k2",
     "<|im_system|>tool_declare<|im_middle|>[{\"type\":\"function\",\"function\":{\"name\":"
     "\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
     "\"days\":{\"type\":\"integer\"}}}}}]<|im_end|><|im_system|>system<|im_middle|>Be brief."
     "<|im_end|><|im_user|>user<|im_middle|>Rain in Köln?<|im_end|><|im_assistant|>assistant"
     "<|im_middle|>",
     "Looking.<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
     "<|tool_call_argument_begin|>{\"city\": \"Köln\", \"days\": 3}<|tool_call_end|>"
     "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     "<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.look:0\nwet<|im_end|>"
     "<|im_system|>tool<|im_middle|>## Return of functions.now:1\n12:00<|im_end|><|im_user|>user"
     "<|im_middle|>Thanks<|im_end|><|im_assistant|>assistant<|im_middle|>"},
    {"glm45", "glm4_moe",
     "[gMASK]<sop><|system|>\n# Tools\n\n<tools>\n{\"type\": \"function\", \"function\": "
     "{\"name\": \"look\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
     "{\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}\n</tools><|system|>\nBe brief."
     "<|user|>\nRain in Köln?<|assistant|>",
     "\n<think>Hm</think>\nLooking.\n<tool_call>look\n<arg_key>city</arg_key>\n"
     "<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
     "</tool_call>\n<tool_call>now\n</tool_call>",
     "<|observation|>\n<tool_response>\nwet\n</tool_response>\n<tool_response>\n12:00\n"
     "</tool_response><|user|>\nThanks<|assistant|>"},
    {"glm47", "glm4_moe",
     "[gMASK]<sop><|system|>\n# Tools\n\n<tools>\n{\"type\": \"function\", \"function\": "
     "{\"name\": \"look\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
     "{\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}\n</tools><|system|>\nBe brief."
     "<|user|>Rain in Köln?<|assistant|>",
     "<think>Hm</think>Looking.<tool_call>look<arg_key>city</arg_key><arg_value>Köln</arg_value>"
     "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
     "<|observation|><tool_response>wet</tool_response><tool_response>12:00</tool_response>"
     "<|user|>Thanks<|assistant|><think>"},
    {"ling3", "bailing_hybrid",
     "<role>SYSTEM</role>Be brief.\n# Tools\n\n<tools>\n{\"type\": \"function\", \"function\": "
     "{\"name\": \"look\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
     "{\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}\n</tools>\n\ndetailed thinking "
     "on<|role_end|><role>HUMAN</role>Rain in Köln?<|role_end|><role>ASSISTANT</role>\n",
     "<think>Hm</think>Looking.\n<tool_call>look<arg_key>city</arg_key>\n"
     "<arg_value>Köln</arg_value><arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
     "\n<tool_call>now\n</tool_call>",
     "<|role_end|><role>OBSERVATION</role>\n<tool_response>\nwet\n</"
     "tool_response>\n<tool_response>\n"
     "12:00\n</tool_response><|role_end|><role>HUMAN</role>Thanks<|role_end|><role>ASSISTANT</role>"
     "\n<think>"},
    {"step3p5", "step3p5",
     "<BOS><|im_start|>system\nBe brief.\n# Tools\n<tools>\n{\"type\": \"function\", \"function\": "
     "{\"name\": \"look\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
     "{\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}\n</tools><|im_end|>\n"
     "<|im_start|>user\nRain in Köln?<|im_end|>\n<|im_start|>assistant\n",
     "<think>\nHm\n</think>\nLooking.\n<tool_call>\n<function=look>\n<parameter=city>\nKöln\n"
     "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=now>\n</function>\n</tool_call>",
     "<|im_end|>\n<|im_start|>tool_response\n<tool_response>wet</tool_response><tool_response>12:00"
     "</tool_response><|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
     "<think>\n"},
};

constexpr const char* kMessages = R"([
  {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain in Köln?"},
  {"role": "assistant", "content": "Looking.", "reasoning_content": "Hm", "tool_calls": [
    {"id": "functions.look:0", "type": "function",
     "function": {"name": "look", "arguments": "{\"city\": \"Köln\", \"days\": 3}"}},
    {"id": "functions.now:1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
  {"role": "tool", "tool_call_id": "functions.look:0", "content": "wet"},
  {"role": "tool", "tool_call_id": "functions.now:1", "content": "12:00"},
  {"role": "user", "content": "Thanks"}])";

constexpr const char* kFamilyTools = R"([{"type": "function", "function": {"name": "look",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"},
  "days": {"type": "integer"}}}}}])";

class FamilyTemplateTest : public testing::TestWithParam<Family> {
 protected:
  static ChatTemplate Template() {
    if (GetParam().name == std::string("deepseek_v4")) {
      return ChatTemplate::DeepSeekV4(DeepSeekV4Efforts::kPreview);
    }
    return ChatTemplate::FromFile(
        std::string(SourceDirectory() / "tests/text/templates/") + GetParam().name + ".jinja",
        {.tokenizer_class = {},
         .special_tokens = {{"bos_token", "<BOS>"}, {"eos_token", "<EOS>"}},
         .chat_templates = {}});
  }
};

TEST_P(FamilyTemplateTest, RendersAConversationWithTools) {
  RenderOptions options;
  options.tools_json = kFamilyTools;
  EXPECT_EQ(Template().Render(kMessages, options),
            std::string(GetParam().begin) + GetParam().turn + GetParam().rest);
}

TEST_P(FamilyTemplateTest, IsRecognisedAndItsCallsAreRead) {
  const OutputFormat format =
      ChooseOutputFormat("auto", "auto", GetParam().model_type, Template().source());
  ASSERT_NE(format.tools, nullptr);
  EXPECT_EQ(format.tools->name, GetParam().name);
  OutputTask task;
  task.reasoning = format.reasoning;
  task.tools = format.tools;
  task.types = {{"look", {{"city", {ValueTypes::kString, {}}}}}};
  OutputParser parser(task);
  std::vector<OutputPiece> pieces;
  parser.Push(GetParam().turn, &pieces);
  parser.Finish(OutputParser::TextEnd::kByModel, &pieces);
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kContent) content += piece.text;
    if (piece.kind == OutputPiece::Kind::kToolCall) calls.emplace_back(piece.text, "");
    if (piece.kind == OutputPiece::Kind::kArguments) calls.back().second += piece.text;
  }
  EXPECT_EQ(content, "Looking.");
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].first, "look");
  EXPECT_EQ(json::parse(calls[0].second), (json{{"city", "Köln"}, {"days", 3}}));
  EXPECT_EQ(calls[1].first, "now");
  EXPECT_EQ(json::parse(calls[1].second), json::object());
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTemplateTest, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider
