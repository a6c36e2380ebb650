// Calls with marks that are missing, misspelt or said twice: the next mark tells what was meant. No
// argument gets another's value, and no mark gets into a name or an argument. One case per fault
// makes it long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_parser.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

using nlohmann::json;
using TextEnd = OutputParser::TextEnd;

// What a text comes to, in one line: {"content": ..., "reasoning": ..., "calls": [[name,
// arguments]]}.
json Read(const OutputTask& task, const std::vector<std::string>& texts, TextEnd end) {
  OutputParser parser(task);
  std::vector<OutputPiece> pieces;
  for (const std::string& text : texts) parser.Push(text, &pieces);
  parser.Finish(end, &pieces);
  json read = {{"content", ""}, {"reasoning", ""}, {"calls", json::array()}};
  for (const OutputPiece& piece : pieces) {
    switch (piece.kind) {
      case OutputPiece::Kind::kContent:
        read["content"] = read["content"].get<std::string>() + piece.text;
        break;
      case OutputPiece::Kind::kReasoning:
        read["reasoning"] = read["reasoning"].get<std::string>() + piece.text;
        break;
      case OutputPiece::Kind::kToolCall:
        read["calls"].push_back({piece.text, ""});
        break;
      case OutputPiece::Kind::kArguments:
        json& arguments = read["calls"].back()[1];
        arguments = arguments.get<std::string>() + piece.text;
        break;
    }
  }
  read["cut off"] = parser.call_cut_off();
  return read;
}

// Every cut into two, and into pieces of one, two and three characters, gives the same.
json ReadInAnyCut(const OutputTask& task, const std::string& text, TextEnd end) {
  const json whole = Read(task, {text}, end);
  std::vector<std::string> characters;
  for (size_t i = 0; i < text.size();) {
    const size_t size = ReadUtf8(std::string_view(text).substr(i)).size;
    characters.push_back(text.substr(i, size));
    i += size;
    EXPECT_EQ(Read(task, {text.substr(0, i), text.substr(i)}, end), whole)
        << "cut after " << text.substr(0, i);
  }
  for (const size_t size : {1, 2, 3}) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < characters.size(); ++i) {
      if (i % size == 0) pieces.emplace_back();
      pieces.back() += characters[i];
    }
    EXPECT_EQ(Read(task, pieces, end), whole) << "pieces of " << size;
  }
  return whole;
}

// Parameters of every kind.
const json kSchema = json::parse(R"({"type": "object", "$defs": {
    "name": {"type": "string"}, "self": {"$ref": "#/$defs/self"}},
  "properties": {
    "path": {"type": "string"}, "text": {"type": "string"},
    "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
    "list": {"type": "array"}, "map": {"type": "object"},
    "any of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "types": {"type": ["string", "null"]},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "all of": {"allOf": [{"type": "string"}, {"minLength": 1}]},
    "enum": {"enum": ["12345", "x"]},
    "pattern": {"pattern": "^[0-9]+$"},
    "reference": {"$ref": "#/$defs/name"},
    "circle": {"$ref": "#/$defs/self"},
    "free": {"description": "whatever"},
    "not a number": {"not": {"type": "number"}},
    "number or null": {"type": ["integer", "null"]},
    "mixed": {"enum": ["a", 12345, null, {"a": 1}]},
    "no strings": {"not": {"type": "string"}},
    "constant": {"const": 7},
    "bounds": {"minimum": 1},
    "members": {"properties": {"a": {"type": "integer"}}}}})");

OutputTask TaskOf(const char* format, bool reasoning = false) {
  OutputTask task;
  task.reasoning = reasoning;
  task.reasoning_open = reasoning;
  task.tools = ChooseOutputFormat(format, "none", "", "").tools;
  task.types = {{"save", ParameterTypesOf(kSchema)}};
  return task;
}

struct Case {
  std::string text;
  std::string calls;  // JSON: [[name, arguments], ...]; "": the text is content as it is
};

void Check(const char* format, const std::vector<Case>& cases) {
  const OutputTask task = TaskOf(format);
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(format) + ": " + one.text);
    json read = ReadInAnyCut(task, one.text, TextEnd::kByModel);
    if (one.calls.empty()) {
      EXPECT_EQ(read["calls"], json::array());
      EXPECT_EQ(read["content"], one.text);
      continue;
    }
    const json wanted = json::parse(one.calls);
    ASSERT_EQ(read["calls"].size(), wanted.size()) << read;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::string arguments = read["calls"][i][1];
      EXPECT_EQ(read["calls"][i][0], wanted[i][0]);
      ASSERT_TRUE(json::accept(arguments)) << arguments;
      EXPECT_EQ(json::parse(arguments), wanted[i][1]) << arguments;
      // A name that comes twice would be in the text twice.
      for (const auto& [name, value] : wanted[i][1].items()) {
        const std::string spelled = json(name).dump() + ":";
        EXPECT_EQ(arguments.find(spelled), arguments.rfind(spelled)) << arguments;
      }
    }
  }
}

std::string Glm(const std::string& inside) { return "<tool_call>" + inside + "</tool_call>"; }

TEST(BrokenCallsTest, GlmsMarksMayBeMissing) {
  const std::string path = "<arg_key>path</arg_key><arg_value>/tmp/a</arg_value>";
  const std::string text = "<arg_key>text</arg_key><arg_value>hello</arg_value>";
  const std::string both = R"([["save", {"path": "/tmp/a", "text": "hello"}]])";
  Check(
      "glm47",
      {
          {Glm("save" + path + text), both},
          // One mark is missing, each in turn.
          {Glm("save path</arg_key><arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save\n<arg_key>path<arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a\n" + text), both},
          {Glm("save" + path + "text</arg_key><arg_value>hello</arg_value>"), both},
          {Glm("save" + path + "<arg_key>text<arg_value>hello</arg_value>"), both},
          {Glm("save" + path + "<arg_key>text</arg_key>hello</arg_value>"), both},
          {Glm("save" + path + "<arg_key>text</arg_key><arg_value>hello"), both},
          {"<tool_call>save" + path + text, both},
          // Two of them.
          {Glm("save<arg_key>path</arg_key>/tmp/a" + text), both},
          {Glm("save" + path + "<arg_key>text</arg_key>hello"), both},
          {Glm("save\npath</arg_key>/tmp/a</arg_value>" + text), both},
          // Said twice, misspelt, in another's place.
          {Glm("save<arg_key><arg_key>path</arg_key><arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key></arg_key><arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value><arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a</arg_value></arg_value>" + text),
           both},
          {Glm("save<arg_key>path</arg_value><arg_value>/tmp/a</arg_value>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a</arg_key>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a</arg_val>" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a</value>\n" + text), both},
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a</argvalue" + text), both},
          {Glm("save" + path + "<arg_key>text</arg_key><arg_value>hello</arg-value>"), both},
          {Glm("save" + path + "junk" + text), both},
          // A key without a value has an empty one; a value without a key belongs to none.
          {Glm("save<arg_key>path</arg_key>"), R"([["save", {"path": ""}]])"},
          {Glm("save<arg_key>path</arg_key>" + text),
           R"([["save", {"path": "", "text": "hello"}]])"},
          {Glm("save<arg_key>path" + text), R"([["save", {"path": "", "text": "hello"}]])"},
          {Glm("save" + path + "<arg_value>x</arg_value>" + text), both},
          // The first value of a name counts.
          {Glm("save" + path + "<arg_key>path</arg_key><arg_value>/etc</arg_value>" + text), both},
          {Glm("save<arg_key>n</arg_key><arg_value>1</arg_value>"
               "<arg_key>n</arg_key><arg_value>2</arg_value>"),
           R"([["save", {"n": 1}]])"},
          // Two calls stay two.
          {Glm("save<arg_key>path</arg_key><arg_value>/tmp/a") + Glm("save" + text),
           R"([["save", {"path": "/tmp/a"}], ["save", {"text": "hello"}]])"},
          {"<tool_call>save<arg_key>path</arg_key><arg_value>/tmp/a" + Glm("save" + text),
           R"([["save", {"path": "/tmp/a"}], ["save", {"text": "hello"}]])"},
          {"<tool_call>save" + path + "\n" + Glm("now"),
           R"([["save", {"path": "/tmp/a"}], ["now", {}]])"},
          {Glm("save<arg_key>n</arg_key><arg_value>12") + Glm("now"),
           R"([["save", {"n": 12}], ["now", {}]])"},
          // Text in a value that only looks like a mark.
          {Glm("save<arg_key>text</arg_key><arg_value>a < b </p> <arg></arg_value>"),
           R"([["save", {"text": "a < b </p> <arg>"}]])"},
          {Glm("save<arg_key>text</arg_key><arg_value> <b>x</b>\n</arg_value>"),
           R"([["save", {"text": " <b>x</b>\n"}]])"},
          {Glm("save<arg_key>text</arg_key><arg_value></arg_val></arg_value>"),
           R"([["save", {"text": "</arg_val>"}]])"},
          // No call at all.
          {Glm("sa<b>ve</b>" + path), ""},
          {Glm("<name>save</name>" + path), ""},
          {Glm("save<arg_value>x</arg_value>"), ""},
          {Glm("save the day" + path), ""},
          {Glm(path), ""},
          {Glm("save(\"x\")"), ""},
      });
}

TEST(BrokenCallsTest, WhatMayBeAStringStaysOne) {
  const auto call = [](const std::string& name, const std::string& value) {
    return Glm("save<arg_key>" + name + "</arg_key><arg_value>" + value + "</arg_value>");
  };
  std::vector<Case> cases;
  const auto expect = [&](const std::string& name, const std::string& value, const json& wanted) {
    cases.push_back({call(name, value), json::array({{"save", {{name, wanted}}}}).dump()});
  };
  for (const char* name : {"path", "any of", "types", "one of", "all of", "pattern", "reference",
                           "circle", "free", "not a number"}) {
    for (const char* value :
         {"12345", "{\"a\": 1}", "\"q\"", "null", "true", "1e5", "[1]", " 5 "}) {
      expect(name, value, value);
    }
  }
  expect("enum", "12345", "12345");
  expect("n", "12345", 12345);
  expect("n", " 5\n", 5);
  expect("n", "five", "five");
  expect("n", "5.5", "5.5");
  expect("n", "true", "true");
  expect("n", "\"5\"", "\"5\"");
  expect("x", "5.5", 5.5);
  expect("x", "5", 5);
  expect("on", "true", true);
  expect("on", "True", "True");
  expect("list", "[1, \"a\"]", json::parse("[1, \"a\"]"));
  expect("map", "{\"a\": 1}", json::parse("{\"a\": 1}"));
  expect("map", "{\"a\": ", "{\"a\": ");
  expect("number or null", "null", nullptr);
  expect("number or null", "5", 5);
  expect("mixed", "a", "a");
  expect("mixed", "12345", 12345);
  expect("mixed", "null", nullptr);
  expect("mixed", "{\"a\": 1}", json::parse("{\"a\": 1}"));
  expect("mixed", "b", "b");
  expect("no strings", "5", 5);
  expect("constant", "7", 7);
  expect("bounds", "7", 7);
  expect("members", "{\"a\": 1}", json::parse("{\"a\": 1}"));
  expect("unknown to the schema", "5", 5);
  expect("unknown to the schema", "five", "five");
  Check("glm45", cases);
  // Step-3.5's values are read the same way.
  for (Case& one : cases) {
    const auto replace = [&](std::string_view from, std::string_view to) {
      const size_t at = one.text.find(from);
      one.text.replace(at, from.size(), to);
    };
    replace("<tool_call>save", "<tool_call>\n<function=save>\n");
    replace("<arg_key>", "<parameter=");
    replace("</arg_key><arg_value>", ">\n");
    replace("</arg_value></tool_call>", "\n</parameter>\n</function>\n</tool_call>");
  }
  Check("step3p5", cases);
}

std::string Dsml(const std::string& inside) {
  return "<｜DSML｜invoke name=\"save\">\n" + inside + "</｜DSML｜invoke>";
}

TEST(BrokenCallsTest, DsmlsMarksMayBeMissing) {
  const std::string text =
      "<｜DSML｜parameter name=\"text\" string=\"true\">hello</｜DSML｜parameter>\n";
  const std::string begin = "<｜DSML｜parameter name=\"path\" string=\"true\">/tmp/a";
  const std::string both = R"([["save", {"path": "/tmp/a", "text": "hello"}]])";
  const std::string end = "</｜DSML｜parameter>\n";
  const std::vector<Case> cases = {
      {Dsml(begin + end + text), both},
      // The end is missing.
      {Dsml(begin + text), both},
      {Dsml(begin + "\n" + text), both},
      {Dsml(text + begin), both},
      {Dsml(text + begin + "\n"), both},
      // Misspelt.
      {Dsml(begin + "</｜DSML｜param>\n" + text), both},
      {Dsml(begin + "</｜DSML｜parameters>\n" + text), both},
      {Dsml(begin + "</｜DSML｜Parameter>\n" + text), both},
      {Dsml(begin + "</｜DSML｜parameter\n" + text), both},
      {Dsml(begin + "</｜DSML｜parameter name=\"path\">\n" + text), both},
      {Dsml(begin + "<｜DSML｜/parameter>\n" + text), both},
      {Dsml(begin + "</parameter>\n" + text), both},
      {Dsml(begin + "</|DSML|parameter>\n" + text), both},
      {Dsml(begin + "</DSML｜parameter>\n" + text), both},
      {Dsml(begin + "</paramater>" + text), both},
      {Dsml(text + begin + "</parameter>"), both},
      {Dsml(begin + end + end + text), both},
      // Attributes.
      {Dsml("<｜DSML｜parameter name=\"path\">/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter name='path' string='true'>/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter name=path string=true>/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter string=\"true\" name=\"path\">/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter string=\"false\" name=\"path\">5" + end),
       R"([["save", {"path": 5}]])"},
      {Dsml("<｜DSML｜parameter name=\"path>/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter  name=\"path\"  string=\"true\" >/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜param name=\"path\" string=\"true\">/tmp/a" + end + text), both},
      {Dsml("<｜DSML｜parameter string=\"true\">lost" + end + text),
       R"([["save", {"text": "hello"}]])"},
      {Dsml("<｜DSML｜parameter name=\"a>b\" string=\"true\">x" + end),
       R"([["save", {"a>b": "x"}]])"},
      {Dsml("<｜DSML｜parameter name=\"n\">5" + end), R"([["save", {"n": 5}]])"},
      {Dsml("<｜DSML｜parameter name=\"path\">5" + end), R"([["save", {"path": "5"}]])"},
      {Dsml("<｜DSML｜parameter name=\"n\" string=\"false\">5" + text),
       R"([["save", {"n": 5, "text": "hello"}]])"},
      {Dsml("<｜DSML｜parameter name=\"n\" string=\"maybe\">5" + end), R"([["save", {"n": 5}]])"},
      // What the model says of a value counts before the schema.
      {Dsml("<｜DSML｜parameter name=\"n\" string=\"true\">5" + end), R"([["save", {"n": "5"}]])"},
      {Dsml("<｜DSML｜parameter name=\"types\" string=\"false\">null" + end),
       R"([["save", {"types": null}]])"},
      {Dsml(begin + end + begin + "2" + end), R"([["save", {"path": "/tmp/a"}]])"},
      // Two calls stay two, and the block's end ends them.
      {"<｜DSML｜invoke name=\"save\">\n" + begin + "\n" + Dsml(text),
       R"([["save", {"path": "/tmp/a"}], ["save", {"text": "hello"}]])"},
      {"<｜DSML｜invoke name=\"save\">\n" + begin + "</｜DSML｜invok>\n" + Dsml(text),
       R"([["save", {"path": "/tmp/a"}], ["save", {"text": "hello"}]])"},
      // Text that looks like a mark.
      {Dsml("<｜DSML｜parameter name=\"text\" string=\"true\"><p>a</p>\n</parameter>" + end),
       R"([["save", {"text": "<p>a</p>\n</parameter>"}]])"},
      // No call at all.
      {"<｜DSML｜invoke name=\"sa<b>ve\">\n" + text + "</｜DSML｜invoke>", ""},
  };
  for (const char* format : {"deepseek_v4", "deepseek_v32"}) {
    Check(format, cases);
    const ToolFormat& tools = *TaskOf(format).tools;
    std::string block(tools.section_begin);
    block += "\n<｜DSML｜invoke name=\"save\">\n" + begin + "\n";
    block += tools.section_end;
    Check(format, {{block, R"([["save", {"path": "/tmp/a"}]])"}});
  }
}

std::string Step(const std::string& inside) {
  return "<tool_call>\n<function=save>\n" + inside + "</function>\n</tool_call>";
}

TEST(BrokenCallsTest, StepsMarksMayBeMissing) {
  const std::string text = "<parameter=text>\nhello\n</parameter>\n";
  const std::string both = R"([["save", {"path": "/tmp/a", "text": "hello"}]])";
  Check("step3p5",
        {
            {Step("<parameter=path>\n/tmp/a\n</parameter>\n" + text), both},
            {Step("<parameter=path>/tmp/a</parameter>" + text), both},
            {Step("<parameter=path>\n/tmp/a\n" + text), both},
            {Step("<parameter=path>\n/tmp/a</param>\n" + text), both},
            {Step(text + "<parameter=path>\n/tmp/a\n"), both},
            {"<function=save>\n<parameter=path>\n/tmp/a\n</parameter>\n" + text + "</function>",
             both},
            {"<tool_call>\n<function=save>\n<parameter=path>\n/tmp/a\n" + text + "</tool_call>",
             both},
            {"<tool_call>\n<function=save>\n" + text + Step(text),
             R"([["save", {"text": "hello"}], ["save", {"text": "hello"}]])"},
            {Step("<parameter=text>\n\nhello\n\n</parameter>\n"),
             R"([["save", {"text": "\nhello\n"}]])"},
            {Step("<parameter=text>\n<p>\n</p>\n</parameter>\n"),
             R"([["save", {"text": "<p>\n</p>"}]])"},
            {Step(""), R"([["save", {}]])"},
            {"<function=sa<b>ve>\n" + text + "</function>", ""},
        });
}

// What a limit cuts off is not completed, and never called whole.
TEST(BrokenCallsTest, ACallThatIsCutOffStaysCutOff) {
  struct CutOff {
    const char* format;
    std::string text;
    std::string arguments;
  };
  const std::string dsml = "<｜DSML｜invoke name=\"save\">\n";
  for (const CutOff& one : std::vector<CutOff>{
           {"glm47", "<tool_call>save<arg_key>n</arg_key><arg_value>12", "{\"n\": 12"},
           {"glm47", "<tool_call>save<arg_key>n</arg_key><arg_value>12</arg_value>", "{\"n\": 12"},
           {"glm47", "<tool_call>save<arg_key>n</arg_key><arg_value>12</arg_va", "{\"n\": 12"},
           {"glm47", "<tool_call>save<arg_key>n</arg_key>", "{"},
           {"glm47", "<tool_call>save<arg_key>text</arg_key><arg_value>ab", "{\"text\": \"ab"},
           {"glm47", "<tool_call>save<arg_key>map</arg_key><arg_value>{\"a\": 1, \"b",
            "{\"map\": {\"a\": 1, \"b"},
           {"deepseek_v4", dsml, "{"},
           {"deepseek_v4", dsml + "<｜DSML｜parameter name=\"text\" string=\"true\">ab",
            "{\"text\": \"ab"},
           {"deepseek_v4", dsml + "<｜DSML｜parameter name=\"text\" string=\"true\">ab</｜DS",
            "{\"text\": \"ab"},
           {"deepseek_v4",
            dsml + "<｜DSML｜parameter name=\"text\" string=\"true\">ab</｜DSML｜parameter>\n",
            "{\"text\": \"ab\""},
           {"step3p5", "<tool_call>\n<function=save>\n<parameter=n>\n1", "{\"n\": 1"},
           {"step3p5", "<tool_call>\n<function=save>\n", "{"},
           {"deepseek_v31", "<｜tool▁call▁begin｜>save<｜tool▁sep｜>", ""},
           {"deepseek_v31", "<｜tool▁call▁begin｜>save<｜tool▁sep｜>{\"a\": 1", "{\"a\": 1"},
           {"deepseek_v31", "<｜tool▁call▁begin｜>save<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁e",
            "{\"a\": 1}<｜tool▁call▁e"},
           {"kimi_k2", "<|tool_call_begin|>functions.save:0<|tool_call_argument_begin|>{", "{"},
       }) {
    SCOPED_TRACE(one.text);
    const json read = ReadInAnyCut(TaskOf(one.format), one.text, TextEnd::kCutOff);
    EXPECT_EQ(read["calls"], (json::array({{"save", one.arguments}})));
    EXPECT_EQ(read["cut off"], true);
  }
  // A model that ends by itself between arguments has said all of them.
  const json read =
      ReadInAnyCut(TaskOf("glm47"), "<tool_call>save<arg_key>n</arg_key><arg_value>12</arg_value>",
                   TextEnd::kByModel);
  EXPECT_EQ(read["calls"], (json::array({{"save", "{\"n\": 12}"}})));
  EXPECT_EQ(read["cut off"], false);
  // Within one, it has not.
  EXPECT_EQ(ReadInAnyCut(TaskOf("glm47"), "<tool_call>save<arg_key>n</arg_key><arg_value>12",
                         TextEnd::kByModel)["cut off"],
            true);
}

struct WholeCall {
  const char* format;
  std::string text;
};

const std::vector<WholeCall> kWholeCalls = {
    {"glm45", "<tool_call>save\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
    {"glm47", "<tool_call>save<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"},
    {"ling3", "<tool_call>save<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
    {"ling3", "<tool_call>save\\n<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"},
    {"deepseek_v3",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>save\n```json\n{\"n\": "
     "1}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek_v3",
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>save\n```json\n{\"n\": 1}\n```"
     "<｜tool▁call▁end｜>"},
    {"deepseek_v31",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>save<｜tool▁sep｜>{\"n\": 1}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek_v32",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"save\">\n<｜DSML｜parameter name=\"n\" "
     "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
    {"deepseek_v4",
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"save\">\n<｜DSML｜parameter name=\"n\" "
     "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
    {"kimi_k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.save:0"
     "<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>"},
    {"step3p5",
     "<tool_call>\n<function=save>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"},
};

const json kSaved = json::array({{"save", "{\"n\": 1}"}});

TEST(BrokenCallsTest, ACallEndsTheReasoning) {
  for (const WholeCall& call : kWholeCalls) {
    SCOPED_TRACE(call.text);
    const OutputTask task = TaskOf(call.format, true);
    json read = ReadInAnyCut(task, "Hm.\n" + call.text, TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], "Hm.");
    EXPECT_EQ(read["calls"], kSaved);
    EXPECT_EQ(read["content"], "");
    // The mark that the call came before is no content.
    read = ReadInAnyCut(task, "Hm.\n" + call.text + "\n</think>\n\nDone.", TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], "Hm.");
    EXPECT_EQ(read["calls"], kSaved);
    EXPECT_EQ(read["content"], "Done.");
  }
  // What is no call does not.
  for (const char* text : {"Use <tool_call> tags, or not.", "Write <tool_call></tool_call>."}) {
    const json read =
        ReadInAnyCut(TaskOf("glm47", true), std::string(text) + "</think>Yes.", TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], text);
    EXPECT_EQ(read["content"], "Yes.");
  }
}

// As Ling-3.0 is known to write them: a call without arguments, and a line end behind the name that
// is two characters.
TEST(BrokenCallsTest, Ling3sCalls) {
  const std::string pair = "<arg_key>path</arg_key>\n<arg_value>/a</arg_value>";
  Check("ling3",
        {
            {Glm("now"), R"([["now", {}]])"},
            {Glm("now\n"), R"([["now", {}]])"},
            {Glm("now\\n"), R"([["now", {}]])"},
            {Glm("save\n" + pair + "\n"), R"([["save", {"path": "/a"}]])"},
            {Glm("save\\n" + pair), R"([["save", {"path": "/a"}]])"},
            {Glm("save\\n\n" + pair + Glm("now")), R"([["save", {"path": "/a"}], ["now", {}]])"},
        });
}

TEST(BrokenCallsTest, ThinkingGoesOnBetweenCalls) {
  for (const WholeCall& call : kWholeCalls) {
    SCOPED_TRACE(call.text);
    const OutputTask task = TaskOf(call.format, true);
    json calls = kSaved;
    calls.push_back(kSaved[0]);
    json read = ReadInAnyCut(task, "a</think>" + call.text + "\n<think>b</think>\n" + call.text,
                             TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], "a\nb");
    EXPECT_EQ(read["content"], "");
    EXPECT_EQ(read["calls"], calls);
    // Also directly after thinking, and a call within the second one.
    read = ReadInAnyCut(task, "a</think>\n\n<think>b" + call.text + "<think>\nc</think>Done.",
                        TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], "a\nb\nc");
    EXPECT_EQ(read["calls"], kSaved);
    EXPECT_EQ(read["content"], "Done.");
    // In an answer it is what the answer is about.
    read = ReadInAnyCut(task, "a</think>The mark <think> begins it.", TextEnd::kByModel);
    EXPECT_EQ(read["reasoning"], "a");
    EXPECT_EQ(read["content"], "The mark <think> begins it.");
  }
}

TEST(BrokenCallsTest, KimisIdsAreDistinct) {
  const auto call = [](const std::string& id) {
    return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
  };
  std::vector<OutputPiece> pieces;
  const OutputTask task = TaskOf("kimi_k2");
  OutputParser ids(task);
  for (const char* id :
       {"functions.f:0", "functions.f:0", "functions.f:1", "functions.g:0", "f", "f"}) {
    ids.Push(call(id), &pieces);
  }
  ids.Finish(TextEnd::kByModel, &pieces);
  std::vector<std::string> given;
  std::vector<std::string> names;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind != OutputPiece::Kind::kToolCall) continue;
    given.push_back(piece.call_id);
    names.push_back(piece.text);
  }
  EXPECT_THAT(given, testing::ElementsAre("functions.f:0", "functions.f:1", "functions.f:2",
                                          "functions.g:0", "f", "f:0"));
  EXPECT_THAT(names, testing::ElementsAre("f", "f", "f", "g", "f", "f"));
}

}  // namespace
}  // namespace outrider
