// Structured output through the API: what reaches the engine, what is refused before.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/grammar/bundled_grammars.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string Body(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,)" + fields + "}";
}

TEST(StructuredOutputApiTest, TheEngineGetsTheCompiledGrammar) {
  RunningServer running({}, TestServerOptions(), &BundledGrammars());
  HttpClient client(running.port());
  const std::string body = Body(R"("n":2,"structured_outputs":{"regex":"only here [0-9]+"})");
  const GrammarSpec spec{.kind = GrammarKind::kRegex, .text = "only here [0-9]+", .choices = {}};
  EXPECT_EQ(BundledGrammars().Find(spec), nullptr);
  EXPECT_EQ(client.Post("/v1/chat/completions", body).status, 200);
  EXPECT_NE(BundledGrammars().Find(spec), nullptr);
  EXPECT_EQ(running.engine.last_grammar().grammar, BundledGrammars().Find(spec));
  // The second time it is found.
  EXPECT_EQ(client.Post("/v1/chat/completions", body).status, 200);
  EXPECT_EQ(client.Post("/v1/chat/completions", Body(R"("n":1)")).status, 200);
  EXPECT_EQ(running.engine.last_grammar().grammar, nullptr);
}

// The stub's prompt is the message: where it has begun to think, the answer comes after the
// thinking.
TEST(StructuredOutputApiTest, TheGrammarBeginsAfterThinking) {
  const std::string fields = R"(,"max_tokens":2,"response_format":{"type":"json_object"}})";
  // Where nobody tells reasoning from the answer, all of it is the answer.
  for (const auto& [reasoning, content, start_after] :
       std::vector<std::array<std::string, 3>>{{"deepseek_r1", "hi<think>\\n", "</think>"},
                                               {"deepseek_r1", "hi", ""},
                                               {"none", "hi<think>\\n", ""}}) {
    ServerOptions options = TestServerOptions();
    options.output_format = ChooseOutputFormat("none", reasoning, "", "");
    RunningServer running({}, options, &BundledGrammars());
    HttpClient client(running.port());
    const std::string body =
        R"({"messages":[{"role":"assistant","content":")" + content + "\"}]" + fields;
    EXPECT_EQ(client.Post("/v1/chat/completions", body).status, 200);
    ASSERT_NE(running.engine.last_grammar().grammar, nullptr);
    const auto& tokens = running.engine.last_grammar().start_after;  // bytes
    EXPECT_EQ(std::string(tokens.begin(), tokens.end()), start_after);
  }
}

/// A JSON schema that takes minutes to compile.
std::string LongSchema(int number) {
  json properties;
  for (int i = 0; i < 1000; ++i) properties[fmt::format("p{}", i)] = {{"type", "string"}};
  const json schema = {{"type", "object"},
                       {"properties", properties},
                       {"minProperties", 100 + number},
                       {"maxProperties", 900}};
  return fmt::format(R"("structured_outputs":{{"json":{}}})", schema.dump());
}

// They may take for ever here, so who waited for one would have no answer.
TEST(StructuredOutputApiTest, GrammarsThatTakeLongHoldUpNoShortOnes) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos, {.max_seconds = 1e9});
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 0.1;
  RunningServer running({}, options, &compiler);
  HttpClient client(running.port());
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 6; ++i) {
    waiting.push_back(std::make_unique<HttpClient>(running.port()));
    waiting.back()->SendRequest("POST", "/v1/chat/completions", Body(LongSchema(i)));
  }
  const auto all_wait = [&] {
    return client.Get("/metrics").body.find(R"(reason="deferred"} 6)") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(all_wait, 60));
  for (int i = 0; i < 3; ++i) {
    const std::string body = Body(fmt::format(R"("structured_outputs":{{"regex":"a{}"}})", i));
    EXPECT_EQ(client.Post("/v1/chat/completions", body).status, 200);
  }
  EXPECT_TRUE(Eventually(all_wait, 60));
}  // nor does the end of the server wait for them

TEST(StructuredOutputApiTest, WhatDoesNotCompileIsRefusedBeforeTheEngine) {
  RunningServer running({}, TestServerOptions(), &BundledGrammars());
  HttpClient client(running.port());
  for (const auto& [fields, param, message] : std::vector<std::array<const char*, 3>>{
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"what"}}})",
            "response_format.json_schema.schema", "unsupported type \"what\""},
           {R"("structured_outputs":{"regex":"a("})", "structured_outputs.regex", "not closed"},
           {R"("guided_grammar":"root ::= nowhere")", "guided_grammar", "not defined"},
           {R"("structured_outputs":{"structural_tag":{}})", "structured_outputs.structural_tag",
            "format"},
       }) {
    const ClientResponse response = client.Post("/v1/chat/completions", Body(fields));
    EXPECT_EQ(response.status, 400) << fields;
    const json error = json::parse(response.body).at("error");
    EXPECT_EQ(error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(std::string(param) + ": "));
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
  }
  EXPECT_EQ(running.engine.Counters().num_requests_running, 0);
}

TEST(StructuredOutputApiTest, AModelWithoutATokenizerHasNone) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse response =
      client.Post("/v1/chat/completions", Body(R"("response_format":{"type":"json_object"})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body)["error"]["param"], "response_format.type");
}

}  // namespace
}  // namespace outrider
