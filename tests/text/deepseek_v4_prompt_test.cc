// Prompts of DeepSeek-V4: equal to the published encoder's (tools/make_deepseek_v4_goldens.py), and
// what it does not say: options, errors, the choice by the checkpoint.
#include "outrider/text/deepseek_v4_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/base/error.h"
#include "outrider/text/chat_template.h"
#include "outrider/text/python_json.h"
#include "tests/temporary_directory.h"
#include "tests/text/golden_cases.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kQuestion = R"([{"role":"user","content":"Hi"}])";
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";

std::string Refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(DeepSeekV4Prompt, EqualsThePublishedEncoder) {
  std::ifstream file(GoldenCases() / "deepseek_v4_prompts.json");
  ASSERT_TRUE(file.good());
  const Json cases = Json::parse(file);
  ASSERT_GT(cases.size(), 80U);
  for (const Json& entry : cases) {
    DeepSeekV4Options options = ParseDeepSeekV4Options(entry.at("arguments").get<std::string>(),
                                                       DeepSeekV4Efforts::kPreview);
    options.add_generation_prompt = entry.at("ends_with_question");
    EXPECT_EQ(EncodeDeepSeekV4(entry.at("messages").get<std::string>(), "", options),
              entry.at("prompt").get<std::string>())
        << entry.at("messages") << entry.at("arguments");
  }
}

TEST(DeepSeekV4Prompt, BeginsTheAnswerWhenAsked) {
  const auto prompt = [](const char* messages, bool add, bool thinking = true) {
    DeepSeekV4Options options;
    options.add_generation_prompt = add;
    options.thinking = thinking;
    return EncodeDeepSeekV4(messages, "", options);
  };
  EXPECT_THAT(prompt(kQuestion, false), EndsWith("<｜User｜>Hi"));
  EXPECT_THAT(prompt(kQuestion, true), EndsWith("<｜User｜>Hi<｜Assistant｜><think>"));
  // The published encoder would leave the model without a turn.
  const char* const system_last =
      R"([{"role":"user","content":"Hi"},{"role":"system","content":"Be brief."}])";
  EXPECT_THAT(prompt(system_last, true), EndsWith("Hi"
                                                  "Be brief.<｜Assistant｜><think>"));
  EXPECT_THAT(prompt(system_last, true, false), EndsWith("Be brief.<｜Assistant｜></think>"));
  EXPECT_THAT(prompt(system_last, false), EndsWith("Be brief."));
  EXPECT_EQ(prompt("[]", true), "<｜begin▁of▁sentence｜>");
}

TEST(DeepSeekV4Prompt, ContinuesTheAnswerWhenAsked) {
  DeepSeekV4Options options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  EXPECT_THAT(EncodeDeepSeekV4(R"([{"role":"user","content":"Hi"},
                   {"role":"assistant","content":"Hel","reasoning_content":"Greet."}])",
                               "", options),
              EndsWith("<｜Assistant｜><think>Greet.</think>Hel"));
  options.thinking = false;
  EXPECT_THAT(EncodeDeepSeekV4(R"([{"role":"user","content":"Hi"},
                   {"role":"assistant","content":"Hel"}])",
                               "", options),
              EndsWith("<｜Assistant｜></think>Hel"));
  EXPECT_THAT(Refusal([&] { (void)EncodeDeepSeekV4(kQuestion, "", options); }),
              HasSubstr("the last message must be the assistant's"));
}

TEST(DeepSeekV4Prompt, ShowsTheRequestsTools) {
  const DeepSeekV4Options options;
  const std::string schema = R"({"name": "f", "parameters": {"type": "object"}})";
  const std::string alone = EncodeDeepSeekV4(kQuestion, kTools, options);
  EXPECT_THAT(alone, StartsWith("<｜begin▁of▁sentence｜>\n\n## Tools\n\n"));
  EXPECT_THAT(alone, HasSubstr("\n" + schema + "\n"));
  const std::string own = R"({"type":"function","function":{"name":"old"}})";
  const std::string with_system =
      EncodeDeepSeekV4(R"([{"role":"system","content":"Be brief.","tools":[)" + own +
                           R"(]},{"role":"user","content":"Hi"}])",
                       kTools, options);
  EXPECT_THAT(with_system, StartsWith("<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\n\n"));
  EXPECT_THAT(with_system, HasSubstr(schema));
  EXPECT_THAT(with_system, Not(HasSubstr("old")));
  EXPECT_EQ(EncodeDeepSeekV4(kQuestion, "[]", options), EncodeDeepSeekV4(kQuestion, "", options));
  // With tools, earlier reasoning stays.
  const std::string turns = R"([{"role":"user","content":"1"},
      {"role":"assistant","content":"2","reasoning_content":"why"},{"role":"user","content":"3"}])";
  EXPECT_THAT(EncodeDeepSeekV4(turns, kTools, options), HasSubstr("<think>why</think>2"));
  EXPECT_THAT(EncodeDeepSeekV4(turns, "", options), HasSubstr("<｜Assistant｜></think>2"));
}

TEST(DeepSeekV4Prompt, NamesTheMessageThatIsWrong) {
  const auto message = [](const std::string& messages, const std::string& tools = "") {
    return Refusal([&] { (void)EncodeDeepSeekV4(messages, tools, DeepSeekV4Options()); });
  };
  EXPECT_THAT(message("{"), HasSubstr("messages: must be a JSON array"));
  EXPECT_THAT(message("{}"), HasSubstr("messages: must be a JSON array"));
  EXPECT_THAT(message(std::string(300, '[') + std::string(300, ']')), HasSubstr("JSON array"));
  EXPECT_THAT(message("[1]"), HasSubstr("messages[0]: must be an object"));
  EXPECT_THAT(message(R"([{"role":"user"},{"role":"robot"}])"),
              HasSubstr("messages[1]: the role \"robot\" is unknown"));
  EXPECT_THAT(message(R"([{"role":"user","content":[]}])"),
              HasSubstr("messages[0]: content must be a string"));
  EXPECT_THAT(message(R"([{"role":"tool","content":[1]}])"), HasSubstr("a part that is no object"));
  EXPECT_THAT(message(R"([{"role":"developer"}])"), HasSubstr("messages[0]: content is empty"));
  EXPECT_THAT(message(R"([{"role":"user","task":"sing"}])"), HasSubstr("task \"sing\" is unknown"));
  EXPECT_THAT(message(R"([{"role":"assistant","wo_eos":1}])"), HasSubstr("wo_eos must be true"));
  EXPECT_THAT(message(R"([{"role":"assistant","tool_calls":{}}])"),
              HasSubstr("messages[0]: tool_calls must be an array"));
  EXPECT_THAT(message(R"([{"role":"assistant","tool_calls":[{"id":"x"}]}])"),
              HasSubstr("tool_calls has an element without an object \"function\""));
  EXPECT_THAT(message(kQuestion, "{"), HasSubstr("tools: is not valid JSON"));
  EXPECT_THAT(message(kQuestion, "[1]"),
              HasSubstr("tools: tools has an element that is no object"));
}

TEST(DeepSeekV4Prompt, TakesCallsWithoutAnObjectOfArguments) {
  const auto call = [](const std::string& arguments) {
    return EncodeDeepSeekV4(
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + arguments +
            R"(}}]}])",
        "", DeepSeekV4Options());
  };
  EXPECT_THAT(call(R"("[1, 2]")"), HasSubstr(R"(name="arguments" string="true">[1, 2]</)"));
  EXPECT_THAT(call(R"({"x": [1,2]})"), HasSubstr(R"(name="x" string="false">[1, 2]</)"));
}

TEST(DeepSeekV4Options, AreReadFromTemplateArguments) {
  const auto parse = [](const char* json, DeepSeekV4Efforts efforts) {
    return ParseDeepSeekV4Options(json, efforts);
  };
  constexpr auto kPreview = DeepSeekV4Efforts::kPreview;
  constexpr auto k0731 = DeepSeekV4Efforts::kRelease0731;
  EXPECT_TRUE(parse("", kPreview).thinking);
  EXPECT_TRUE(parse("{}", kPreview).thinking);
  EXPECT_FALSE(parse(R"({"thinking":false})", kPreview).thinking);
  EXPECT_FALSE(parse(R"({"enable_thinking":false})", kPreview).thinking);
  EXPECT_TRUE(parse(R"({"thinking":true,"enable_thinking":null})", kPreview).thinking);
  EXPECT_FALSE(parse(R"({"thinking":true,"reasoning_effort":"none"})", kPreview).thinking);
  EXPECT_FALSE(parse(R"({"drop_thinking":false})", kPreview).drop_reasoning);
  const auto instruction = [&](const char* effort, DeepSeekV4Efforts efforts) {
    return ParseDeepSeekV4Options(fmt::format(R"({{"reasoning_effort":"{}"}})", effort), efforts)
        .instruction;
  };
  for (const char* effort : {"minimal", "low", "medium"}) {
    EXPECT_EQ(instruction(effort, kPreview), DeepSeekV4Instruction::kNone);
    EXPECT_EQ(instruction(effort, k0731), DeepSeekV4Instruction::kNone);
  }
  EXPECT_EQ(instruction("high", kPreview), DeepSeekV4Instruction::kNone);
  EXPECT_EQ(instruction("high", k0731), DeepSeekV4Instruction::kThorough);
  for (const char* effort : {"xhigh", "max"}) {
    EXPECT_EQ(instruction(effort, kPreview), DeepSeekV4Instruction::kThorough);
    EXPECT_EQ(instruction(effort, k0731), DeepSeekV4Instruction::kExhaustive);
  }
  EXPECT_THAT(Refusal([&] { parse(R"({"thinking":"yes"})", kPreview); }),
              HasSubstr("chat_template_kwargs.thinking: must be true or false"));
  EXPECT_THAT(Refusal([&] { parse(R"({"reasoning_effort":1})", kPreview); }),
              HasSubstr("chat_template_kwargs.reasoning_effort: must be a string"));
  EXPECT_THAT(Refusal([&] { parse("[]", kPreview); }), HasSubstr("must be a JSON object"));
}

// A model directory with `config` and perhaps an encoder.
class V4Directory {
 public:
  explicit V4Directory(const std::string& config, const std::string& encoder = "") {
    Write("config.json", config);
    if (!encoder.empty()) Write("encoding/encoding_dsv4.py", encoder);
  }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

std::string PromptOf(const V4Directory& directory, const char* arguments) {
  const std::optional<ChatTemplate> chat = ChatTemplate::FromModelDirectory(directory.path());
  if (!chat) return "no template";
  RenderOptions options;
  options.extra_json = arguments;
  return chat->Render(kQuestion, options);
}

TEST(DeepSeekV4Prompt, IsChosenByTheCheckpoint) {
  constexpr const char* kV4 = R"({"model_type":"deepseek_v4"})";
  EXPECT_EQ(PromptOf(V4Directory(kV4), "{}"),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>");
  EXPECT_EQ(PromptOf(V4Directory(R"({"model_type":"deepseek_v3"})"), "{}"), "no template");
  EXPECT_EQ(PromptOf(V4Directory("[]"), "{}"), "no template");
  V4Directory with_template(kV4);
  with_template.Write("chat_template.jinja", "{{ messages[0]['content'] }}!");
  EXPECT_EQ(PromptOf(with_template, "{}"), "Hi!");

  constexpr const char* kMax = R"({"reasoning_effort":"max"})";
  const auto begins = [](const char* words) {
    return StartsWith(std::string("<｜begin▁of▁sentence｜>Reasoning Effort: ") + words);
  };
  EXPECT_THAT(PromptOf(V4Directory(kV4), kMax), begins("Absolute maximum"));
  EXPECT_THAT(PromptOf(V4Directory(kV4, "REASONING_EFFORT_MAX = 1"), kMax),
              begins("Absolute maximum"));
  EXPECT_THAT(PromptOf(V4Directory(kV4, "REASONING_EFFORT_PROMPTS = {}"), kMax),
              begins("Beyond maximum"));
  constexpr const char* kDSpark = R"({"model_type":"deepseek_v4","dspark_block_size":5})";
  EXPECT_THAT(PromptOf(V4Directory(kDSpark), kMax), begins("Beyond maximum"));
  EXPECT_THAT(PromptOf(V4Directory(kDSpark, "REASONING_EFFORT_MAX = 1"), kMax),
              begins("Absolute maximum"));
}

TEST(DeepSeekV4Prompt, SaysWhatContradictsItself) {
  RenderOptions options;
  options.continue_final_message = true;
  EXPECT_THAT(
      Refusal([&] {
        (void)ChatTemplate::DeepSeekV4(DeepSeekV4Efforts::kPreview).Render(kQuestion, options);
      }),
      HasSubstr("exclude each other"));
}

TEST(JsonText, ReadsValuesInTheirOrder) {
  const auto json =
      JsonText::Parse(" {\"b\" : [1 , \"x,]\\\"\" ], \"a\":null,\"b2\":{},\"b\":true } ");
  ASSERT_TRUE(json);
  const auto members = json->Members();
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[0].first, "b");
  EXPECT_EQ(members[0].second.text(), "true");
  EXPECT_EQ(members[1].second.kind(), JsonText::Kind::kNull);
  EXPECT_FALSE(json->Find("a"));
  EXPECT_FALSE(json->Find("c"));
  EXPECT_EQ(JsonText::Parse("[1 , [] ,\"x,]\\\"\" ]")->Elements().at(2).String(), "x,]\"");
  for (const char* bad : {"", "{", "1 2", "nul", "[1,]", "\"\\ud800\"", "{\"a\" 1}"}) {
    EXPECT_FALSE(JsonText::Parse(bad)) << bad;
  }
  EXPECT_TRUE(JsonText::Parse(std::string(200, '[') + std::string(200, ']')));
  EXPECT_FALSE(JsonText::Parse(std::string(201, '[') + std::string(201, ']')));
}

TEST(JsonText, DumpsLikePython) {
  EXPECT_EQ(
      JsonText::Parse(
          R"({"a":[1,2.50,-0,-0.0,1e5,1E+16,1e-5,123456789012345678901,"\u00e9\/\u0007\u007f"],
                               "b":{},"c":[ ],"a":{"x":false}})")
          ->DumpLikePython(),
      R"({"a": {"x": false}, "b": {}, "c": []})");
  EXPECT_EQ(
      JsonText::Parse(R"([1,2.50,-0,-0.0,1e5,1E+16,1e-5,123456789012345678901])")->DumpLikePython(),
      "[1, 2.5, 0, -0.0, 100000.0, 1e+16, 1e-05, 123456789012345678901]");
  EXPECT_EQ(JsonText::Parse(R"("\u00e9\/\u0007\u007f\n\ud83d\ude42")")->DumpLikePython(),
            "\"é/\\u0007\x7F\\n🙂\"");
}

}  // namespace
}  // namespace outrider
