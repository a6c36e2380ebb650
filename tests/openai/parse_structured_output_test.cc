// What constrains the text, as bodies ask for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "outrider/openai/api_error.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request.h"

namespace outrider::openai {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TokenRequest ParseChat(const std::string& fields) {
  RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_model_len = 50;
  return ParseChatRequest(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}",
                          limits);
}

GrammarSpec Spec(const std::string& fields) {
  const TokenRequest request = ParseChat(fields);
  EXPECT_TRUE(request.grammar.has_value()) << fields;
  return request.grammar.value_or(GrammarSpec());
}

// "param | message" of the error that fields cause.
std::string ErrorOf(const std::string& fields) {
  try {
    ParseChat(fields);
  } catch (const RequestError& error) {
    return error.param() + " | " + error.what();
  }
  return "no error";
}

TEST(ParseStructuredOutputTest, ResponseFormats) {
  EXPECT_FALSE(ParseChat(R"("response_format":{"type":"text"})").grammar);
  EXPECT_FALSE(ParseChat(R"("response_format":null)").grammar);
  EXPECT_EQ(Spec(R"("response_format":{"type":"json_object"})").kind, GrammarKind::kJsonObject);
  const TokenRequest request = ParseChat(
      R"("response_format":{"type":"json_schema","json_schema":
         {"name":"n","strict":true,"schema": {"z": 1.0,"a":[ 2]} }})");
  EXPECT_EQ(request.grammar->kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(request.grammar->text, R"({"z": 1.0,"a":[ 2]})");  // as the client wrote it
  EXPECT_EQ(request.grammar_field, "response_format.json_schema.schema");
  const GrammarSpec tag =
      Spec(R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}})");
  EXPECT_EQ(tag.kind, GrammarKind::kStructuralTag);
  EXPECT_EQ(tag.text, R"({"type":"structural_tag","format":{"type":"any_text"}})");
}

TEST(ParseStructuredOutputTest, StructuredOutputs) {
  const GrammarSpec schema = Spec(R"("structured_outputs":{"json":{"b":1,"a":2}})");
  EXPECT_EQ(schema.kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(schema.text, R"({"b":1,"a":2})");
  EXPECT_EQ(Spec(R"("structured_outputs":{"json":"{\"b\":1}"})").text, R"({"b":1})");
  EXPECT_EQ(Spec(R"("structured_outputs":{"regex":"a*"})").kind, GrammarKind::kRegex);
  EXPECT_EQ(Spec(R"("structured_outputs":{"regex":"a*"})").text, "a*");
  EXPECT_EQ(Spec(R"("structured_outputs":{"grammar":"root ::= \"a\""})").kind, GrammarKind::kEbnf);
  EXPECT_EQ(Spec(R"("structured_outputs":{"json_object":true})").kind, GrammarKind::kJsonObject);
  EXPECT_EQ(Spec(R"("structured_outputs":{"structural_tag":{"x":1}})").kind,
            GrammarKind::kStructuralTag);
  EXPECT_EQ(Spec(R"("structured_outputs":{"structural_tag":"{\"x\":1}"})").text, R"({"x":1})");
  const TokenRequest choice = ParseChat(R"("structured_outputs":{"choice":["yes","no"]})");
  EXPECT_EQ(choice.grammar->kind, GrammarKind::kChoice);
  EXPECT_THAT(choice.grammar->choices, ElementsAre("yes", "no"));
  EXPECT_EQ(choice.grammar_field, "structured_outputs.choice");
  EXPECT_FALSE(ParseChat(R"("structured_outputs":{})").grammar);
  EXPECT_FALSE(ParseChat(R"("structured_outputs":{"json_object":false,"regex":null})").grammar);
}

TEST(ParseStructuredOutputTest, OlderNames) {
  EXPECT_EQ(Spec(R"("guided_json":{"b":1,"a":2})").text, R"({"b":1,"a":2})");
  EXPECT_EQ(Spec(R"("guided_regex":"a*","guided_decoding_backend":"xgrammar")").text, "a*");
  EXPECT_THAT(Spec(R"("guided_choice":["a"])").choices, ElementsAre("a"));
  EXPECT_EQ(Spec(R"("guided_grammar":"root ::= \"a\"")").kind, GrammarKind::kEbnf);
  EXPECT_THAT(ErrorOf(R"("guided_decoding_backend":"outlines")"),
              HasSubstr("guided_decoding_backend | "));
}

TEST(ParseStructuredOutputTest, CompletionsHaveThemToo) {
  RequestLimits limits;
  limits.vocab_size = 100;
  const TokenRequest request =
      ParseCompletionRequest(R"({"prompt":"x","structured_outputs":{"regex":"a"}})", limits);
  EXPECT_EQ(request.grammar->text, "a");
}

TEST(ParseStructuredOutputTest, ErrorsNameTheField) {
  for (const auto& [fields, param, message] : std::vector<std::array<const char*, 3>>{
           {R"("response_format":"json")", "response_format", "must be a JSON object"},
           {R"("response_format":{"type":"xml"})", "response_format.type", "must be \"text\""},
           {R"("response_format":{})", "response_format.type", "must be \"text\""},
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
            "is missing"},
           {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
            "response_format.json_schema.schema", "is missing"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":[1]}})",
            "response_format.json_schema.schema", "must be a JSON object or its text"},
           {R"("response_format":{"type":"json_object","schema":{}})", "response_format.schema",
            "unknown field"},
           {R"("structured_outputs":{"json":"{"})", "structured_outputs.json", "valid JSON"},
           {R"("structured_outputs":{"regex":""})", "structured_outputs.regex", "not empty"},
           {R"("structured_outputs":{"regex":1})", "structured_outputs.regex", "must be a string"},
           {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "at least one"},
           {R"("structured_outputs":{"choice":["a",""]})", "structured_outputs.choice[1]",
            "not empty"},
           {R"("structured_outputs":{"chioce":["a"]})", "structured_outputs.chioce",
            "did you mean \"choice\""},
           {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice",
            "constrained by structured_outputs.regex already"},
           {R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})",
            "structured_outputs.regex", "constrained by response_format.type already"},
           {R"("structured_outputs":{"whitespace_pattern":" "})",
            "structured_outputs.whitespace_pattern", "not supported"},
       }) {
    const std::string error = ErrorOf(fields);
    EXPECT_THAT(error, HasSubstr(std::string(param) + " | " + param)) << fields;
    EXPECT_THAT(error, HasSubstr(message)) << fields;
  }
}

TEST(RawJsonTest, FindsValuesByteForByte) {
  const std::string text = R"( { "a" : [ 1 , {"b": "}]\"" , "c":{ } } ], "d\u0061": -1.50e3,
    "x": true, "x": null } )";
  const std::vector<std::string_view> elements = RawElements(RawJson(text, {"a"}));
  ASSERT_EQ(elements.size(), 2U);
  EXPECT_EQ(elements[0], "1");
  EXPECT_EQ(elements[1], R"({"b": "}]\"" , "c":{ } })");
  EXPECT_EQ(RawJson(elements[1], {"b"}), R"("}]\"")");
  EXPECT_EQ(RawJson(elements[1], {"c"}), "{ }");
  EXPECT_EQ(RawJson(text, {"da"}), "-1.50e3");
  EXPECT_EQ(RawJson(text, {"x"}), "null");
  EXPECT_EQ(RawJson(text, {"a", "b"}), "");
  EXPECT_EQ(RawJson(text, {"nothing"}), "");
  EXPECT_EQ(RawJson(text, {"x", "y"}), "");
  EXPECT_EQ(RawJson("[]", {"0"}), "");
  EXPECT_EQ(RawJson(" 7 ", {}), "7");
  EXPECT_TRUE(RawElements(" [ ] ").empty());
  EXPECT_TRUE(RawElements("{}").empty());
  EXPECT_TRUE(RawElements("").empty());
}

}  // namespace
}  // namespace outrider::openai
