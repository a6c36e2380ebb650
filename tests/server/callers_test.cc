// Who may ask, under which host name, and what a caller has to itself: its requests and its cached
// prefixes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "outrider/parallel/ended_rank.h"
#include "outrider/server/allowed_hosts.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kEndless = R"({"prompt":"ab","max_tokens":4000,"stream":true})";

std::string Key(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }

ServerOptions TwoKeys() {
  ServerOptions options = TestServerOptions();
  options.api_keys = {"alice", "bob"};
  return options;
}

TEST(AbortTest, AKeyEndsItsOwnRequestsOnly) {
  const RunningServer running({.step_time = std::chrono::milliseconds(20)}, TwoKeys());
  HttpClient stream(running.port());
  stream.SendRequest("POST", "/v1/completions", kEndless,
                     Key("alice") + "X-Request-Id: mine-1\r\n");
  const std::string id = json::parse(stream.NextEvent())["id"];
  const auto abort = [&](const std::string& key, const std::string& request) {
    const ClientResponse response =
        HttpClient(running.port()).Post("/abort", json{{"request_id", request}}.dump(), Key(key));
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body)["aborted"].get<int>();
  };
  EXPECT_EQ(abort("bob", "mine-1"), 0);
  EXPECT_EQ(abort("bob", id), 0);
  EXPECT_NE(stream.NextEvent(), "") << "it goes on";
  EXPECT_EQ(abort("alice", id), 1);
  std::string last;
  for (std::string event; (event = stream.NextEvent()) != "[DONE]" && !event.empty();) last = event;
  EXPECT_THAT(last, HasSubstr("abort"));
}

TEST(AbortTest, IdsAreRandom) {
  const RunningServer running;
  std::set<std::string> ids;
  std::set<std::string> beginnings;
  for (int i = 0; i < 10; ++i) {
    const ClientResponse response =
        HttpClient(running.port()).Post("/v1/completions", R"({"prompt":"ab","max_tokens":1})");
    const std::string answer = json::parse(response.body)["id"].get<std::string>().substr(5);
    const std::string request = response.headers.at("x-request-id");
    for (const std::string& id : {answer, request}) {
      EXPECT_EQ(id.size(), 32U) << id;
      ids.insert(id);
      beginnings.insert(id.substr(0, 8));
    }
  }
  EXPECT_EQ(ids.size(), 20U);
  EXPECT_EQ(beginnings.size(), 20U) << "a counter shares its first digits";
}

std::string SaltSeen(const RunningServer& running, const std::string& key,
                     const std::string& more = "") {
  const ClientResponse response =
      HttpClient(running.port())
          .Post("/v1/completions", R"({"prompt":"ab","max_tokens":1)" + more + "}",
                key.empty() ? "" : Key(key));
  EXPECT_EQ(response.status, 200) << response.body;
  return running.engine.last_cache_salt();
}

TEST(CacheSaltTest, EachKeyHasItsOwnUnlessTheyShare) {
  const RunningServer apart({}, TwoKeys());
  const std::string alice = SaltSeen(apart, "alice");
  const std::string bob = SaltSeen(apart, "bob");
  EXPECT_NE(alice, bob);
  EXPECT_NE(alice, "");
  EXPECT_EQ(SaltSeen(apart, "alice"), alice);
  // A client cannot name another's.
  const std::string forged = SaltSeen(apart, "bob", R"(,"cache_salt":)" + json(alice).dump());
  EXPECT_NE(forged, alice);
  EXPECT_NE(forged, bob);

  ServerOptions options = TwoKeys();
  options.share_prefix_cache = true;
  const RunningServer shared({}, options);
  EXPECT_EQ(SaltSeen(shared, "alice"), "");
  EXPECT_EQ(SaltSeen(shared, "bob", R"(,"cache_salt":"x")"), "x");

  const RunningServer open;
  EXPECT_EQ(SaltSeen(open, ""), "");
}

TEST(AllowedHostsTest, LoopbackNames) {
  for (const char* host :
       {"localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host :
       {"", "example.org", "localhost.example.org", "notlocalhost", ".localhost",
        "127.0.0.1.example.org", "127.example.0.1", "10.0.0.1", "0.0.0.0", "::", "128.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

int StatusFor(const RunningServer& running, const std::string& host, const std::string& path,
              const std::string& more = "") {
  HttpClient client(running.port());
  client.Send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n");
  return client.Receive().status;
}

// A page at evil.example makes its name resolve to 127.0.0.1.
TEST(AllowedHostsTest, OnLoopbackWithoutAKeyOtherNamesAreRefused) {
  ServerOptions options = TestServerOptions();
  options.allowed_hosts = {};
  const RunningServer running({}, options);
  for (const char* path : {"/v1/models", "/health", "/", "/metrics"}) {
    EXPECT_EQ(StatusFor(running, "evil.example:8000", path), 403) << path;
    EXPECT_EQ(StatusFor(running, "evil.example", path), 403) << path;
    for (const char* host : {"localhost", "localhost:1234", "127.0.0.1:8000", "[::1]:8000",
                             "localhost.", "app.localhost:8000"}) {
      EXPECT_EQ(StatusFor(running, host, path), 200) << host;
    }
  }
  HttpClient client(running.port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n"
      "Content-Length: 15\r\n\r\n{\"prompt\":\"ab\"}");
  const ClientResponse response = client.Receive();
  EXPECT_EQ(response.status, 403);
  EXPECT_THAT(response.body, HasSubstr("--allowed-hosts"));
}

TEST(AllowedHostsTest, NamedHostsAreAddedAndAStarAllowsAll) {
  ServerOptions options = TestServerOptions();
  options.allowed_hosts = {"gpu-box.lan"};
  const RunningServer named({}, options);
  EXPECT_EQ(StatusFor(named, "GPU-box.lan:8000", "/health"), 200);
  EXPECT_EQ(StatusFor(named, "localhost", "/health"), 200);
  EXPECT_EQ(StatusFor(named, "evil.example", "/health"), 403);
  options.allowed_hosts = {"*"};
  EXPECT_EQ(StatusFor(RunningServer({}, options), "evil.example", "/health"), 200);
}

TEST(AllowedHostsTest, KeysAndOtherAddressesNeedNoNames) {
  ServerOptions options = TwoKeys();
  options.allowed_hosts = {};
  EXPECT_EQ(StatusFor(RunningServer({}, options), "any.example", "/v1/models", Key("bob")), 200);
  options = TestServerOptions();
  options.allowed_hosts = {};
  options.http.host = "0.0.0.0";
  EXPECT_EQ(StatusFor(RunningServer({}, options), "any.example", "/v1/models"), 200);
}

// A form of a web page, which a browser sends to any server without asking.
TEST(ContentTypeTest, BodiesMustSayThatTheyAreJson) {
  const RunningServer running;
  const auto status = [&](const std::string& path, const std::string& type) {
    HttpClient client(running.port());
    client.Send("POST " + path + " HTTP/1.1\r\nHost: a\r\n" +
                (type.empty() ? "" : "Content-Type: " + type + "\r\n") +
                "Content-Length: 30\r\n\r\n{\"prompt\":\"ab\",\"max_tokens\":1}");
    return client.Receive().status;
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate",
                           "/abort", "/tokenize", "/detokenize"}) {
    for (const char* type : {"", "text/plain", "application/x-www-form-urlencoded",
                             "multipart/form-data; boundary=application/json", "application/jsonx",
                             "text/plain; application/json"}) {
      EXPECT_EQ(status(path, type), 415) << path << " " << type;
    }
  }
  for (const char* type : {"application/json", "application/json; charset=utf-8",
                           "Application/JSON ;charset=utf-8", "application/vnd.api+json"}) {
    EXPECT_EQ(status("/v1/completions", type), 200) << type;
  }
}

TEST(StepListenersTest, ThereIsALimit) {
  const RunningServer running;
  constexpr int kMost = 16;
  std::vector<std::unique_ptr<HttpClient>> listeners;
  for (int i = 0; i < kMost; ++i) {
    listeners.push_back(std::make_unique<HttpClient>(running.port()));
    listeners.back()->SendRequest("GET", "/debug/steps");
    EXPECT_NE(listeners.back()->NextEvent(), "");
  }
  const auto status = [&] {
    HttpClient client(running.port());
    client.SendRequest("GET", "/debug/steps");
    return client.Receive(/*head_only=*/true).status;
  };
  const ClientResponse refused = HttpClient(running.port()).Get("/debug/steps");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("16 clients listen"));
  listeners.pop_back();  // one goes: another may come
  EXPECT_TRUE(Eventually([&] { return status() == 200; }));
}

// What the engine failed of may name files of the server.
TEST(FaultTest, AFaultOfTheEngineNamesNoFile) {
  const RunningServer running({.fail_after = 2, .failure = "/opt/models/x: cannot be read"});
  const ClientResponse response =
      HttpClient(running.port()).Post("/v1/completions", R"({"prompt":"ab","max_tokens":9})");
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("engine_error"));
  EXPECT_EQ(response.body.find("/opt"), std::string::npos) << response.body;
}

TEST(FaultTest, AFaultOfARankSaysWhichAndNamesNoFile) {
  const RunningServer running(
      {.fail_after = 2, .failure = EndedRankText({3, 4}, "/opt/models/x: cannot be read")});
  const ClientResponse response =
      HttpClient(running.port()).Post("/v1/completions", R"({"prompt":"ab","max_tokens":9})");
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("rank 3 of 4 has ended, and the server's log says why"));
  EXPECT_EQ(response.body.find("/opt"), std::string::npos) << response.body;
}

}  // namespace
}  // namespace outrider
