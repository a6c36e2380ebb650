// The API from end to end: requests over loopback, the stub engine behind. One case per field and
// fault makes it long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "outrider/text/bad_words.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string TextOf(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const json chunk = json::parse(event);
    for (const json& choice : chunk.at("choices")) {
      text += choice.contains("delta") ? choice["delta"].value("content", "")
                                       : choice.value("text", "");
    }
  }
  return text;
}

json ErrorOf(const ClientResponse& response) { return json::parse(response.body).at("error"); }

TEST(GenerationApiTest, CompletesAPrompt) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse response =
      client.Post("/v1/completions", R"({"model":"stub","prompt":"abc","max_tokens":5})",
                  "X-Request-Id: my-id\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("x-request-id"), "my-id");
  const json body = json::parse(response.body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "stub");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  const json& choice = body["choices"].at(0);
  EXPECT_EQ(choice["text"], "abc");  // BOS, which has no text, comes first
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(body["usage"], (json{{"prompt_tokens", 4},
                                 {"completion_tokens", 5},
                                 {"total_tokens", 9},
                                 {"prompt_tokens_details", {{"cached_tokens", 1}}}}));
}

TEST(GenerationApiTest, StreamsACompletion) {
  RunningServer running({.step_time = std::chrono::milliseconds(2)});
  HttpClient client(running.port());
  const ClientResponse response = client.Post(
      "/v1/completions",
      R"({"prompt":"abc.","stream":true,"max_tokens":50,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.chunked);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  const std::vector<std::string> events = EventsOf(response.body);
  ASSERT_EQ(events.size(), 6);  // a b c . usage [DONE]
  EXPECT_EQ(TextOf(events), "abc.");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[3])["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(json::parse(events[0])["usage"].is_null());
  const json usage = json::parse(events[4]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 5);
}

TEST(GenerationApiTest, ChatsWithAndWithoutStreaming) {
  RunningServer running({.tokens_per_step = 4});
  HttpClient client(running.port());
  const ClientResponse whole =
      client.Post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":[{"type":"text","text":"hello."}]}]})");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const json body = json::parse(whole.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"], (json{{"role", "assistant"}, {"content", "hello."}}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  const ClientResponse stream = client.Post(
      "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hello."}],"stream":true})");
  const std::vector<std::string> events = EventsOf(stream.body);
  EXPECT_EQ(TextOf(events), "hello.");
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"],
            (json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(json::parse(events[0])["object"], "chat.completion.chunk");
  EXPECT_EQ(events.back(), "[DONE]");
}

// A default of chat is the whole context.
TEST(GenerationApiTest, ChatMayFillTheContext) {
  RunningServer running({.tokens_per_step = 100});
  HttpClient client(running.port());
  const json body = json::parse(
      client.Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"abc"}]})")
          .body);
  EXPECT_EQ(body["usage"]["total_tokens"], 4096);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST(GenerationApiTest, AnswersListsOfPromptsByIndex) {
  RunningServer running({.tokens_per_step = 2});
  HttpClient client(running.port());
  const json body = json::parse(
      client.Post("/v1/completions", R"({"prompt":["xyz.","b.",""],"max_tokens":8})").body);
  ASSERT_EQ(body["choices"].size(), 3) << body;
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][0]["text"], "xyz.");
  EXPECT_EQ(body["choices"][1]["text"], "b.");
  EXPECT_EQ(body["choices"][2]["text"], "");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 9);
  const json ids = json::parse(
      client
          .Post("/v1/completions",
                R"({"prompt":[[120,46],[121,122]],"max_tokens":3,"return_token_ids":true})")
          .body);
  EXPECT_EQ(ids["choices"][0]["text"], "x.");
  EXPECT_EQ(ids["choices"][0]["prompt_token_ids"], (json{120, 46}));
  EXPECT_EQ(ids["choices"][1]["token_ids"], (json{121, 122, 121}));
  const std::vector<std::string> events =
      EventsOf(client.Post("/v1/completions", R"({"prompt":["a.","bc."],"stream":true})").body);
  std::string texts[2];
  int finished = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    texts[choice["index"].get<int>()] += choice["text"];
    finished += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_THAT(texts, ElementsAre("a.", "bc."));
  EXPECT_EQ(finished, 2);
}

TEST(GenerationApiTest, ReportsSpeculationWhenAsked) {
  RunningServer running({.tokens_per_step = 4});
  HttpClient client(running.port());
  const std::string request =
      R"({"prompt":[120,121],"max_tokens":10,"per_request_spec_decode_metrics":"summary")";
  const json expected = {{"speculative_decoding",
                          {{"mean_acceptance_length", 3.33333},
                           {"draft_acceptance_rate", 0.777778},
                           {"acceptance_histogram", {0, 1, 0, 2}},
                           {"num_spec_steps", 3},
                           {"num_accepted_draft_tokens", 7},
                           {"num_draft_tokens", 9},
                           {"num_spec_tokens", 3}}}};
  EXPECT_EQ(json::parse(client.Post("/v1/completions", request + "}").body)["metrics"], expected);
  // In a stream: with the last event before [DONE].
  std::vector<std::string> events =
      EventsOf(client.Post("/v1/completions", request + R"(,"stream":true})").body);
  EXPECT_EQ(json::parse(events.at(events.size() - 2))["metrics"], expected);
  EXPECT_FALSE(json::parse(events.at(events.size() - 3)).contains("metrics"));
  events =
      EventsOf(client
                   .Post("/v1/completions",
                         request + R"(,"stream":true,"stream_options":{"include_usage":true}})")
                   .body);
  const json last = json::parse(events.at(events.size() - 2));
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["metrics"], expected);
  EXPECT_FALSE(
      json::parse(client.Post("/v1/completions", R"({"prompt":"a"})").body).contains("metrics"));
}

// Tokens 120 121 in a circle, 4 a step, 10 in all: the last step accepts 1 of its 3 drafts.
TEST(GenerationApiTest, ReportsEveryStepWhenAsked) {
  RunningServer running({.tokens_per_step = 4});
  HttpClient client(running.port());
  const std::string request =
      R"({"prompt":[120,121],"max_tokens":10,"per_request_spec_decode_metrics":"detailed")";
  const auto tokens = [](const std::string& letters) {
    json list = json::array();
    for (const char c : letters) list.push_back({{"id", int{c}}, {"text", std::string(1, c)}});
    return list;
  };
  const json full = {{"drafts", tokens("xyx")}, {"num_accepted", 3}, {"tokens", tokens("xyxy")}};
  const json last = {{"drafts", tokens("xww")}, {"num_accepted", 1}, {"tokens", tokens("xy")}};
  const json answer = json::parse(client.Post("/v1/completions", request + "}").body);
  EXPECT_EQ(answer["choices"][0]["speculative_steps"], (json{full, full, last}));
  const json& metrics = answer["metrics"]["speculative_decoding"];
  EXPECT_EQ(metrics["per_step_drafted"], (json{3, 3, 3}));
  EXPECT_EQ(metrics["per_step_accepted"], (json{3, 3, 1}));
  EXPECT_EQ(metrics["num_accepted_draft_tokens"], 7);
  json steps = json::array();
  for (const std::string& event :
       EventsOf(client.Post("/v1/completions", request + R"(,"stream":true})").body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& step : chunk["choices"][0]["speculative_steps"]) steps.push_back(step);
    if (chunk.contains("metrics")) {
      EXPECT_EQ(chunk["metrics"], answer["metrics"]);
    }
  }
  EXPECT_EQ(steps, (json{full, full, last}));
}

TEST(GenerationApiTest, ListsModels) {
  RunningServer running;
  HttpClient client(running.port());
  const json models = json::parse(client.Get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 2);
  EXPECT_EQ(models["data"][0]["id"], "stub");
  EXPECT_EQ(models["data"][0]["root"], "/models/stub");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(json::parse(client.Get("/v1/models/stub-alias").body)["id"], "stub-alias");
  EXPECT_EQ(json::parse(client.Get("/v1/models/stub%2dalias").body)["id"], "stub-alias");
  EXPECT_EQ(client.Get("/v1/models/other%zz%").status, 404);
  const json answer =
      json::parse(client.Post("/v1/completions", R"({"prompt":"a","model":"stub-alias"})").body);
  EXPECT_EQ(answer["model"], "stub-alias");
}

TEST(GenerationApiTest, RefusesBadRequestsWithOpenAiErrors) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse unknown = client.Post("/v1/completions", R"({"prompt":"a","temprature":1})");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_EQ(ErrorOf(unknown), (json{{"message",
                                     "temprature: unknown field; did you mean "
                                     "\"temperature\"?"},
                                    {"type", "invalid_request_error"},
                                    {"param", "temprature"},
                                    {"code", nullptr}}));
  const ClientResponse malformed = client.Post("/v1/chat/completions", "{\"messages\": [");
  EXPECT_EQ(malformed.status, 400);
  EXPECT_EQ(ErrorOf(malformed)["code"], "invalid_json");
  const ClientResponse model = client.Post("/v1/completions", R"({"prompt":"a","model":"gpt"})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(ErrorOf(model)["code"], "model_not_found");
  const ClientResponse long_prompt =
      client.Post("/v1/completions", json{{"prompt", std::string(4095, 'x')}}.dump());
  EXPECT_EQ(long_prompt.status, 400);
  EXPECT_EQ(ErrorOf(long_prompt)["code"], "context_length_exceeded");
  EXPECT_THAT(ErrorOf(long_prompt)["message"].get<std::string>(), HasSubstr("4096 tokens"));
  const ClientResponse stream = client.Post("/v1/completions", R"({"prompt":[],"stream":true})");
  EXPECT_EQ(stream.status, 400);
  // All of it on one connection, which still works.
  EXPECT_EQ(client.Get("/health").status, 200);
}

TEST(GenerationApiTest, TellsWhenTheEngineIsFull) {
  RunningServer running(
      {.step_time = std::chrono::milliseconds(1), .max_requests = 2, .refuses_late = true});
  HttpClient client(running.port());
  for (const char* stream : {"false", "true"}) {
    const ClientResponse response =
        client.Post("/v1/completions", R"({"prompt":["a","b","c"],"max_tokens":1000,"stream":)" +
                                           std::string(stream) + "}");
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_EQ(ErrorOf(response)["message"], "the queue is full");
    // The two prompts that were taken do not run on.
    EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }));
  }
  EXPECT_EQ(running.engine.num_aborted(), 4);
}

TEST(GenerationApiTest, GuardsEverythingButHealthByAKey) {
  ServerOptions options = TestServerOptions();
  options.api_keys = {"secret"};
  RunningServer running({}, options);
  HttpClient client(running.port());
  EXPECT_EQ(client.Get("/health").status, 200);
  const ClientResponse refused = client.Get("/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(ErrorOf(refused)["code"], "invalid_api_key");
  for (const char* path : {"/metrics", "/version", "/nowhere"}) {
    EXPECT_EQ(client.Get(path).status, 401) << path;
  }
  for (const char* key : {"Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret",
                          "Bearersecret", "Bearer secret secret"}) {
    EXPECT_EQ(client.Get("/v1/models", "Authorization: " + std::string(key) + "\r\n").status, 401)
        << key;
  }
  for (const char* key : {"Bearer secret", "bearer secret", "BEARER   secret"}) {
    EXPECT_EQ(client.Get("/v1/models", "authorization: " + std::string(key) + "\r\n").status, 200)
        << key;
  }
  // A body is not read before the key is seen.
  HttpClient post(running.port());
  post.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
      "application/json\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(post.Receive().status, 401);
}

TEST(GenerationApiTest, ServesManyClientsAtOnce) {
  RunningServer running({.tokens_per_step = 3, .step_time = std::chrono::microseconds(200)});
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int c = 0; c < 16; ++c) {
    clients.emplace_back([&, c] {
      HttpClient client(running.port());
      for (int i = 0; i < 8; ++i) {
        const std::string prompt(1 + (c * 7 + i) % 30, static_cast<char>('a' + c));
        const bool stream = i % 2 == 0;
        const ClientResponse response = client.Post(
            "/v1/completions",
            json{{"prompt", prompt + "."}, {"max_tokens", 100}, {"stream", stream}}.dump());
        const std::string text =
            stream ? TextOf(EventsOf(response.body))
                   : json::parse(response.body)["choices"][0]["text"].get<std::string>();
        if (text == prompt + ".") ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 16 * 8);
}

TEST(GenerationApiTest, GivesSeveralChoicesPerPrompt) {
  RunningServer running({.tokens_per_step = 2});
  HttpClient client(running.port());
  const json body = json::parse(
      client.Post("/v1/completions", R"({"prompt":["xyz.","b."],"n":3,"max_tokens":8,"seed":40})")
          .body);
  ASSERT_EQ(body["choices"].size(), 6) << body;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], i < 3 ? "xyz." : "b.");
  }
  // A prompt counts once.
  EXPECT_EQ(body["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3 * 5 + 3 * 3);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(running.engine.last_sampling().seed, 42U);

  const ClientResponse stream =
      client.Post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"a."}],"n":2,"stream":true})");
  std::map<int, std::string> texts;
  for (const std::string& event : EventsOf(stream.body)) {
    if (event == "[DONE]") break;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      texts[choice["index"]] += choice["delta"].value("content", "");
    }
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "a."}, {1, "a."}}));
}

TEST(GenerationApiTest, EchoesAndScoresPromptsAsLmEvalWants) {
  RunningServer running;
  HttpClient client(running.port());
  const json body = json::parse(
      client
          .Post("/v1/completions",
                R"({"prompt":[[97,98,99],[120,121]],"max_tokens":1,"echo":true,"logprobs":1})")
          .body);
  ASSERT_EQ(body["choices"].size(), 2) << body;
  EXPECT_EQ(body["choices"][0]["text"], "abca");
  EXPECT_EQ(body["choices"][0]["logprobs"],
            json::parse(R"({"tokens":["a","b","c","a"],"token_logprobs":[null,-0.25,-0.25,-0.5],
                            "top_logprobs":[null,{"x":-0.125,"b":-0.25},{"x":-0.125,"c":-0.25},
                                            {"a":-0.5}],"text_offset":[0,1,2,3]})"));
  EXPECT_EQ(body["choices"][1]["logprobs"]["tokens"], (json{"x", "y", "x"}));
  EXPECT_FALSE(body["choices"][0].contains("prompt_logprobs"));
}

// 256 is BOS, a special token; 195, 169 is "\u00e9".
TEST(GenerationApiTest, OffsetsOfAnEchoAreThoseOfItsText) {
  RunningServer running;
  HttpClient client(running.port());
  const auto choice = [&](const std::string& fields) {
    const ClientResponse response = client.Post(
        "/v1/completions", R"({"max_tokens":2,"echo":true,"logprobs":0,)" + fields + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body)["choices"][0];
  };
  // The BOS that the tokenizer adds is a token of the prompt and no part of the text.
  const json text = choice(R"("prompt":"ab")");
  EXPECT_EQ(text["text"], "aba");
  EXPECT_EQ(text["logprobs"]["tokens"], (json{"<bos>", "a", "b", "<bos>", "a"}));
  EXPECT_EQ(text["logprobs"]["text_offset"], (json{0, 0, 1, 2, 2}));
  const json ids = choice(R"("prompt":[97,256,195,169,98])");
  EXPECT_EQ(ids["text"], "a\u00e9ba");
  EXPECT_EQ(ids["logprobs"]["text_offset"], (json{0, 1, 1, 2, 2, 3, 4}));
  const json shown = choice(R"("prompt":[97,256],"skip_special_tokens":false)");
  EXPECT_EQ(shown["text"], "a<bos>a<bos>");
  EXPECT_EQ(shown["logprobs"]["text_offset"], (json{0, 1, 6, 7}));
  const json cut = choice(R"("prompt":"xyab","truncate_prompt_tokens":2)");
  EXPECT_EQ(cut["text"], "abab");
  EXPECT_EQ(cut["logprobs"]["text_offset"], (json{0, 1, 2, 3}));
}

TEST(GenerationApiTest, AnswersInAChatBeginWithTheEchoedMessage) {
  RunningServer running;
  HttpClient client(running.port());
  const std::string body =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"So \"x"}],)"
      R"("continue_final_message":true,"max_tokens":2,"n":2,"echo":true)";
  const json whole = json::parse(client.Post("/v1/chat/completions", body + "}").body);
  for (const json& choice : whole["choices"]) {
    EXPECT_EQ(choice["message"]["content"], "So \"xSo");
  }
  std::map<int, std::string> texts;
  for (const std::string& event :
       EventsOf(client.Post("/v1/chat/completions", body + R"(,"stream":true})").body)) {
    if (event == "[DONE]") break;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      texts[choice["index"]] += choice["delta"].value("content", "");
    }
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "So \"xSo"}, {1, "So \"xSo"}}));
  // A question is not the assistant's to repeat.
  const json question = json::parse(
      client
          .Post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"ab"}],"max_tokens":2,"echo":true})")
          .body);
  EXPECT_EQ(question["choices"][0]["message"]["content"], "ab");
}

TEST(GenerationApiTest, EchoesATextAndNothingElseForMaxTokens0) {
  RunningServer running;
  HttpClient client(running.port());
  const json body = json::parse(
      client.Post("/v1/completions", R"({"prompt":"h\u00e9.","max_tokens":0,"echo":true})").body);
  EXPECT_EQ(body["choices"][0]["text"], "h\u00e9.");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  const std::vector<std::string> events = EventsOf(
      client
          .Post("/v1/completions",
                R"({"prompt":"abc.","max_tokens":2,"echo":true,"logprobs":0,"stream":true})")
          .body);
  EXPECT_EQ(TextOf(events), "abc.a");
  EXPECT_EQ(json::parse(events[0])["choices"][0]["logprobs"]["tokens"],
            (json{"<bos>", "a", "b", "c", ".", "<bos>"}));
}

TEST(GenerationApiTest, TellsPromptLogprobsAsVllmDoes) {
  RunningServer running;
  HttpClient client(running.port());
  const json expected = json::parse(
      R"([null,{"98":{"logprob":-0.25,"rank":7,"decoded_token":"b"},
                "120":{"logprob":-0.125,"rank":1,"decoded_token":"x"}}])");
  const json body = json::parse(
      client.Post("/v1/completions", R"({"prompt":[97,98],"max_tokens":1,"prompt_logprobs":1})")
          .body);
  EXPECT_EQ(body["choices"][0]["prompt_logprobs"], expected);
  EXPECT_EQ(body["choices"][0]["text"], "a");
  const json chat = json::parse(
      client
          .Post(
              "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"ab"}],"max_tokens":1,"prompt_logprobs":1})")
          .body);
  EXPECT_EQ(chat["prompt_logprobs"][1], expected[1]);
}

TEST(GenerationApiTest, SpellsBadWordsWithAndWithoutASpace) {
  // A tokenizer in which " b" is one token, as many have it.
  class SpaceEncoder : public BytePromptEncoder {
   public:
    std::vector<int32_t> EncodeText(std::string_view text, bool special) const override {
      std::vector<int32_t> ids = BytePromptEncoder::EncodeText(text, special);
      if (ids.size() > 1 && ids[0] == ' ') {
        ids.erase(ids.begin());
        ids[0] += 100;
      }
      return ids;
    }
  };
  using Words = std::vector<std::vector<int32_t>>;
  const std::vector<std::string> words = {"  b", "cd"};
  EXPECT_EQ(EncodeBadWords(words, SpaceEncoder()), (Words{{98}, {198}, {99, 100}, {199, 100}}));
  // Here the space is a token of its own: the word with it is longer, and holds the other.
  EXPECT_EQ(EncodeBadWords(words, BytePromptEncoder()), (Words{{98}, {99, 100}}));

  RunningServer running;
  HttpClient client(running.port());
  client.Post("/v1/completions", R"({"prompt":"a","max_tokens":1,"bad_words":["b"]})");
  EXPECT_EQ(running.engine.last_sampling().bad_words, (Words{{98}}));
}

// A fault of the engine's ends one request: with a status, or an event once the answer has begun.
TEST(GenerationApiTest, AFaultOfTheEngineIsAnErrorOfTheRequest) {
  RunningServer running({.step_time = std::chrono::milliseconds(20), .fail_after = 3});
  HttpClient client(running.port());
  const ClientResponse whole = client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":9})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(json::parse(whole.body)["error"]["code"], "engine_error");
  const ClientResponse stream =
      client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":9,"stream":true})");
  EXPECT_EQ(stream.status, 200);
  const std::vector<std::string> events = EventsOf(stream.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(json::parse(events.back())["error"]["code"], "engine_error");
  // Others are not touched.
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":2})").status, 200);
}

}  // namespace
}  // namespace outrider
