// Routes about tokens over loopback: /generate, /abort, /tokenize, /detokenize, /tokenizer_info;
// and the description of all routes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(TokenApiTest, GeneratesTokensFromTokens) {
  RunningServer running({.tokens_per_step = 2});
  HttpClient client(running.port());
  const ClientResponse response = client.Post(
      "/generate",
      R"({"token_ids":[97,98,46],"sampling_params":{"max_tokens":9,"logprobs":1,"n":2,"seed":5},)"
      R"("request_id":"mine"})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json body = json::parse(response.body);
  EXPECT_EQ(body["id"], "gen-mine");
  EXPECT_EQ(body["object"], "generation");
  ASSERT_EQ(body["choices"].size(), 2);
  EXPECT_EQ(body["choices"][1]["token_ids"], (json{97, 98, 46}));
  EXPECT_EQ(body["choices"][1]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"][1],
            json::parse(R"({"token_id":98,"logprob":-0.5,
                            "top_logprobs":[{"token_id":98,"logprob":-0.5}]})"));
  EXPECT_FALSE(body["choices"][0].contains("text"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  std::vector<int32_t> ids;
  for (const std::string& event :
       EventsOf(client.Post("/generate", R"({"token_ids":[97,98,99,46],"stream":true})").body)) {
    if (event == "[DONE]") break;
    const json chunk = json::parse(event);
    EXPECT_EQ(chunk["object"], "generation.chunk");
    for (const int32_t id : chunk["choices"][0]["token_ids"]) ids.push_back(id);
  }
  EXPECT_EQ(ids, (std::vector<int32_t>{97, 98, 99, 46}));
  EXPECT_THAT(client.Post("/generate", R"({"token_ids":[]})").body, HasSubstr("is empty"));
  EXPECT_THAT(client.Post("/generate", R"({"token_ids":[1],"temperature":0})").body,
              HasSubstr("temperature: unknown field"));
  EXPECT_THAT(
      client.Post("/generate", R"({"token_ids":[1],"sampling_params":{"temperature":-9}})").body,
      HasSubstr("sampling_params.temperature"));
}

// By the client's header, its field, or the answer's id; what was made so far is the answer.
TEST(TokenApiTest, AbortsRequests) {
  RunningServer running({.step_time = std::chrono::milliseconds(2)});
  for (const char* id : {"by-header", "by-field", "chatcmpl-by-field"}) {
    ClientResponse answer;
    std::thread asking([&] {
      HttpClient client(running.port());
      answer =
          client.Post("/v1/chat/completions",
                      R"({"messages":[{"role":"user","content":"abc"}],"request_id":"by-field"})",
                      "X-Request-Id: by-header\r\n");
    });
    EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
    HttpClient client(running.port());
    const std::string abort = json{{"request_id", id}}.dump();
    EXPECT_EQ(client.Post("/abort", abort).body, R"({"aborted":1})") << id;
    asking.join();
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json choice = json::parse(answer.body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "abort");
    EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }));
    EXPECT_EQ(client.Post("/abort", abort).body, R"({"aborted":0})");
  }
  HttpClient client(running.port());
  EXPECT_EQ(client.Post("/abort", R"({"request_ids":["x","y"]})").body, R"({"aborted":0})");
  EXPECT_EQ(client.Post("/abort", "{}").status, 400);
}

TEST(TokenApiTest, Tokenizes) {
  RunningServer running;
  HttpClient client(running.port());
  EXPECT_EQ(json::parse(client.Post("/tokenize", R"({"prompt":"ab","model":"stub"})").body),
            (json{{"count", 3},
                  {"max_model_len", 4096},
                  {"tokens", {256, 97, 98}},
                  {"token_strs", nullptr}}));
  EXPECT_EQ(json::parse(client
                            .Post("/tokenize", R"({"prompt":"ab","add_special_tokens":false,)"
                                               R"("return_token_strs":true})")
                            .body)["token_strs"],
            (json{"a", "b"}));
  EXPECT_EQ(json::parse(client
                            .Post("/tokenize", R"({"messages":[{"role":"user","content":"ab"}],)"
                                               R"("add_generation_prompt":false})")
                            .body)["tokens"],
            (json{97, 98}));
  EXPECT_EQ(json::parse(client.Post("/detokenize", R"({"tokens":[97,195,169]})").body),
            (json{{"prompt", "aé"}}));
  EXPECT_EQ(json::parse(client.Get("/tokenizer_info").body)["bos_token"], "<bos>");
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"ab","model":"other"})").status, 404);
  EXPECT_EQ(client.Post("/tokenize", "{}").status, 400);
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens":[300]})").status, 400);
}

TEST(TokenApiTest, TruncatesPrompts) {
  RunningServer running;
  HttpClient client(running.port());
  const auto prompt = [&](const char* fields) {
    return json::parse(
        client
            .Post("/v1/completions", R"({"prompt":"abcd","max_tokens":1,"echo":true,)"
                                     R"("return_token_ids":true,)" +
                                         std::string(fields) + "}")
            .body)["choices"][0];
  };
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":2)")["prompt_token_ids"], (json{99, 100}));
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":2)")["text"], "cdc");
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":9)")["text"], "abcd");
  const json long_prompt = {
      {"prompt", std::string(5000, 'x')}, {"max_tokens", 10}, {"truncate_prompt_tokens", -1}};
  EXPECT_EQ(json::parse(
                client.Post("/v1/completions", long_prompt.dump()).body)["usage"]["prompt_tokens"],
            4086);
}

TEST(TokenApiTest, EventsMayHoldSeveralTokens) {
  RunningServer running;
  HttpClient client(running.port());
  std::vector<std::string> texts;
  for (const std::string& event : EventsOf(
           client
               .Post("/v1/completions",
                     R"({"prompt":[97,98,99,100,101,102,103,46],"stream":true,"stream_interval":3,)"
                     R"("max_tokens":20})")
               .body)) {
    if (event != "[DONE]") texts.push_back(json::parse(event)["choices"][0]["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "bcd", "efg", "."}));
}

// lm_eval's request for log-likelihoods, and what it reads of the answer.
TEST(TokenApiTest, ScoresPromptsAsLmEvalDoes) {
  RunningServer running({.tokens_per_step = 2});
  HttpClient client(running.port());
  const std::vector<std::vector<int32_t>> prompts = {{97, 98, 99, 100}, {110, 121, 122}};
  const json body = json::parse(client
                                    .Post("/v1/completions", json{{"model", "stub"},
                                                                  {"prompt", prompts},
                                                                  {"temperature", 0},
                                                                  {"max_tokens", 1},
                                                                  {"logprobs", 1},
                                                                  {"seed", 1234},
                                                                  {"echo", true}}
                                                                 .dump())
                                    .body);
  ASSERT_EQ(body["choices"].size(), 2) << body;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const json& choice = body["choices"][i];
    EXPECT_EQ(choice["index"], i);
    const json& logprobs = choice["logprobs"];
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      ASSERT_EQ(logprobs[name].size(), prompts[i].size() + 1) << name;
    }
    for (size_t t = 1; t <= prompts[i].size(); ++t) {
      const json& top = logprobs["top_logprobs"][t];
      const double own = logprobs["token_logprobs"][t];
      EXPECT_EQ(top.at(logprobs["tokens"][t].get<std::string>()), own);
      double best = -1e9;
      for (const auto& [token, logprob] : top.items()) best = std::max(best, logprob.get<double>());
      // The stub finds 'x' likelier than any prompt token, and what it generates likeliest.
      EXPECT_EQ(own == best, t == prompts[i].size()) << t;
    }
  }
}

// The first N token ids are the prompt, the others an answer that is scored.
TEST(TokenApiTest, TakesWhatWasGenerated) {
  RunningServer running;
  HttpClient client(running.port());
  const std::vector<int32_t> rest = {99, 46, 100};
  const auto usage_of = [&](const char* path, const json& body) {
    const ClientResponse response = client.Post(path, body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(running.engine.last_grammar().forced_tokens, rest) << path;
    EXPECT_TRUE(running.engine.last_sampling().ignore_eos);
    EXPECT_EQ(running.engine.last_sampling().max_tokens, 3);
    return json::parse(response.body);
  };
  const json ids = {97, 98, 99, 46, 100};
  const json body = usage_of(
      "/v1/completions", {{"prompt", ids}, {"generated_from", 2}, {"logprobs", 0}, {"stop", "x"}});
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
  usage_of("/generate", {{"token_ids", ids}, {"generated_from", 2}});
  usage_of("/inference/v1/generate", {{"token_ids", ids}, {"generated_from", 2}});
  usage_of("/generate", {{"input_ids", ids}, {"generated_from", 2}, {"return_logprob", true}});
  usage_of("/v1/completions", {{"prompt", ids}, {"generated_from", 2}, {"max_tokens", 3}});

  const auto error_of = [&](const char* more) {
    return client.Post("/v1/completions", std::string(R"({"prompt":[97,98,99],)") + more + "}")
        .body;
  };
  EXPECT_THAT(error_of(R"("generated_from":3)"), HasSubstr("none was generated"));
  EXPECT_THAT(error_of(R"("generated_from":0)"), HasSubstr("generated_from"));
  EXPECT_THAT(error_of(R"("generated_from":1,"n":2)"), HasSubstr("n: must be 1"));
  EXPECT_THAT(error_of(R"("generated_from":1,"max_tokens":9)"), HasSubstr("gives 2 tokens"));
  EXPECT_THAT(error_of(R"("generated_from":1,"echo":true)"), HasSubstr("echo: cannot be given"));
  EXPECT_THAT(error_of(R"("generated_from":1,"guided_choice":["a"])"),
              HasSubstr("cannot be given with generated_from"));
  EXPECT_THAT(client.Post("/v1/completions", R"({"prompt":"abc","generated_from":1})").body,
              HasSubstr("needs one prompt of token ids"));
}

const std::vector<std::pair<std::string, std::string>> kDescribedBodies = {
    {"/v1/completions", "CompletionRequest"},
    {"/v1/chat/completions", "ChatRequest"},
    {"/v1/responses", "ResponseRequest"},
    {"/generate", "GenerateRequest"},
    {"/detokenize", "DetokenizeRequest"}};

/// What must be in it.
json LeastBody(const std::string& path) {
  if (path == "/v1/chat/completions") {
    return {{"messages", {{{"role", "user"}, {"content", "a."}}}}};
  }
  if (path == "/v1/responses") return {{"input", "a."}};
  if (path == "/generate") return {{"token_ids", {46}}};
  if (path == "/detokenize") return {{"tokens", {46}}};
  return {{"prompt", "a"}};
}

TEST(TokenApiTest, DescribesEveryRoute) {
  RunningServer running;
  // A refusal by the head alone ends the connection: each request has one of its own.
  const auto get = [&](const std::string& path) { return HttpClient(running.port()).Get(path); };
  const auto post_to = [&](const std::string& path, const std::string& body) {
    return HttpClient(running.port()).Post(path, body);
  };
  const json description = json::parse(get("/openapi.json").body);
  EXPECT_EQ(description["openapi"], "3.1.0");
  EXPECT_EQ(description["info"]["version"], json::parse(get("/version").body)["version"]);
  size_t num_routes = 0;
  for (const auto& [path, methods] : description["paths"].items()) {
    ++num_routes;
    if (path == "/debug/steps") continue;  // never ends
    const std::string real = path == "/v1/models/{model}" ? "/v1/models/stub" : path;
    const bool post = methods.contains("post");
    const ClientResponse response = post ? post_to(real, "{}") : get(real);
    EXPECT_EQ(response.status, post ? 400 : 200) << path << response.body;
    EXPECT_EQ(post ? get(real).status : post_to(real, "{}").status, 405) << path;
  }
  EXPECT_EQ(num_routes, 27);
  // Every field that is described is known.
  for (const auto& [path, schema] : kDescribedBodies) {
    json body = LeastBody(path);
    for (const auto& [name, ignored] :
         description["components"]["schemas"][schema]["properties"].items()) {
      if (!body.contains(name)) body[name] = nullptr;
    }
    const ClientResponse response = post_to(path, body.dump());
    EXPECT_EQ(response.status, 200) << path << response.body;
  }
}

/// The description's arrays of tokens or of texts in a schema that end at `maxItems`.
std::vector<json> LimitedArrays(const json& schema) {
  std::vector<json> arrays;
  for (const json& form : schema.contains("anyOf") ? schema["anyOf"] : json::array({schema})) {
    const json& items = form.value("items", json::object());
    const bool simple =
        items.value("$ref", "").ends_with("/TokenId") || items.value("type", "") == "string";
    if (form.contains("maxItems") && simple) arrays.push_back(form);
  }
  return arrays;
}

// Also where all items are the same.
TEST(TokenApiTest, RefusesArraysThatAreLongerThanDescribed) {
  RunningServer running;
  HttpClient client(running.port());
  const json schemas = json::parse(client.Get("/openapi.json").body)["components"]["schemas"];
  int num_arrays = 0;
  for (const auto& [path, schema] : kDescribedBodies) {
    for (const auto& [name, field] : schemas[schema]["properties"].items()) {
      for (const json& array : LimitedArrays(field)) {
        const json item = array["items"].contains("$ref") ? json(46) : json("a");
        json body = LeastBody(path);
        body[name] = std::vector<json>(array["maxItems"].get<size_t>() + 1, item);
        const ClientResponse response = client.Post(path, body.dump());
        EXPECT_EQ(response.status, 400) << path << " " << name << response.body;
        ++num_arrays;
      }
    }
  }
  EXPECT_GT(num_arrays, 8);
}

TEST(TokenApiTest, AbortsByEveryNameThatIsDescribed) {
  RunningServer running;
  HttpClient client(running.port());
  const json schemas = json::parse(client.Get("/openapi.json").body)["components"]["schemas"];
  std::set<std::string> names;
  for (const json& form : schemas["AbortRequest"]["anyOf"]) {
    const std::string name = form["required"][0];
    const bool several = form["properties"][name]["type"] == "array";
    const json body = {{name, several ? json::array({"x"}) : json("x")}};
    EXPECT_EQ(client.Post("/abort", body.dump()).status, 200) << body;
    names.insert(name);
    // All names are fields of every form.
    EXPECT_EQ(form["properties"].size(), 3U) << name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"request_id", "request_ids", "rid"}));
}

}  // namespace
}  // namespace outrider
