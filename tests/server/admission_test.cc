// Who is refused before any work is done: a full queue, a key that has too many requests.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

nlohmann::json RefusalIn(const ClientResponse& response) {
  return nlohmann::json::parse(response.body)["error"];
}

TEST(AdmissionTest, AFullQueueRefusesBeforeItReadsABody) {
  RunningServer running({.max_requests = 1, .held = true});
  HttpClient first(running.port());
  first.SendRequest("POST", "/v1/completions", R"({"prompt":"a"})");
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
  HttpClient client(running.port());
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate"}) {
    const ClientResponse response = client.Post(path, "no JSON");
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_EQ(RefusalIn(response)["message"], "the queue is full");
  }
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"a"})").status, 200);
  running.engine.Release();
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_EQ(client.Post("/v1/completions", "no JSON").status, 400);
}

TEST(AdmissionTest, ARequestIsTakenWithAllItsChoicesOrNotAtAll) {
  RunningServer running({.max_requests = 3, .held = true});
  HttpClient first(running.port());
  first.SendRequest("POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})");
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
  HttpClient client(running.port());
  const ClientResponse full =
      client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":1,"n":3})");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(running.engine.num_running(), 1) << "none of the three was taken";
  for (const char* too_much :
       {R"({"prompt":"a","max_tokens":1,"n":4})", R"({"prompt":["a","b"],"max_tokens":1,"n":2})"}) {
    const ClientResponse never = client.Post("/v1/completions", too_much);
    EXPECT_EQ(never.status, 400) << too_much;
    EXPECT_EQ(RefusalIn(never)["message"], "4 at a time are more than the queue takes");
    EXPECT_FALSE(never.headers.contains("retry-after"));
  }
  running.engine.Release();
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_TRUE(Eventually([&] {
    return client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":1,"n":3})").status == 200;
  }));
}

TEST(AdmissionTest, HealthEndsWithTheEngine) {
  RunningServer running;
  HttpClient client(running.port());
  EXPECT_EQ(client.Get("/health").status, 200);
  running.engine.Fail();
  EXPECT_EQ(client.Get("/health").status, 503);
}

TEST(AdmissionTest, AKeyMayHaveSoManyRequests) {
  ServerOptions options = TestServerOptions();
  options.api_keys = {"one", "two"};
  options.max_requests_per_key = 2;
  RunningServer running({.held = true}, options);
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const std::string body = R"({"prompt":"abc","max_tokens":2})";
  HttpClient a(running.port());
  HttpClient b(running.port());
  HttpClient c(running.port());
  a.SendRequest("POST", "/v1/completions", body, one);
  b.SendRequest("POST", "/v1/completions", body, one);
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 2; }));
  const ClientResponse refused = c.Post("/v1/completions", body, one);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(RefusalIn(refused)["code"], "rate_limit_exceeded");
  EXPECT_EQ(RefusalIn(refused)["type"], "rate_limit_error");
  EXPECT_EQ(c.Get("/v1/models", one).status, 200) << "only what runs counts";
  EXPECT_EQ(c.Post("/v1/completions", "no JSON", two).status, 400) << "another key";
  b.Close();  // makes room as an answer does
  EXPECT_TRUE(Eventually([&] { return c.Post("/v1/completions", "no JSON", one).status == 400; }));
  running.engine.Release();
  EXPECT_EQ(a.Receive().status, 200);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(a.Post("/v1/completions", body, one).status, 200) << "one at a time, at once";
  }
}

}  // namespace
}  // namespace outrider
