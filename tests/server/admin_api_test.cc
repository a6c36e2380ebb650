// Routes that change what the server does: who may use them, and what they ask of the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kAdminPaths = {
    "/pause",      "/pause_generation", "/resume", "/continue_generation", "/reset_prefix_cache",
    "/flush_cache"};

ServerOptions AdminOptions() {
  ServerOptions options = TestServerOptions();
  options.admin_key = "admin";
  options.api_keys = {"user"};
  return options;
}

ClientResponse PostAdmin(RunningServer& running, const std::string& path,
                         const std::string& key = "admin", const std::string& body = "") {
  return HttpClient(running.port()).Post(path, body, "Authorization: Bearer " + key + "\r\n");
}

TEST(AdminApiTest, IsOffWithoutAKeyOfItsOwn) {
  RunningServer running;
  for (const std::string& path : kAdminPaths) {
    const ClientResponse response = PostAdmin(running, path, "none");
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_THAT(response.body, HasSubstr("--enable-admin-api"));
  }
  EXPECT_THAT(running.engine.controls(), ElementsAre());
}

TEST(AdminApiTest, TakesItsOwnKeyOnly) {
  RunningServer running({}, AdminOptions());
  for (const std::string& path : kAdminPaths) {
    EXPECT_EQ(PostAdmin(running, path, "user").status, 401) << path;
    EXPECT_EQ(HttpClient(running.port()).Post(path, "").status, 401) << path;
    EXPECT_EQ(PostAdmin(running, path).status, 200) << path;
  }
  // Which opens no other route.
  EXPECT_EQ(PostAdmin(running, "/v1/completions", "admin", R"({"prompt":"a"})").status, 401);
}

TEST(AdminApiTest, PausesInEachWay) {
  RunningServer running({}, AdminOptions());
  EXPECT_EQ(PostAdmin(running, "/pause").body, R"({"status":"paused"})");
  PostAdmin(running, "/pause?mode=keep&clear_cache=true");
  PostAdmin(running, "/pause?mode=wait&clear_cache=false");
  PostAdmin(running, "/pause?wait_for_inflight_requests=true");
  PostAdmin(running, "/pause_generation", "admin", R"({"mode":"retract"})");
  PostAdmin(running, "/pause_generation");
  PostAdmin(running, "/flush_cache");
  EXPECT_THAT(running.engine.controls(), ElementsAre("abort prefixes", "keep prefixes", "wait",
                                                     "wait prefixes", "keep", "abort", "prefixes"));
}

TEST(AdminApiTest, TellsThatItIsPaused) {
  RunningServer running({}, AdminOptions());
  const auto paused = [&] {
    return HttpClient(running.port()).Get("/is_paused", "Authorization: Bearer user\r\n").body;
  };
  EXPECT_EQ(paused(), R"({"is_paused":false})");
  PostAdmin(running, "/pause?mode=keep");
  EXPECT_EQ(paused(), R"({"is_paused":true})");
  EXPECT_EQ(PostAdmin(running, "/resume").body, R"({"status":"resumed"})");
  EXPECT_EQ(paused(), R"({"is_paused":false})");
}

TEST(AdminApiTest, RefusesWhatItDoesNotKnow) {
  RunningServer running({}, AdminOptions());
  EXPECT_THAT(PostAdmin(running, "/pause?mode=nap").body, HasSubstr("must be abort, wait or keep"));
  EXPECT_THAT(PostAdmin(running, "/pause?mod=keep").body, HasSubstr("mod: unknown"));
  EXPECT_THAT(PostAdmin(running, "/pause?clear_cache=maybe").body, HasSubstr("true or false"));
  EXPECT_THAT(PostAdmin(running, "/pause_generation", "admin", R"({"mode":"keep"})").body,
              HasSubstr("in_place"));
  EXPECT_THAT(PostAdmin(running, "/pause_generation", "admin", "{").body, HasSubstr("JSON"));
  EXPECT_THAT(running.engine.controls(), ElementsAre());
}

}  // namespace
}  // namespace outrider
