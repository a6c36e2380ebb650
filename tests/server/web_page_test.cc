// The page's files over HTTP, and the feed of steps that its strip shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::vector<std::filesystem::path> PageSources() {
  const std::filesystem::path directory = SourceDirectory() / "src/outrider/server/page";
  return {std::filesystem::directory_iterator(directory), {}};
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WebPageTest, ServesEveryFileAsItIs) {
  RunningServer running;
  HttpClient client(running.port());
  const auto sources = PageSources();
  EXPECT_GE(sources.size(), 10U);
  for (const std::filesystem::path& source : sources) {
    const std::string path = "/page/" + source.filename().string();
    const ClientResponse plain = client.Get(path);
    EXPECT_EQ(plain.status, 200) << path;
    EXPECT_EQ(plain.body, ReadFile(source)) << path;
    const ClientResponse gzipped = client.Get(path, "Accept-Encoding: br, gzip;q=0.5\r\n");
    EXPECT_EQ(gzipped.headers.at("content-encoding"), "gzip") << path;
    EXPECT_TRUE(gzipped.body.starts_with("\x1F\x8B")) << path;
    EXPECT_LT(gzipped.body.size(), plain.body.size()) << path;
  }
  EXPECT_EQ(client.Get("/").body, client.Get("/page/index.html").body);
  EXPECT_EQ(client.Get("/page/").status, 404);
  EXPECT_EQ(client.Get("/page/../api.cc").status, 404);
}

TEST(WebPageTest, GzipOnlyForThoseWhoTakeIt) {
  RunningServer running;
  HttpClient client(running.port());
  for (const std::string header :
       {"", "Accept-Encoding: identity\r\n", "Accept-Encoding: gzip;q=0, br\r\n",
        "Accept-Encoding: x-gzip\r\n"}) {
    const ClientResponse response = client.Get("/", header);
    EXPECT_FALSE(response.headers.contains("content-encoding")) << header;
    EXPECT_THAT(response.body, HasSubstr("<!doctype html>")) << header;
  }
}

// What keeps text from becoming script: the policy, and no exception to it in any file.
TEST(WebPageTest, NothingInlineAndNothingFromElsewhere) {
  RunningServer running;
  HttpClient client(running.port());
  const std::string policy = client.Get("/").headers.at("content-security-policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'self'; style-src 'self';"));
  EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'; trusted-types 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  for (const std::filesystem::path& source : PageSources()) {
    const std::string text = ReadFile(source);
    for (const std::string word : {"innerHTML", "outerHTML", "insertAdjacent", "document.write",
                                   "eval(", "style=", "onclick=", "https://"}) {
      EXPECT_THAT(text, Not(HasSubstr(word))) << source;
    }
  }
}

TEST(WebPageTest, ThePageNeedsNoKeyAndTheStepsDo) {
  ServerOptions options = TestServerOptions();
  options.api_keys = {"secret"};
  RunningServer running({}, options);
  HttpClient client(running.port());
  EXPECT_EQ(client.Get("/").status, 200);
  EXPECT_EQ(client.Get("/page/main.js").status, 200);
  EXPECT_EQ(client.Get("/debug/steps").status, 401);
}

json NextEvent(HttpClient& client) {
  const std::string data = client.NextEvent();
  return data.empty() ? json() : json::parse(data);
}

TEST(StepFeedTest, TellsWhatEveryStepRan) {
  ServerOptions options = TestServerOptions();
  options.num_speculative_tokens = 3;
  RunningServer running({.tokens_per_step = 4}, options);
  HttpClient watcher(running.port());
  watcher.SendRequest("GET", "/debug/steps");
  const json limits = NextEvent(watcher);
  EXPECT_EQ(limits, (json{{"num_speculative_tokens", 3},
                          {"max_model_len", 4096},
                          {"drafter", nullptr},
                          {"draft_length", nullptr},
                          {"example_questions", json::array()}}));
  EXPECT_EQ(NextEvent(watcher), (json{{"steps", json::array()},
                                      {"skipped", 0},
                                      {"emitted_tokens", 0},
                                      {"running", 0},
                                      {"waiting", 0},
                                      {"kv_cache_usage", 0.25}}));
  HttpClient client(running.port());
  client.Post("/v1/completions", R"({"prompt":[120,121],"max_tokens":10})");
  json steps = json::array();
  int64_t emitted = 0;
  while (emitted < 10) {
    const json event = NextEvent(watcher);
    ASSERT_FALSE(event.is_null()) << steps;
    emitted += event["emitted_tokens"].get<int64_t>();
    for (const json& step : event["steps"]) steps.push_back(step);
  }
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[2]["step"], steps[0]["step"].get<int64_t>() + 2);
  EXPECT_EQ(steps[0]["seconds"], 0.25);
  EXPECT_EQ(steps[0]["decode_rows"], 1);
  EXPECT_EQ(steps[0]["draft_rows"], 3);
  EXPECT_EQ(steps[0]["accepted_drafts"], 3);
  EXPECT_EQ(steps[2]["accepted_drafts"], 1);
  EXPECT_EQ(steps[2]["emitted_tokens"], 2);
}

TEST(StepFeedTest, TheFirstEventSaysWhatDraftsAndWhatToAsk) {
  ServerOptions options = TestServerOptions();
  options.page_facts = {.drafter = "none",
                        .drafter_reason = "the checkpoint has no \"MTP\" layer",
                        .draft_length = "adaptive, 0 to 3",
                        .draft_length_reason = "by the batch size",
                        .example_questions = {"How old is Noa?", "1 + \u00e9?"}};
  RunningServer running({}, options);
  HttpClient watcher(running.port());
  watcher.SendRequest("GET", "/debug/steps");
  const json facts = NextEvent(watcher);
  EXPECT_EQ(facts["drafter"],
            (json{{"value", "none"}, {"reason", "the checkpoint has no \"MTP\" layer"}}));
  EXPECT_EQ(facts["draft_length"],
            (json{{"value", "adaptive, 0 to 3"}, {"reason", "by the batch size"}}));
  EXPECT_EQ(facts["example_questions"], (json{"How old is Noa?", "1 + \u00e9?"}));
}

TEST(StepFeedTest, ListensOnlyWhileSomebodyReads) {
  RunningServer running;
  StepLog& log = running.engine.step_log();
  EXPECT_FALSE(log.has_listeners());
  {
    HttpClient watcher(running.port());
    watcher.SendRequest("GET", "/debug/steps");
    EXPECT_TRUE(watcher.ReceiveUntil("data: "));
    EXPECT_TRUE(log.has_listeners());
  }
  EXPECT_TRUE(Eventually([&] { return !log.has_listeners(); }));
}

// An open feed must not hold up the end of the server.
TEST(StepFeedTest, EndsWhenTheServerStops) {
  RunningServer running;
  HttpClient watcher(running.port());
  watcher.SendRequest("GET", "/debug/steps");
  EXPECT_TRUE(watcher.ReceiveUntil("data: "));
  const auto start = std::chrono::steady_clock::now();
  running.server->Stop();
  running.Join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
}  // namespace outrider
