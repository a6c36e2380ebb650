// JSON schemas: what is enforced, in which words it reaches the compiler, what is refused by name.
// json_schema_test.py draws schemas at random. One case per keyword makes it long.
#include "outrider/grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/grammar/grammar_matcher.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

bool SchemaAllows(const std::string& schema, const std::vector<int32_t>& tokens) {
  GrammarMatcher matcher(CompileText(GrammarKind::kJsonSchema, schema));
  for (const int32_t token : tokens) {
    if (!matcher.Accept(token)) return false;
  }
  return matcher.complete();
}

bool SchemaAllows(const std::string& schema, std::string_view text) {
  return SchemaAllows(schema, Tokens(text));
}

/// A token for each byte: tokens of a text never are what is no UTF-8.
std::vector<int32_t> ByteTokens(std::string_view bytes) {
  std::vector<int32_t> tokens;
  for (const char byte : bytes) {
    for (int32_t token = 0; token < BundledTokenizer().vocab_size(); ++token) {
      if (BundledTokenizer().TokenBytes(token) != std::string_view(&byte, 1)) continue;
      tokens.push_back(token);
      break;
    }
  }
  EXPECT_EQ(tokens.size(), bytes.size());
  return tokens;
}

std::string ErrorOf(const std::string& schema) {
  try {
    EnforceableSchema(schema);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

// All of these had compiled, and their answers broke the schema.
TEST(JsonSchemaTest, RefusesByNameWhatIsNotEnforced) {
  for (const auto& [schema, message] : std::vector<std::pair<const char*, const char*>>{
           {R"({"not":{"type":"string"}})", "#: \"not\" is not supported"},
           {R"({"properties":{"a":{"not":{}}}})", "#/properties/a: \"not\" is not supported"},
           {R"({"if":{"type":"string"},"then":{"minLength":1}})", "\"if\" is not supported"},
           {R"({"$dynamicRef":"#x"})", "\"$dynamicRef\" is not supported"},
           {R"({"$ref":"#anchor"})", "\"$ref\" \"#anchor\" is not supported"},
           {R"({"$ref":"https://example.com/schema"})", "is not supported"},
           {R"({"type":"array","uniqueItems":true})", "\"uniqueItems\" is not supported"},
           {R"({"type":"array","contains":{"type":"null"}})", "\"contains\" is not supported"},
           {R"({"type":"object","dependentRequired":{"a":["b"]}})",
            "\"dependentRequired\" is not supported"},
           {R"({"type":"object","dependentSchemas":{"a":{}}})",
            "\"dependentSchemas\" is not supported"},
           {R"({"properties":{"ab":{}},"propertyNames":{"maxLength":1}})",
            "\"propertyNames\" together with \"properties\""},
           {R"({"properties":{"ab":{}},"patternProperties":{"^a":{"type":"null"}}})",
            "\"patternProperties\" together with \"properties\""},
           {R"({"patternProperties":{"^a":{},"b$":{}}})", "with several patterns"},
           {R"({"patternProperties":{"^a":{}},"additionalProperties":true})",
            "\"patternProperties\" together with \"additionalProperties\""},
           {R"({"type":"object","minProperties":2})", "\"minProperties\" 2 is not supported"},
           {R"({"type":"number","multipleOf":0.5})", "\"multipleOf\" 0.5 is not supported"},
           {R"({"type":"integer","multipleOf":5000})", "\"multipleOf\" 5000 is not supported"},
           {R"({"type":"integer","multipleOf":5,"minimum":0})",
            "\"multipleOf\" with bounds is not supported"},
           {R"({"type":"string","pattern":"a+","maxLength":3})",
            "\"pattern\" together with \"maxLength\""},
           {R"({"type":"string","format":"date","minLength":3})",
            "\"format\" \"date\" together with \"minLength\""},
           {R"({"type":"string","pattern":"(?=a)b"})", "lookahead"},
           {R"({"oneOf":[{"type":"integer"},{"minimum":3}]})",
            "\"oneOf\" is not supported where two branches may allow the same value, as "
            "#/oneOf/0 and #/oneOf/1 may"},
           {R"({"enum":["a"],"pattern":"b"})", "together with keywords for a string"},
           {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})",
            "\"pattern\" in schemas that are combined"},
           {R"({"allOf":[{"pattern":"a"},{"format":"date"}]})",
            "\"pattern\" and \"format\" in schemas that are combined"},
           {R"({"allOf":[{"items":{}},{"prefixItems":[{}]}]})", "\"items\""},
           {R"({"const":123456789012345678901})", "is not supported as a value"},
           {R"({"properties":{"\u00e9":{}},"additionalProperties":true})", "not plain ASCII"},
       }) {
    EXPECT_THAT(ErrorOf(schema), HasSubstr(message)) << schema;
  }
}

TEST(JsonSchemaTest, RefusesWhatIsNoSchemaOrAllowsNothing) {
  for (const auto& [schema, message] : std::vector<std::pair<std::string, const char*>>{
           {"{", "is not valid JSON: byte 2"},
           {"[]", "#: a schema is an object or a boolean"},
           {"false", "#: false allows nothing"},
           {R"({"type":"what"})", "#: unsupported type \"what\""},
           {R"({"type":[]})", "\"type\" allows nothing"},
           {R"({"enum":[]})", "\"enum\" allows nothing"},
           {R"({"type":"string","enum":[1]})", "\"enum\" allows nothing"},
           {R"({"anyOf":[]})", "must be an array of schemas"},
           {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "false allows nothing"},
           {R"({"type":"string","minLength":-1})", "\"minLength\" must be an integer from 0 on"},
           {R"({"type":"string","minLength":3,"maxLength":2})", "above"},
           {R"({"type":"integer","minimum":1.2,"maximum":1.8})", "the bounds allow no integer"},
           {R"({"type":"number","minimum":0.1,"exclusiveMaximum":0.1})", "the bounds allow no"},
           {R"({"type":"number","minimum":1e12,"maximum":1e11})", "the bounds allow no"},
           {R"({"type":"number","minimum":1e-8,"maximum":2e-8})", "at most six decimals"},
           {R"({"properties":{"a":false},"required":["a"]})", "is required"},
           {R"({"required":["a"],"additionalProperties":false})", "forbids"},
           {R"({"required":["a","b"],"maxProperties":1})", "at least 2 members"},
           {R"({"type":"array","items":false,"minItems":1})", "no more than 0 items"},
           {R"({"$ref":"#"})", "circle"},
           {R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
                         "b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
            "circle"},
           {R"({"$defs":{"a":{"$ref":"#/$defs/a","minLength":1}},"$ref":"#/$defs/a"})",
            "refers to itself"},
           {std::string(1000, '['), "nested more than 128 levels deep"},
       }) {
    EXPECT_THAT(ErrorOf(schema), HasSubstr(message)) << schema.substr(0, 100);
  }
}

// What is handed to the compiler, and that it is itself when it comes again.
TEST(JsonSchemaTest, IsWrittenInWordsThatAreEnforced) {
  for (const auto& [schema, enforceable] : std::vector<std::pair<const char*, const char*>>{
           {"true", "{}"},
           {R"({"title":"t","x-unknown":{"not":1}})", "{}"},
           {R"({"minimum":3})", R"({"type":"number","minimum":3})"},
           {R"({"type":["integer","number","null"]})",
            R"({"anyOf":[{"type":"number"},{"type":"null"}]})"},
           {R"({"type":"string","minimum":3,"uniqueItems":true})", R"({"type":"string"})"},
           {R"({"type":"integer","minimum":0.5,"exclusiveMaximum":4.5,"multipleOf":2.0})",
            R"({"type":"integer","minimum":1,"maximum":4,"multipleOf":2})"},
           {R"({"type":"number","multipleOf":5})", R"({"type":"integer","multipleOf":5})"},
           {R"({"type":"object","minProperties":1})",
            R"({"type":"object","additionalProperties":{},"minProperties":1})"},
           {R"({"type":"object","required":["a"]})",
            R"({"type":"object","properties":{"a":{}},"required":["a"],
                "additionalProperties":false})"},
           {R"({"type":"array","minItems":2})", R"({"type":"array","items":{},"minItems":2})"},
           {R"({"prefixItems":[true,{"type":"null"}],"maxItems":1})",
            R"({"type":"array","prefixItems":[{}],"items":false})"},
           {R"({"type":"string","enum":["a",1,"b"]})", R"({"enum":["a","b"]})"},
           {R"({"const":1,"enum":[1,2]})", R"({"enum":[1]})"},
           {R"({"allOf":[{"minLength":2},{"minLength":3,"maxLength":9},{"type":"string"}]})",
            R"({"type":"string","minLength":3,"maxLength":9})"},
           {R"({"type":"object","properties":{"a":{"type":"string"},"b":{}},
                "anyOf":[{"required":["a"]},{"required":["b"]}]})",
            R"({"anyOf":[
                {"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a"],
                 "additionalProperties":false},
                {"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["b"],
                 "additionalProperties":false}]})"},
           {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
                         {"properties":{"a":{"minimum":1},"b":{"type":"null"}}}]})",
            R"({"type":"object","properties":{"a":{"type":"integer","minimum":1},
                "b":{"type":"null"}},"required":["a"],"additionalProperties":false})"},
           {R"({"$defs":{"a":{"type":"string"}},"$ref":"#/$defs/a","minLength":1})",
            R"({"type":"string","minLength":1})"},
           {R"({"$defs":{"a/b %":{"items":{"$ref":"#"}}},"$ref":"#/$defs/a~1b%20%25"})",
            R"({"$ref":"#/$defs/0","$defs":{"0":{"type":"array","items":{"$ref":"#/$defs/1"}},
                "1":{"$ref":"#/$defs/0"}}})"},
           {R"({"oneOf":[{"type":"string"},{"type":["null","boolean"]}]})",
            R"({"anyOf":[{"type":"string"},{"anyOf":[{"type":"null"},{"type":"boolean"}]}]})"},
           {R"({"type":"array","contains":{"type":"null"},"minContains":0})",
            R"({"type":"array","items":{}})"},
           {R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":{"type":"null"}})",
            R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"null"}})"},
       }) {
    const std::string result = EnforceableSchema(schema);
    EXPECT_EQ(json::parse(result), json::parse(enforceable)) << schema;
    EXPECT_EQ(json::parse(EnforceableSchema(result)), json::parse(result)) << "again: " << schema;
  }
}

TEST(JsonSchemaTest, PropertiesKeepTheirOrder) {
  EXPECT_EQ(EnforceableSchema(R"({"properties":{"z":{},"a":{},"m":{}},"required":["m","b"]})"),
            R"({"type":"object","properties":{"z":{},"a":{},"m":{},"b":{}},"required":["m","b"],)"
            R"("additionalProperties":false})");
}

TEST(JsonSchemaTest, BranchesOfOneOfThatCannotOverlap) {
  for (const char* schema : {
           R"({"oneOf":[{"const":"a"},{"enum":["b","c"]}]})",
           R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"x"}},"required":["kind"]},
                        {"type":"string"}],"type":["object","string"]})",
           R"({"$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"}},
                               "required":["kind"]},
                        "dog":{"type":"object","properties":{"kind":{"const":"dog"}},
                               "required":["kind"]}},
               "oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}]})",
           R"({"oneOf":[{"type":"object","properties":{"a":{}},"required":["a"],
                         "additionalProperties":false},
                        {"type":"object","properties":{"b":{}},"required":["b"],
                         "additionalProperties":false}]})",
       }) {
    EXPECT_EQ(ErrorOf(schema), "no error") << schema;
  }
  for (const char* schema : {
           R"({"oneOf":[{"const":1},{"enum":[2,1.0]}]})",
           R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
           R"({"oneOf":[{"const":{"a":1,"b":2}},{"const":{"b":2,"a":1}}]})",
           R"({"oneOf":[{"type":"object","properties":{"a":{"const":1}}},
                        {"type":"object","properties":{"a":{"const":2}}}]})",
           R"({"oneOf":[{"type":"object","required":["a"]},
                        {"type":"object","required":["b"]}]})",
       }) {
    EXPECT_THAT(ErrorOf(schema), HasSubstr("may allow the same value")) << schema;
  }
}

// Properties by the names of annotations had counted as equal.
TEST(JsonSchemaTest, PropertiesMayHaveTheNamesOfAnnotations) {
  const std::string schema = R"({"properties":{
      "a":{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]},
      "b":{"type":"object","properties":{"title":{"type":"integer"}},"required":["title"]},
      "c":{"const":{"default":1}}, "d":{"const":{"default":2}}}})";
  EXPECT_TRUE(SchemaAllows(schema, R"({"a":{"title":"x"},"b":{"title":7}})"));
  EXPECT_FALSE(SchemaAllows(schema, R"({"b":{"title":"x"}})"));
  EXPECT_TRUE(SchemaAllows(schema, R"({"c":{"default":1},"d":{"default":2}})"));
  EXPECT_FALSE(SchemaAllows(schema, R"({"d":{"default":1}})"));
}

// Spelled with an escape, the name of a known property had passed for a free one.
TEST(JsonSchemaTest, FreePropertiesAreNoneOfTheKnown) {
  const std::string schema =
      R"({"properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"boolean"}})";
  EXPECT_TRUE(SchemaAllows(schema, R"({"ab":null,"b":true,"a":true,"abc":true,"x\u0061":true})"));
  EXPECT_FALSE(SchemaAllows(schema, R"({"ab":true})"));
  EXPECT_FALSE(SchemaAllows(schema, R"({"\u0061b":true})"));
  EXPECT_FALSE(SchemaAllows(schema, R"({"a\u0062":true})"));
}

// Through a "$ref" it had been an object without members.
TEST(JsonSchemaTest, AnyObjectByReference) {
  const std::string schema =
      R"({"$defs":{"any":{"type":"object"}},"properties":{"a":{"$ref":"#/$defs/any"}}})";
  EXPECT_TRUE(SchemaAllows(schema, R"({"a":{"b":{}}})"));
  EXPECT_TRUE(SchemaAllows(R"({"type":"object","minProperties":1})", R"({"a":1})"));
  EXPECT_FALSE(SchemaAllows(R"({"type":"object","minProperties":1})", "{}"));
}

// Which members there are, for each choice of required ones and of bounds.
TEST(JsonSchemaTest, NumberOfProperties) {
  const std::vector<std::string> names = {"a", "b", "c"};
  for (uint32_t required = 0; required < 8; ++required) {
    for (int least = 0; least <= 3; ++least) {
      for (int most = least; most <= 3; ++most) {
        json schema = {{"type", "object"}, {"minProperties", least}, {"maxProperties", most}};
        schema["required"] = json::array();
        for (size_t i = 0; i < 3; ++i) {
          schema["properties"][names[i]] = {{"type", "null"}};
          if ((required >> i & 1) != 0) schema["required"].push_back(names[i]);
        }
        if (std::popcount(required) > most) {
          EXPECT_THAT(ErrorOf(schema.dump()), HasSubstr("\"maxProperties\"")) << schema;
          continue;
        }
        for (uint32_t present = 0; present < 8; ++present) {
          std::string text = "{";
          for (size_t i = 0; i < 3; ++i) {
            if ((present >> i & 1) == 0) continue;
            text += (text.size() > 1 ? ",\"" : "\"") + names[i] + "\":null";
          }
          const int count = std::popcount(present);
          EXPECT_EQ(SchemaAllows(schema.dump(), text + "}"),
                    (present & required) == required && count >= least && count <= most)
              << schema << " " << text;
        }
      }
    }
  }
}

TEST(JsonSchemaTest, NumberOfItems) {
  for (int known = 0; known <= 2; ++known) {
    for (int least = 0; least <= 3; ++least) {
      for (int most = least; most <= 4; ++most) {
        for (const bool more : {true, false}) {
          json schema = {{"type", "array"}, {"minItems", least}, {"maxItems", most}};
          for (int i = 0; i < known; ++i) schema["prefixItems"].push_back({{"type", "null"}});
          schema["items"] = more ? json({{"type", "boolean"}}) : json(false);
          if (!more && least > known) {
            EXPECT_THAT(ErrorOf(schema.dump()), HasSubstr("items can come")) << schema;
            continue;
          }
          for (int count = 0; count <= 5; ++count) {
            std::string text = "[";
            for (int i = 0; i < count; ++i) {
              text += std::string(i > 0 ? "," : "") + (i < known ? "null" : "true");
            }
            EXPECT_EQ(SchemaAllows(schema.dump(), text + "]"),
                      count >= least && count <= most && (more || count <= known))
                << schema << " " << text;
          }
        }
      }
    }
  }
}

// Each such byte would become a character.
TEST(JsonSchemaTest, StringsAreUtf8) {
  for (const char* schema : {R"({"type":"string"})", R"({"type":"string","maxLength":3})",
                             R"({"type":"string","pattern":"^.*$"})"}) {
    for (const char* character : {"\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                                  "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
      EXPECT_TRUE(SchemaAllows(schema, ByteTokens(std::string("\"") + character + '"')))
          << schema << json(character);
    }
    for (const char* bytes : {"\xed\xa0\x80", "\xed\xbf\xbf", "\xc1\xbf", "\xe0\x9f\xbf",
                              "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80"}) {
      EXPECT_FALSE(SchemaAllows(schema, ByteTokens(std::string("\"") + bytes + '"'))) << schema;
    }
  }
}

// What is optional or repeated without end is taken as it is written: what may be left out had been
// followed by what may only follow it.
TEST(JsonSchemaTest, OptionalAndRepeatedPartsOfPatterns) {
  for (const auto& [pattern, good, bad] : std::vector<std::array<const char*, 3>>{
           {"^x(a(:b)*)?$", "xa:b", "x:b"},
           {"^x(a+b)?$", "xaab", "xaa"},
           {"^(ab*|c){2,}$", "cabb", "ccb"},
           {"^(a(:b){0,2})?$", "a:b:b", ":b"},
       }) {
    const std::string schema = json{{"type", "string"}, {"pattern", pattern}}.dump();
    EXPECT_TRUE(SchemaAllows(schema, json(good).dump())) << pattern;
    EXPECT_FALSE(SchemaAllows(schema, json(bad).dump())) << pattern;
  }
}

// Where a part of a string is repeated often, quotation marks had come unescaped.
TEST(JsonSchemaTest, LongRepetitionsInPatterns) {
  const std::string schema = R"({"type":"string","pattern":"^.{1,500}$"})";
  EXPECT_TRUE(SchemaAllows(schema, R"("abc")"));
  EXPECT_FALSE(SchemaAllows(schema, R"("a"c")"));
  EXPECT_FALSE(SchemaAllows(schema, "\"a\nc\""));
}

TEST(JsonSchemaTest, Formats) {
  for (const auto& [format, good, bad] : std::vector<std::array<const char*, 3>>{
           {"date", "2024-02-29", "2023-02-29"},
           {"date", "1999-12-31", "1999-04-31"},
           {"time", "23:59:59.5Z", "24:00:00Z"},
           {"date-time", "2020-01-01T00:00:00+01:00", "2020-01-01 00:00:00"},
           {"duration", "P1Y2M3DT4H5M6S", "P"},
           {"duration", "PT36H", "PT"},
           {"email", "a.b+c@example.org", "a..b@example.org"},
           {"hostname", "www.example.org", "-a.org"},
           {"ipv4", "255.0.10.199", "256.0.0.1"},
           {"ipv6", "::1", "1:2:3:4:5:6:7"},
           {"ipv6", "1:2:3:4:5:6:7:8", "1::2::3"},
           {"uri", "https://a@b.org:80/c/d?e=f#g", "//a"},
           {"uri-reference", "../a?b", "%zz"},
           {"uri-template", "/a/{+b,c:3}/{d*}", "{"},
           {"uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"},
           {"json-pointer", "/a~1b/0", "a"},
           {"relative-json-pointer", "1/a", "/a"},
       }) {
    const std::string schema = json{{"type", "string"}, {"format", format}}.dump();
    EXPECT_TRUE(SchemaAllows(schema, json(good).dump())) << format << " " << good;
    EXPECT_FALSE(SchemaAllows(schema, json(bad).dump())) << format << " " << bad;
  }
  EXPECT_FALSE(SchemaAllows(R"({"type":"string","format":"json-pointer"})", R"("/a"b")"));
}

TEST(JsonSchemaTest, SchemasInTags) {
  const std::string tag =
      R"({"type":"structural_tag","format":{"type":"sequence","elements":[
          {"type":"json_schema","json_schema":{"type":"array","minItems":1}}]}})";
  EXPECT_EQ(json::parse(EnforceableTag(tag))["format"]["elements"][0]["json_schema"],
            json::parse(R"({"type":"array","items":{},"minItems":1})"));
  for (const char* refused :
       {R"({"format":{"type":"json_schema","json_schema":{"not":{}}}})",
        R"({"format":{"type":"json_schema","json_schema":{},"any_order":true}})", "x"}) {
    EXPECT_THROW(EnforceableTag(refused), Error) << refused;
  }
}

}  // namespace
}  // namespace outrider
