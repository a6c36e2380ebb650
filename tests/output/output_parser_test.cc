// Reasoning and tool calls in models' texts: what is found, and that it does not depend on how the
// text was cut. One case per format makes it long.
#include "outrider/output/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

OutputTask Task(const char* tools, bool reasoning_open = false) {
  OutputTask task;
  task.reasoning = true;
  task.reasoning_open = reasoning_open;
  task.tools = ChooseOutputFormat(tools, "none", "", "").tools;
  const ValueTypes string = {ValueTypes::kString, {}};
  task.types = {{"search", {{"query", string}, {"language", string}}},
                {"write", {{"text", string}}}};
  return task;
}

struct Parsed {
  std::vector<std::string> lines;  // "content: ...", "call: name [id]", ...
  size_t reasoning_bytes = 0;
  bool cut_off = false;

  bool operator==(const Parsed&) const = default;
};

// For rapidcheck.
std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  for (const std::string& line : parsed.lines) out << line << "\n";
  return out << parsed.reasoning_bytes;
}

Parsed Parse(const OutputTask& task, const std::vector<std::string>& texts,
             OutputParser::TextEnd end = OutputParser::TextEnd::kByModel) {
  OutputParser parser(task);
  std::vector<OutputPiece> pieces;
  for (const std::string& text : texts) {
    std::vector<OutputPiece> some;
    parser.Push(text, &some);
    for (OutputPiece& piece : some) {
      if (piece.kind == OutputPiece::Kind::kToolCall) {
        pieces.push_back(std::move(piece));
      } else {
        EXPECT_FALSE(piece.text.empty());
        AppendText(piece.kind, piece.text, &pieces);
      }
    }
  }
  parser.Finish(end, &pieces);
  Parsed parsed;
  size_t total = 0;
  for (const OutputRun& run : parser.TakeRuns()) {
    total += run.bytes;
    if (run.part == OutputRun::Part::kReasoning) parsed.reasoning_bytes += run.bytes;
  }
  parsed.cut_off = parser.call_cut_off();
  EXPECT_EQ(total,
            std::accumulate(texts.begin(), texts.end(), size_t{0},
                            [](size_t sum, const std::string& text) { return sum + text.size(); }));
  for (const OutputPiece& piece : pieces) {
    switch (piece.kind) {
      case OutputPiece::Kind::kReasoning:
        parsed.lines.push_back("reasoning: " + piece.text);
        break;
      case OutputPiece::Kind::kContent:
        parsed.lines.push_back("content: " + piece.text);
        break;
      case OutputPiece::Kind::kToolCall:
        parsed.lines.push_back("call: " + piece.text + " [" + piece.call_id + "]");
        break;
      case OutputPiece::Kind::kArguments:
        parsed.lines.push_back("arguments: " + piece.text);
        break;
    }
  }
  return parsed;
}

std::vector<std::string> Lines(const OutputTask& task, const std::string& text) {
  return Parse(task, {text}).lines;
}

TEST(OutputParserTest, PlainTextIsContent) {
  EXPECT_THAT(Lines(Task("none"), "Hello.\n"), ElementsAre("content: Hello.\n"));
  EXPECT_THAT(Lines(Task("glm45"), "\n 1 < 2 <tool \n"), ElementsAre("content: \n 1 < 2 <tool \n"));
  EXPECT_THAT(Lines(Task("glm45"), ""), IsEmpty());
  EXPECT_THAT(Lines(Task("glm45"), " \n"), ElementsAre("content:  \n"));
}

TEST(OutputParserTest, ReasoningComesFirst) {
  EXPECT_THAT(Lines(Task("none"), "<think>\nHm.\n\nYes.\n</think>\n\nHello <think>x</think>"),
              ElementsAre("reasoning: Hm.\n\nYes.", "content: Hello <think>x</think>"));
  EXPECT_THAT(Lines(Task("none"), "\n<think></think>a"), ElementsAre("content: a"));
  EXPECT_THAT(Lines(Task("none"), "I <think>so</think>"),
              ElementsAre("content: I <think>so</think>"));
  EXPECT_THAT(Lines(Task("none"), "<think>cut off\n"), ElementsAre("reasoning: cut off\n"));
  EXPECT_THAT(Lines(Task("none"), "<thin"), ElementsAre("content: <thin"));
  const std::string space(65, ' ');
  EXPECT_THAT(Lines(Task("none"), space + "<think>"), ElementsAre("content: " + space + "<think>"));
}

TEST(OutputParserTest, ReasoningMayBeOpenAlready) {
  EXPECT_THAT(Lines(Task("none", true), "Hm.</think>Hello"),
              ElementsAre("reasoning: Hm.", "content: Hello"));
  EXPECT_THAT(Lines(Task("none", true), "\n<think>\nHm.</think>Hello"),
              ElementsAre("reasoning: Hm.", "content: Hello"));
  EXPECT_THAT(Lines(Task("none", true), "all of it"), ElementsAre("reasoning: all of it"));
}

TEST(OutputParserTest, CountsTheBytesOfReasoning) {
  EXPECT_EQ(Parse(Task("none"), {"<think>ab</think>cd"}).reasoning_bytes, 17);
  EXPECT_EQ(Parse(Task("none", true), {"ab</think>cd"}).reasoning_bytes, 10);
  EXPECT_EQ(Parse(Task("none", true), {"abc</thi"}).reasoning_bytes, 8);
  EXPECT_EQ(Parse(Task("none"), {"abc"}).reasoning_bytes, 0);
  EXPECT_EQ(Parse(Task("kimi_k2", true), {"ab<|tool_calls_section_begin|>cd"}).reasoning_bytes, 2);
}

TEST(OutputParserTest, WithoutAFormatMarkersAreContent) {
  OutputTask task = Task("none");
  task.reasoning = false;
  const std::string text = "<think>a</think> <tool_call>f</tool_call>\n";
  EXPECT_THAT(Lines(task, text), ElementsAre("content: " + text));
}

const std::string kV3Calls =
    "I look. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
    "{\"query\": \"rain\"}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>";

TEST(OutputParserTest, DeepSeekV3) {
  EXPECT_THAT(Lines(Task("deepseek_v3"), kV3Calls),
              ElementsAre("content: I look.", "call: search []", "arguments: {\"query\": \"rain\"}",
                          "call: now []", "arguments: {}"));
  EXPECT_THAT(
      Lines(Task("deepseek_v3"),
            "<think>\nHm\n</think>\n\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
            "```<｜tool▁call▁end｜>"),
      ElementsAre("reasoning: Hm", "call: now []", "arguments: {}"));
}

const std::string kV31Calls =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query\": \"`a`\\n\"}"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><"
    "｜tool▁calls▁end｜>\n";

TEST(OutputParserTest, DeepSeekV31) {
  EXPECT_THAT(Lines(Task("deepseek_v31"), kV31Calls),
              ElementsAre("call: search []", "arguments: {\"query\": \"`a`\\n\"}", "call: now []",
                          "arguments: {}"));
}

const std::string kKimiCalls =
    "Both.<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0"
    "<|tool_call_argument_begin|>{\"query\": \"a\"}<|tool_call_end|><|tool_call_begin|> "
    "functions.x.y:12 "
    "<|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>";

TEST(OutputParserTest, KimiK2) {
  EXPECT_THAT(Lines(Task("kimi_k2"), kKimiCalls),
              ElementsAre("content: Both.", "call: search [functions.search:0]",
                          "arguments: {\"query\": \"a\"}", "call: x.y [functions.x.y:12]",
                          "arguments: {}"));
  // Reasoning that a call ends.
  EXPECT_THAT(Lines(Task("kimi_k2", true),
                    "Hm\n<|tool_calls_section_begin|><|tool_call_begin|>now:0"
                    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
              ElementsAre("reasoning: Hm", "call: now [now:0]", "arguments: {}"));
}

const std::string kGlmCalls =
    "<think>Hm</think>\nI look.\n<tool_call>search\n<arg_key>query</arg_key>\n"
    "<arg_value>5 \"x\"\n\\</arg_value>\n<arg_key>count</arg_key>\n<arg_value>5</arg_value>\n"
    "<arg_key>deep</arg_key>\n<arg_value>{\"a\": [1, 2]}</arg_value>\n<arg_key>odd</arg_key>\n"
    "<arg_value>not json</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>";

TEST(OutputParserTest, Glm) {
  const std::vector<std::string> lines = Lines(Task("glm45"), kGlmCalls);
  EXPECT_THAT(lines, ElementsAre("reasoning: Hm", "content: I look.", "call: search []",
                                 "arguments: {\"query\": \"5 \\\"x\\\"\\n\\\\\", \"count\": 5, "
                                 "\"deep\": {\"a\": [1, 2]}, \"odd\": \"not json\"}",
                                 "call: now []", "arguments: {}"));
  EXPECT_EQ(json::parse(lines[3].substr(11))["query"], "5 \"x\"\n\\");
  EXPECT_THAT(
      Lines(Task("glm47"),
            "<tool_call>write<arg_key>text</arg_key><arg_value>\x01\té</arg_value></tool_call>"),
      ElementsAre("call: write []", "arguments: {\"text\": \"\\u0001\\té\"}"));
}

const std::string kV4Calls =
    "<think>Hm</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"search\">\n"
    "<｜DSML｜parameter name=\"query\" string=\"true\">5 \"x\"\n</b></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"count\" string=\"false\">5</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"deep\" string=\"false\">{\"a\": [1, 2]}</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"o\"dd\" string=\"false\">not json</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST(OutputParserTest, DeepSeekV4) {
  const std::vector<std::string> lines = Lines(Task("deepseek_v4"), kV4Calls);
  EXPECT_THAT(lines, ElementsAre("reasoning: Hm", "content: I look.", "call: search []",
                                 "arguments: {\"query\": \"5 \\\"x\\\"\\n</b>\", \"count\": 5, "
                                 "\"deep\": {\"a\": [1, 2]}, \"o\\\"dd\": \"not json\"}",
                                 "call: now []", "arguments: {}"));
  EXPECT_EQ(json::parse(lines[3].substr(11))["o\"dd"], "not json");
  // Ends that are missing, calls that are none.
  const std::string call = "<｜DSML｜invoke name=\"now\">\n";
  EXPECT_THAT(Lines(Task("deepseek_v4"), call), ElementsAre("call: now []", "arguments: {}"));
  EXPECT_THAT(Lines(Task("deepseek_v4"), call + call + "</｜DSML｜tool_calls>done"),
              ElementsAre("call: now []", "arguments: {}", "call: now []", "arguments: {}",
                          "content: done"));
  EXPECT_THAT(Lines(Task("deepseek_v4"),
                    call + "<｜DSML｜parameter name=\"a\" string=\"true\">b</｜DSML｜"),
              ElementsAre("call: now []", "arguments: {\"a\": \"b"));
  for (const char* text : {"<｜DSML｜invoke name=\"two words\">x", "<｜DSML｜invoke name=\"now",
                           "<｜DSML｜invoke name=\"\">", "The tag <｜DSML｜invoke> calls"}) {
    EXPECT_THAT(Lines(Task("deepseek_v4"), text), ElementsAre(std::string("content: ") + text));
  }
}

// A stray marker, a call without a name, one that never gets to its arguments: content.
TEST(OutputParserTest, WhatIsNoCallIsContent) {
  for (const char* text :
       {"Write <tool_call> tags like <this>, and many more words follow here",
        "<tool_call></tool_call>", "a <tool_call>two words</tool_call> b", "x <tool_call>name"}) {
    EXPECT_THAT(Lines(Task("glm45"), text), ElementsAre(std::string("content: ") + text));
  }
  const std::string endless = "<tool_call>" + std::string(300, 'x') + "</tool_call>.";
  EXPECT_THAT(Lines(Task("glm45"), endless), ElementsAre("content: " + endless));
  const std::string no_name = "a\n<｜tool▁call▁begin｜>function\n{}<｜tool▁call▁end｜>";
  EXPECT_THAT(Lines(Task("deepseek_v3"), no_name), ElementsAre("content: " + no_name));
  EXPECT_THAT(Lines(Task("kimi_k2"), "<|tool_call_begin|> <|tool_call_argument_begin|>{}"),
              ElementsAre("content: <|tool_call_begin|> <|tool_call_argument_begin|>{}"));
}

TEST(OutputParserTest, MissingEndsAreForgiven) {
  EXPECT_THAT(Lines(Task("kimi_k2"),
                    "<|tool_call_begin|>a:0<|tool_call_argument_begin|>{}<|tool_call_begin|>b:1"
                    "<|tool_call_argument_begin|>{}<|tool_calls_section_end|>done"),
              ElementsAre("call: a [a:0]", "arguments: {}", "call: b [b:1]", "arguments: {}",
                          "content: done"));
  EXPECT_THAT(
      Lines(Task("glm45"), "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"),
      ElementsAre("call: now []", "arguments: {\"a\": 1}"));
}

TEST(OutputParserTest, ACallThatIsCutOffStaysCutOff) {
  EXPECT_THAT(Lines(Task("deepseek_v31"), "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "),
              ElementsAre("call: f []", "arguments: {\"a\":"));
  EXPECT_THAT(Lines(Task("glm45"), "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>ab"),
              ElementsAre("call: write []", "arguments: {\"text\": \"ab"));
}

TEST(OutputFormatTest, IsChosenByModelAndTemplate) {
  const auto tools = [](std::string_view model_type, std::string_view chat_template) {
    const OutputFormat format = ChooseOutputFormat("auto", "auto", model_type, chat_template);
    EXPECT_EQ(format.reasoning, format.tools != nullptr);
    return format.tools == nullptr ? "" : format.tools->name;
  };
  EXPECT_EQ(tools("deepseek_v3", "<｜tool▁call▁begin｜> ```json"), "deepseek_v3");
  EXPECT_EQ(tools("deepseek_v3", ""), "deepseek_v3");
  EXPECT_EQ(tools("deepseek_v3", "<｜tool▁call▁begin｜>"), "deepseek_v31");
  EXPECT_EQ(tools("deepseek_v4", ""), "deepseek_v4");
  EXPECT_EQ(tools("deepseek_v32", ""), "deepseek_v32");
  EXPECT_EQ(tools("deepseek_v32", "<｜tool▁call▁begin｜>"), "deepseek_v31");  // V3.2-Exp
  EXPECT_EQ(tools("glm_moe_dsa", ""), "glm47");
  EXPECT_EQ(tools("step3p5", ""), "step3p5");
  EXPECT_EQ(tools("kimi_k2", ""), "kimi_k2");
  EXPECT_EQ(tools("glm4_moe_lite", "</arg_key><arg_value>"), "glm47");
  EXPECT_EQ(tools("glm4_moe", "</arg_key>\n<arg_value>"), "glm45");
  EXPECT_EQ(tools("other", ""), "");
  EXPECT_FALSE(ChooseOutputFormat("auto", "none", "kimi_k2", "").reasoning);
  EXPECT_EQ(ChooseOutputFormat("none", "deepseek_r1", "kimi_k2", "").tools, nullptr);
  EXPECT_THROW(ChooseOutputFormat("hermes", "auto", "", ""), Error);
  EXPECT_THROW(ChooseOutputFormat("auto", "granite", "", ""), Error);
}

// `text` cut at random places between characters.
std::vector<std::string> Cut(const std::string& text) {
  std::vector<std::string> pieces = {""};
  const int longest = *rc::gen::element(1, 2, 3, 8, 30, 200);
  int left = *rc::gen::inRange(1, longest + 1);
  for (size_t i = 0; i < text.size();) {
    const size_t size = ReadUtf8(std::string_view(text).substr(i)).size;
    pieces.back() += text.substr(i, size);
    i += size;
    if (--left > 0) continue;
    left = *rc::gen::inRange(1, longest + 1);
    pieces.emplace_back();
  }
  return pieces;
}

const std::vector<std::string> kFormats = {"none",         "deepseek_v3", "deepseek_v31",
                                           "deepseek_v32", "deepseek_v4", "kimi_k2",
                                           "glm45",        "step3p5"};

// Markers of all formats and what stands between them, whole and broken.
std::string Soup() {
  static const std::vector<std::string> kParts = {
      "<think>",
      "</think>",
      "\n",
      " ",
      "é",
      "text",
      "<",
      "</",
      "{\"a\": 1}",
      "```json",
      "```",
      "`",
      "<｜tool▁calls▁begin｜>",
      "<｜tool▁call▁begin｜>",
      "function",
      "<｜tool▁sep｜>",
      "search",
      "<｜tool▁call▁end｜>",
      "<｜tool▁calls▁end｜>",
      "<｜tool▁call",
      "<|tool_calls_section_begin|>",
      "<|tool_call_begin|>",
      "functions.f:0",
      "<|tool_call_argument_begin|>",
      "<|tool_call_end|>",
      "<|tool_calls_section_end|>",
      "<tool_call>",
      "<arg_key>",
      "query",
      "</arg_key>",
      "<arg_value>",
      "5",
      "\"",
      "</arg_value>",
      "</tool_call>",
      std::string(100, 'x'),
      kV3Calls,
      kV31Calls,
      kKimiCalls,
      kGlmCalls,
      "<｜DSML｜tool_calls>",
      "<｜DSML｜invoke name=\"",
      "\">",
      "<｜DSML｜parameter name=\"",
      "\" string=\"true\">",
      "\" string=\"false\">",
      "</｜DSML｜parameter>",
      "</｜DSML｜invoke>",
      "</｜DSML｜tool_calls>",
      kV4Calls,
      "<｜DSML｜parameter",
      "</｜DSML｜",
      "name=\"n\"",
      ">",
      "</parameter>",
      "</arg_val>",
      "<function=",
      "</function>",
      "<parameter=",
      "<｜DSML｜function_calls>",
  };
  std::string text;
  for (const std::string& part :
       *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kParts))) {
    text += part;
  }
  return text;
}

void CheckCuts(const std::string& description, const auto& make_text) {
  EXPECT_TRUE(rc::check(description, [&] {
    const std::string text = make_text();
    const OutputTask task =
        Task(rc::gen::elementOf(kFormats).operator*().c_str(), *rc::gen::arbitrary<bool>());
    RC_ASSERT(Parse(task, Cut(text)) == Parse(task, {text}));
  }));
}

TEST(OutputParserTest, CutsDoNotMatterInGoodText) {
  static const std::vector<std::string> kTexts = {kV3Calls, kV31Calls, kV4Calls, kKimiCalls,
                                                  kGlmCalls};
  CheckCuts("calls of every format", [] { return *rc::gen::elementOf(kTexts); });
}

TEST(OutputParserTest, CutsDoNotMatterInAnyText) { CheckCuts("soup", Soup); }

// Whatever a model writes: nothing is said twice, and text without markers is not lost.
TEST(OutputParserTest, PlainWordsAreNeverLost) {
  EXPECT_TRUE(rc::check("plain words", [] {
    const auto words = *rc::gen::container<std::vector<std::string>>(
        rc::gen::element<std::string>("a", "<", "</", "<t", "<|", "\n", " ", "`", "é", "｜", ">"));
    std::string text;
    for (const std::string& word : words) text += word;
    OutputTask task = Task(rc::gen::elementOf(kFormats).operator*().c_str());
    const Parsed parsed = Parse(task, Cut(text));
    RC_ASSERT(parsed.lines == (text.empty() ? std::vector<std::string>()
                                            : std::vector<std::string>{"content: " + text}));
  }));
}

}  // namespace
}  // namespace outrider
