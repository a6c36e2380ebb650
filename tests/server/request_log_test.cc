// A line for each request in JSON logs: an object, with the id that the client knows.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "outrider/base/logging.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;

// What is logged while `body` runs with JSON logs, line by line; each must be an object.
template <typename Body>
std::vector<json> LinesOf(const Body& body) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  testing::internal::CaptureStderr();
  InitLogging("info", LogFormat::kJson);
  body();
  FlushLog();
  spdlog::set_default_logger(before);
  std::istringstream text(testing::internal::GetCapturedStderr());
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    EXPECT_TRUE(json::accept(line)) << line;
    if (json::accept(line)) lines.push_back(json::parse(line));
    EXPECT_TRUE(lines.back().is_object()) << line;
    for (const char* member : {"time", "level", "message"}) {
      EXPECT_TRUE(lines.back().at(member).is_string()) << line;
    }
  }
  return lines;
}

std::vector<json> About(const std::vector<json>& lines, const std::string& request_id) {
  std::vector<json> found;
  for (const json& line : lines) {
    if (line.value("request_id", "") == request_id) found.push_back(line);
  }
  return found;
}

void Ask(const RunningServer& running, const std::string& id, const std::string& body) {
  HttpClient(running.port()).Post("/v1/completions", body, "X-Request-Id: " + id + "\r\n");
}

TEST(RequestLogTest, EachRequestIsALineWithItsId) {
  const std::vector<json> lines = LinesOf([] {
    ServerOptions options = TestServerOptions();
    options.log_requests = true;
    options.served_model_names = {"a \"quoted\"\nname"};
    RunningServer running({.fail_after = 5}, options);
    Ask(running, "good-1", R"({"prompt":"ab","max_tokens":3,"n":2})");
    Ask(running, "bad-2", R"({"prompt":7})");
    Ask(running, "broken-3", R"({"prompt":"ab","max_tokens":30})");
  });
  ASSERT_EQ(About(lines, "good-1").size(), 1U);
  const std::string good = About(lines, "good-1")[0]["message"];
  EXPECT_NE(good.find("length, 3 prompt tokens, 6 completion tokens, first token"),
            std::string::npos)
      << good;
  ASSERT_EQ(About(lines, "bad-2").size(), 1U);
  EXPECT_NE(About(lines, "bad-2")[0]["message"].get<std::string>().find("status 400"),
            std::string::npos);
  ASSERT_EQ(About(lines, "broken-3").size(), 1U);
  EXPECT_NE(About(lines, "broken-3")[0]["message"].get<std::string>().find("engine_error"),
            std::string::npos);
  // What is about no request has no id.
  size_t others = 0;
  for (const json& line : lines) others += line.contains("request_id") ? 0 : 1;
  EXPECT_GE(others, 1U);
}

TEST(RequestLogTest, IsOffByDefault) {
  const std::vector<json> lines = LinesOf([] {
    RunningServer running;
    Ask(running, "good-1", R"({"prompt":"ab","max_tokens":3})");
  });
  EXPECT_TRUE(About(lines, "good-1").empty());
}

TEST(RequestLogTest, ADisconnectIsReportedToo) {
  const std::vector<json> lines = LinesOf([] {
    ServerOptions options = TestServerOptions();
    options.log_requests = true;
    RunningServer running({.step_time = std::chrono::milliseconds(1)}, options);
    {
      HttpClient client(running.port());
      client.SendRequest("POST", "/v1/completions",
                         R"({"prompt":"ab","max_tokens":4000,"stream":true})",
                         "X-Request-Id: gone\r\n");
      ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
    }
    ASSERT_TRUE(Eventually([&] { return running.engine.num_aborted() == 1; }));
  });
  ASSERT_EQ(About(lines, "gone").size(), 1U);
  EXPECT_NE(About(lines, "gone")[0]["message"].get<std::string>().find("disconnected"),
            std::string::npos);
}

TEST(RequestLogTest, UnknownFieldsAreIgnoredWithAWarningEach) {
  const std::vector<json> lines = LinesOf([] {
    ServerOptions options = TestServerOptions();
    options.ignore_unknown_fields = true;
    RunningServer running({}, options);
    const ClientResponse response =
        HttpClient(running.port())
            .Post("/v1/completions", R"({"prompt":"ab","max_token":1,"a\nb":{"c":1}})",
                  "X-Request-Id: odd-1\r\n");
    EXPECT_EQ(response.status, 200) << response.body;
  });
  const std::vector<json> warnings = About(lines, "odd-1");
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_EQ(warnings[0]["message"], R"("a\nb": unknown field of a request, ignored)");
  EXPECT_EQ(warnings[1]["message"], R"("max_token": unknown field of a request, ignored)");
  EXPECT_EQ(warnings[0]["level"], "warning");
}

}  // namespace
}  // namespace outrider
