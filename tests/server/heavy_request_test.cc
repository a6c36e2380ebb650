// Requests that are large, or make large answers: others go on meanwhile, and what cannot be served
// is refused before work is done for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Counts the bytes that it encodes, and can be held while it does something.
class WatchedEncoder : public BytePromptEncoder {
 public:
  std::vector<int32_t> EncodeText(std::string_view text, bool special) const override {
    num_encoded_ += text.size();
    if (text.size() > 1000 || text == "hold") Wait();
    return BytePromptEncoder::EncodeText(text, special);
  }
  EncodedChat EncodeChat(const ChatPrompt& chat) const override {
    num_rendered_ += chat.messages_json.size();
    return BytePromptEncoder::EncodeChat(chat);
  }
  std::string TokenBytes(int32_t id) const override {
    if (id == 'x') Wait();  // the stub's alternative to each token of a prompt
    return BytePromptEncoder::TokenBytes(id);
  }

  void Hold() { Set(true); }
  void Release() { Set(false); }
  size_t num_encoded() const { return num_encoded_; }
  size_t num_rendered() const { return num_rendered_; }
  bool has_waiters() const { return num_waiting_ > 0; }

 private:
  void Set(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }
  void Wait() const {
    ++num_waiting_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    --num_waiting_;
  }

  mutable std::atomic<size_t> num_encoded_{0};
  mutable std::atomic<size_t> num_rendered_{0};
  mutable std::atomic<int> num_waiting_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool held_ = false;
};

json RefusalOf(const ClientResponse& response) {
  EXPECT_EQ(response.status, 400) << response.body.substr(0, 300);
  return json::parse(response.body)["error"];
}

std::string Repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

// The context has 4096 tokens, and each stands for a byte.
TEST(HeavyRequestTest, APromptThatCannotFitIsNotEncoded) {
  WatchedEncoder encoder;
  RunningServer running({}, TestServerOptions(), nullptr, &encoder);
  HttpClient client(running.port());
  const std::string text(1'000'000, 'a');
  for (const std::string& prompt : {'"' + text + '"', "[\"b\",\"" + text + "\"]"}) {
    const json error = RefusalOf(client.Post("/v1/completions", R"({"prompt":)" + prompt + "}"));
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["param"], "prompt");
    EXPECT_THAT(std::string(error["message"]),
                HasSubstr("has 1000000 bytes; the model's context of 4096 tokens"));
  }
  EXPECT_EQ(encoder.num_encoded(), 0U);
  const auto chat = [&](size_t bytes) {
    return R"({"messages":[{"role":"user","content":")" + std::string(bytes, 'a') + "\"}]}";
  };
  EXPECT_EQ(RefusalOf(client.Post("/v1/chat/completions", chat(1'000'000)))["code"],
            "context_length_exceeded");
  EXPECT_EQ(encoder.num_rendered(), 0U) << "the template has worked on it";
  EXPECT_EQ(RefusalOf(client.Post("/v1/chat/completions", chat(5000)))["code"],
            "context_length_exceeded");
  EXPECT_EQ(encoder.num_encoded(), 0U);
  // What is to be cut is encoded.
  EXPECT_EQ(client
                .Post("/v1/completions",
                      R"({"prompt":")" + text + R"(","max_tokens":1,"truncate_prompt_tokens":-1})")
                .status,
            200);
  EXPECT_EQ(encoder.num_encoded(), text.size());
}

TEST(HeavyRequestTest, SmallRequestsDoNotWaitForLargeOnes) {
  WatchedEncoder encoder;
  RunningServer running({}, TestServerOptions(), nullptr, &encoder);
  encoder.Hold();
  std::vector<std::unique_ptr<HttpClient>> large;
  for (int i = 0; i < 8; ++i) {  // more than there are threads
    large.push_back(std::make_unique<HttpClient>(running.port()));
    large.back()->SendRequest("POST", "/tokenize",
                              R"({"prompt":")" + std::string(200'000, 'a') + "\"}");
  }
  ASSERT_TRUE(Eventually([&] { return encoder.has_waiters(); }));
  HttpClient client(running.port());
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":2})").status, 200);
    ASSERT_EQ(client.Post("/tokenize", R"({"prompt":"abc"})").status, 200);
  }
  encoder.Release();
  for (const auto& one : large) EXPECT_EQ(one->Receive().status, 200);
}

TEST(HeavyRequestTest, OneRequestThatTakesLongHoldsUpNoOther) {
  WatchedEncoder encoder;
  RunningServer running({}, TestServerOptions(), nullptr, &encoder);
  encoder.Hold();
  HttpClient slow(running.port());
  slow.SendRequest("POST", "/v1/completions", R"({"prompt":"hold","max_tokens":2})");
  ASSERT_TRUE(Eventually([&] { return encoder.has_waiters(); }));
  HttpClient client(running.port());
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":2})").status, 200);
  }
  encoder.Release();
  EXPECT_EQ(slow.Receive().status, 200);
}

TEST(HeavyRequestTest, APromptIsScoredOnceForAllItsChoices) {
  RunningServer running;
  HttpClient client(running.port());
  const json body =
      json::parse(client
                      .Post("/v1/completions",
                            R"({"prompt":["abc","de"],"n":3,"max_tokens":1,"prompt_logprobs":1,)"
                            R"("add_special_tokens":false})")
                      .body);
  EXPECT_EQ(running.engine.num_scored_prompts(), 2);
  ASSERT_EQ(body["choices"].size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    const json& scores = body["choices"][i]["prompt_logprobs"];
    ASSERT_EQ(scores.size(), i < 3 ? 3U : 2U) << i;
    EXPECT_TRUE(scores[1].contains(i < 3 ? "98" : "101")) << i;
  }
  const json echo =
      json::parse(client
                      .Post("/v1/completions",
                            R"({"prompt":"abc","n":2,"max_tokens":1,"echo":true,"logprobs":1})")
                      .body);
  EXPECT_EQ(running.engine.num_scored_prompts(), 3);
  for (const json& choice : echo["choices"]) {
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], (json{nullptr, -0.25, -0.25, -0.25, -0.5}));
  }
}

// Choices whose prompt is scored for another one wait for that.
TEST(HeavyRequestTest, EveryChoiceOfAStreamEchoesItsScoredPrompt) {
  RunningServer running({.step_time = std::chrono::milliseconds(1), .scored_wait_steps = 6});
  for (const char* interval : {"1", "3"}) {
    const std::vector<std::string> events = EventsOf(
        HttpClient(running.port())
            .Post("/v1/completions",
                  std::string(R"({"prompt":"abc","n":4,"max_tokens":4,"echo":true,"logprobs":0,)"
                              R"("stream":true,"stream_interval":)") +
                      interval + "}")
            .body);
    std::vector<std::string> texts(4);
    std::vector<json> logprobs(4, json::array());
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      const json chunk = json::parse(event);
      for (const json& choice : chunk["choices"]) {
        texts[choice["index"]] += choice["text"].get<std::string>();
        for (const json& one : choice["logprobs"]["token_logprobs"]) {
          logprobs[choice["index"]].push_back(one);
        }
      }
    }
    EXPECT_EQ(texts, std::vector<std::string>(4, "abcabc"));
    for (const json& all : logprobs) {
      EXPECT_EQ(all, (json{nullptr, -0.25, -0.25, -0.25, -0.5, -0.5, -0.5, -0.5}));
    }
  }
}

TEST(HeavyRequestTest, AnAnswerHasAsManyPromptLogprobsAsDocumented) {
  RunningServer running;
  HttpClient client(running.port());
  const std::string prompt(1000, 'a');
  const auto post = [&](int n, int top) {
    return client.Post("/v1/completions", R"({"prompt":")" + prompt +
                                              R"(","add_special_tokens":false,"max_tokens":1,)" +
                                              R"("n":)" + std::to_string(n) +
                                              R"(,"prompt_logprobs":)" + std::to_string(top) + "}");
  };
  const json error = RefusalOf(post(128, 20));
  EXPECT_EQ(error["param"], "prompt_logprobs");
  EXPECT_THAT(std::string(error["message"]), HasSubstr("make 2688000; at most 2097152"));
  EXPECT_EQ(post(20, 20).status, 200);
  EXPECT_EQ(RefusalOf(client.Post("/v1/completions", R"({"prompt":")" + prompt +
                                                         R"(","n":128,"max_tokens":1,)" +
                                                         R"("echo":true,"logprobs":20})"))["param"],
            "logprobs");
}

// The thread of all connections writes no long answer: here it would hang.
TEST(HeavyRequestTest, LongAnswersAreWrittenElsewhere) {
  for (const bool stream : {false, true}) {
    WatchedEncoder encoder;
    RunningServer running({}, TestServerOptions(), nullptr, &encoder);
    HttpClient client(running.port());
    HttpClient other(running.port());
    encoder.Hold();
    const std::string ids = Repeated("97,", 3999) + "97";
    client.SendRequest("POST", "/v1/completions",
                       R"({"prompt":[)" + ids + R"(],"n":2,"max_tokens":1,"logprobs":1,)" +
                           (stream ? R"("stream":true,"echo":true})" : R"("prompt_logprobs":1})"));
    ASSERT_TRUE(Eventually([&] { return encoder.has_waiters(); }));
    for (int i = 0; i < 5; ++i) ASSERT_EQ(other.Get("/health").status, 200);
    ASSERT_EQ(other.Post("/v1/completions", R"({"prompt":"abc","max_tokens":2})").status, 200);
    encoder.Release();
    if (stream) {
      EXPECT_TRUE(client.ReceiveUntil("[DONE]"));
      continue;
    }
    const ClientResponse answer = client.Receive();
    EXPECT_EQ(answer.status, 200);
    EXPECT_FALSE(answer.chunked);
    const json body = json::parse(answer.body);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(body["choices"][i]["prompt_logprobs"].size(), 4000U);
    }
  }
}

// A client that goes away, or a server that stops, while an answer is written.
TEST(HeavyRequestTest, NobodyNeedsToWaitForALongAnswer) {
  WatchedEncoder encoder;
  RunningServer running({}, TestServerOptions(), nullptr, &encoder);
  const std::string request =
      R"({"prompt":[)" + Repeated("97,", 3999) + R"(97],"n":2,"max_tokens":1,"prompt_logprobs":1})";
  encoder.Hold();
  for (int i = 0; i < 3; ++i) {
    HttpClient client(running.port());
    client.SendRequest("POST", "/v1/completions", request);
    ASSERT_TRUE(Eventually([&] { return encoder.has_waiters(); }));
    client.Close();
  }
  EXPECT_EQ(HttpClient(running.port()).Get("/health").status, 200);
  encoder.Release();
  HttpClient client(running.port());
  EXPECT_EQ(client.Post("/v1/completions", request).status, 200);
}

}  // namespace
}  // namespace outrider
