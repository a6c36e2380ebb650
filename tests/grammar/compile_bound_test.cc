// No spec takes much more than the time that compiling is given, whatever it is made of.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string RepeatParts(int count, const std::function<std::string(int)>& part,
                        const char* between) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : between) + part(i);
  return text;
}

std::string RepeatText(int count, const std::string& part) {
  return RepeatParts(count, [&](int) { return part; }, "");
}

GrammarSpec HostileSchema(std::string text) {
  return {GrammarKind::kJsonSchema, std::move(text), {}};
}
GrammarSpec HostileRegex(std::string text) { return {GrammarKind::kRegex, std::move(text), {}}; }
GrammarSpec HostileEbnf(std::string text) { return {GrammarKind::kEbnf, std::move(text), {}}; }

/// Properties p0, p1, ... of one schema.
std::string ManyProperties(int count, const std::string& schema) {
  return RepeatParts(count, [&](int i) { return fmt::format(R"("p{}":{})", i, schema); }, ",");
}

std::string NestedText(int depth, const std::string& open, const std::string& leaf,
                       const std::string& close) {
  return RepeatText(depth, open) + leaf + RepeatText(depth, close);
}

struct Hostile {
  const char* name;
  GrammarSpec spec;
};

std::vector<Hostile> HostileSpecs() {
  const auto object = [](const std::string& members) {
    return R"({"type":"object",)" + members + "}";
  };
  const std::string string = R"({"type":"string"})";
  std::vector<Hostile> specs;
  specs.push_back(
      {"few of many properties", HostileSchema(object(R"("maxProperties":200,"properties":{)" +
                                                      ManyProperties(400, string) + "}"))});
  specs.push_back({"many properties, closed",
                   HostileSchema(object(R"("additionalProperties":false,"properties":{)" +
                                        ManyProperties(4000, string) + "}"))});
  specs.push_back(
      {"many properties, open",
       HostileSchema(object(R"("properties":{)" + ManyProperties(4000, string) + "}"))});
  specs.push_back(
      {"between few and many properties",
       HostileSchema(object(R"("minProperties":100,"maxProperties":900,"properties":{)" +
                            ManyProperties(1000, string) + "}"))});
  specs.push_back(
      {"a long array of objects",
       HostileSchema(R"({"type":"array","maxItems":100000,"items":)" +
                     object(R"("properties":{)" + ManyProperties(50, string) + "}") + "}")});
  specs.push_back(
      {"deep arrays",
       HostileSchema(NestedText(400, R"({"type":"array","maxItems":9,"items":)", string, "}"))});
  specs.push_back(
      {"many alternatives", HostileSchema(R"({"anyOf":[)" +
                                          RepeatParts(
                                              800,
                                              [&](int i) {
                                                return object(fmt::format(
                                                    R"("properties":{{"k":{{"const":{}}},{}}})", i,
                                                    ManyProperties(3, string)));
                                              },
                                              ",") +
                                          "]}")});
  specs.push_back(
      {"many values",
       HostileSchema(R"({"enum":[)" +
                     RepeatParts(
                         20000, [](int i) { return fmt::format("\"v{}\"", i * 7919); }, ",") +
                     "]}")});
  specs.push_back(
      {"many patterns",
       HostileSchema(object(R"("properties":{)" +
                            RepeatParts(
                                300,
                                [](int i) {
                                  return fmt::format(
                                      R"("p{}":{{"type":"string","pattern":"^[a-z]{{{},400}}$"}})",
                                      i, i);
                                },
                                ",") +
                            "}"))});
  specs.push_back({"long strings",
                   HostileSchema(object(
                       R"("properties":{)" +
                       ManyProperties(1000, R"({"type":"string","maxLength":100000})") + "}"))});
  specs.push_back({"nested counts", HostileRegex("((((a{1,50}b){1,50}c){1,50}d){1,50}e){1,50}")});
  specs.push_back({"counts side by side", HostileRegex(RepeatText(3000, "([a-f]{3,90}|x{2,80})"))});
  specs.push_back({"one large count", HostileRegex("([a-z]|[0-9]|é|漢){1,60000}")});
  specs.push_back({"a wide look back", HostileRegex("(.*a.{14}|.*b.{14}|.*c.{15})z")});
  specs.push_back(
      {"many alternations",
       HostileRegex(
           "(" +
           RepeatParts(12000, [](int i) { return fmt::format("w{}", i * 31); }, "|") + ")+")});
  specs.push_back({"deep groups", HostileRegex(NestedText(20000, "(", "a", ")?"))});
  specs.push_back({"many choices", {GrammarKind::kChoice, "", [] {
                                      std::vector<std::string> choices;
                                      for (int i = 0; i < 4096; ++i) {
                                        choices.push_back(fmt::format("{:060}", i * 7919));
                                      }
                                      return choices;
                                    }()}});
  specs.push_back(
      {"ambiguous rules", HostileEbnf("root ::= s\ns ::= s s s | s s | \"a\" | \"\"\n")});
  specs.push_back({"doubling rules", HostileEbnf(RepeatParts(
                                                     60,
                                                     [](int i) {
                                                       return fmt::format(
                                                           "{} ::= r{} r{} | \"{}\"\n",
                                                           i == 0 ? "root" : fmt::format("r{}", i),
                                                           i + 1, i + 1,
                                                           static_cast<char>('a' + i % 26));
                                                     },
                                                     "") +
                                                 "r60 ::= [a-z]*\n")});
  specs.push_back(
      {"many rules",
       HostileEbnf(
           "root ::= " +
           RepeatParts(
               6000, [](int i) { return fmt::format("r{}", i); }, "|") +
           "\n" +
           RepeatParts(
               6000, [](int i) { return fmt::format("r{} ::= [a-z]+ \"{}\"\n", i, i); }, ""))});
  specs.push_back({"a chain of empty rules", HostileEbnf("root ::= r0\n" +
                                                         RepeatParts(
                                                             4000,
                                                             [](int i) {
                                                               return fmt::format(
                                                                   "r{} ::= r{} | r{} r{} | \"\"\n",
                                                                   i, i + 1, i + 1, i + 1);
                                                             },
                                                             "") +
                                                         "r4000 ::= \"a\"?\n")});
  return specs;
}

constexpr size_t kNumHostile = 21;

class CompileBoundTest : public testing::TestWithParam<size_t> {};

TEST_P(CompileBoundTest, EndsInAboutTheTimeItIsGiven) {
  static const std::vector<Hostile> specs = HostileSpecs();
  ASSERT_EQ(specs.size(), kNumHostile);
  const Hostile& hostile = specs[GetParam()];
  constexpr double kSeconds = 0.25;
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos, {.max_seconds = kSeconds});
  compiler.Compile({GrammarKind::kRegex, "a", {}});  // what is made once
  const double start = ThreadSeconds();
  try {
    compiler.Compile(hostile.spec);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");  // refused for its time or for something else
  }
  // What was made is freed, too.
  const double more = kSanitized ? 10 : 1;  // instrumented steps between two looks take longer
  EXPECT_LT(ThreadSeconds() - start, kSeconds + more) << hostile.name;
}

INSTANTIATE_TEST_SUITE_P(Hostile, CompileBoundTest, testing::Range<size_t>(0, kNumHostile));

}  // namespace
}  // namespace outrider
