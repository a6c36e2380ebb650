// What lm_eval and `vllm bench serve` send, to the letter, and what they read of the answers: with
// the bundled model and speculation.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/model_server.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr const char* kQuestion = "Question: Mia has 3 apples and gets 4 more. How many are there?";

json JsonOf(const ClientResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body);
}

// lm_eval takes the server's tokenizer when it finds these routes.
std::vector<int32_t> RemoteTokens(const ModelServer& server, const std::string& text) {
  return JsonOf(server.Post({{"prompt", text}, {"add_special_tokens", false}}, "/tokenize"))
      .at("tokens")
      .get<std::vector<int32_t>>();
}

TEST(KnownClientsTest, LmEvalFindsATokenizer) {
  const ModelServer server(DrafterKind::kNone);
  const json info = JsonOf(HttpClient(server.port()).Get("/tokenizer_info"));
  const std::vector<int32_t> ids = RemoteTokens(server, info.at("eos_token"));
  EXPECT_EQ(ids, std::vector<int32_t>{kBundledEos});
  EXPECT_EQ(JsonOf(server.Post({{"tokens", ids}}, "/detokenize"))["prompt"], info["eos_token"]);
  EXPECT_TRUE(info.at("chat_template").is_string());
}

// Any temperature is a distribution to draw from: the engine takes what the parser takes.
TEST(KnownClientsTest, AnyTemperature) {
  const ModelServer server(DrafterKind::kChain);
  for (const double temperature : {1e-40, 1e-37, 2.5, 1e6, 3e38}) {
    const json body = JsonOf(server.Post({{"prompt", kQuestion},
                                          {"model", "stub"},
                                          {"max_tokens", 8},
                                          {"ignore_eos", true},
                                          {"seed", 7},
                                          {"temperature", temperature}},
                                         "/v1/completions"));
    EXPECT_EQ(body["usage"]["completion_tokens"], 8) << temperature;
  }
}

// Log-likelihoods: of a continuation that the model would choose itself, and of one it would not.
TEST(KnownClientsTest, LmEvalScoresContinuations) {
  const ModelServer server(DrafterKind::kChain);
  const std::vector<int32_t> context = RemoteTokens(server, kQuestion);
  const json greedy = JsonOf(server.Post({{"prompt", json::array({context})},
                                          {"model", "stub"},
                                          {"max_tokens", 24},
                                          {"temperature", 0},
                                          {"seed", 1234},
                                          {"return_token_ids", true},
                                          {"stop", {"<|end|>", "\n\n"}}},
                                         "/v1/completions"));
  std::vector<int32_t> likely = context;
  for (const json& id : greedy["choices"][0]["token_ids"]) likely.push_back(id);
  ASSERT_GT(likely.size(), context.size() + 4) << greedy;
  std::vector<int32_t> unlikely = likely;
  std::reverse(unlikely.begin() + static_cast<std::ptrdiff_t>(context.size()), unlikely.end());
  const json scored = JsonOf(server.Post({{"model", "stub"},
                                          {"prompt", {unlikely, likely}},
                                          {"temperature", 0},
                                          {"max_tokens", 1},
                                          {"logprobs", 1},
                                          {"seed", 1234},
                                          {"echo", true}},
                                         "/v1/completions"));
  ASSERT_EQ(scored["choices"].size(), 2U);
  for (const json& choice : scored["choices"]) {
    const bool is_likely = choice["index"] == 1;
    const json& logprobs = choice["logprobs"];
    const json& own = logprobs["token_logprobs"];
    ASSERT_EQ(own.size(), likely.size() + 1);
    ASSERT_EQ(logprobs["top_logprobs"].size(), own.size());
    EXPECT_TRUE(own[0].is_null());
    bool is_greedy = true;
    double sum = 0;
    for (size_t t = context.size(); t + 1 < own.size(); ++t) {
      const json& top = logprobs["top_logprobs"][t];
      double best = -1e9;
      for (const auto& [token, logprob] : top.items()) best = std::max(best, logprob.get<double>());
      EXPECT_TRUE(top.contains(logprobs["tokens"][t].get<std::string>()));
      EXPECT_LE(own[t].get<double>(), best);
      is_greedy = is_greedy && own[t].get<double>() == best;  // exactly, as lm_eval asks
      sum += own[t].get<double>();
    }
    EXPECT_EQ(is_greedy, is_likely) << choice;
    EXPECT_EQ(sum > -12, is_likely) << sum;
  }
}

// What `vllm bench serve` counts: a time for each chunk with choices, tokens by the usage chunk.
void ExpectBenchStream(const ModelServer& server, const char* path, const json& body,
                       int32_t num_tokens) {
  const ClientResponse response =
      HttpClient(server.port()).Post(path, body.dump(), "x-request-id: bench-7\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("x-request-id"), "bench-7");
  const std::vector<std::string> events = EventsOf(response.body);
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], num_tokens);
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const json choice = json::parse(events[i])["choices"].at(0);
    const json& part =
        choice.contains("delta") ? choice["delta"].value("content", json("")) : choice["text"];
    if (part.is_string()) text += part.get<std::string>();
  }
  EXPECT_FALSE(text.empty());
}

TEST(KnownClientsTest, VllmBenchServe) {
  const ModelServer server(DrafterKind::kChain);
  ExpectBenchStream(server, "/v1/completions",
                    {{"model", "stub"},
                     {"prompt", kQuestion},
                     {"repetition_penalty", 1.0},
                     {"max_tokens", 40},
                     {"logprobs", nullptr},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}},
                     {"temperature", 0.0},
                     {"ignore_eos", true}},
                    40);
  ExpectBenchStream(
      server, "/v1/chat/completions",
      {{"model", "stub"},
       {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", kQuestion}}}}}}},
       {"max_completion_tokens", 40},
       {"stream", true},
       {"stream_options", {{"include_usage", true}}},
       {"temperature", 0.0},
       {"ignore_eos", true}},
      40);
}

}  // namespace
}  // namespace outrider
