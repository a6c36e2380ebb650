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

const std::vector<std::string> kAdminPaths = {"/pause",
                                              "/pause_generation",
                                              "/resume",
                                              "/continue_generation",
                                              "/reset_prefix_cache",
                                              "/flush_cache",
                                              "/sleep",
                                              "/wake_up",
                                              "/release_memory_occupation",
                                              "/resume_memory_occupation"};

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

// SGLang's clients send either.
TEST(AdminApiTest, FlushesTheCacheForGetToo) {
  RunningServer running({}, AdminOptions());
  HttpClient client(running.port());
  const std::string key = "Authorization: Bearer admin\r\n";
  EXPECT_EQ(client.Get("/flush_cache", key).status, 200);
  EXPECT_EQ(client.Get("/flush_cache").status, 401);
  EXPECT_EQ(client.Get("/reset_prefix_cache", key).status, 405);
  EXPECT_THAT(running.engine.controls(), ElementsAre("prefixes"));
  const auto allowed = [&](const char* path) {
    client.SendRequest("PUT", path, "", key);
    return client.Receive().headers["allow"];
  };
  EXPECT_EQ(allowed("/flush_cache"), "GET, POST, OPTIONS");
  EXPECT_EQ(allowed("/sleep"), "POST, OPTIONS");
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

ServerOptions WeightOptions() {
  ServerOptions options = AdminOptions();
  options.allowed_weight_dirs = {"/weights", "/other/weights"};
  return options;
}

TEST(AdminApiTest, UpdatesWeightsFromAllowedFolders) {
  RunningServer running({}, WeightOptions());
  const auto update = [&](const std::string& path, const std::string& body) {
    return PostAdmin(running, path, "admin", body);
  };
  const ClientResponse done =
      update("/update_weights_from_disk",
             R"({"model_path":"/weights/a/step-2","draft_model_path":"/other/weights/d",
                 "weight_version":"two","abort_all_requests":true,"flush_cache":true})");
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(json::parse(done.body)["success"], true);
  EXPECT_EQ(json::parse(done.body)["weight_version"], "two");
  HttpClient client(running.port());
  EXPECT_EQ(client.Get("/weight_version", "Authorization: Bearer user\r\n").body,
            R"({"weight_version":"two"})");
  EXPECT_EQ(json::parse(
                client.Get("/model_info", "Authorization: Bearer user\r\n").body)["weight_version"],
            "two");
  EXPECT_EQ(update("/update_weights", R"({"update_info":{"weights_path":"/weights/b"}})").status,
            200);
  EXPECT_THAT(running.engine.controls(), ElementsAre("weights step-2 d two abort", "weights b  "));
  // A folder that is no good.
  const ClientResponse bad = update("/update_weights", R"({"model_path":"/weights/bad"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(json::parse(bad.body)["success"], false);
  EXPECT_EQ(json::parse(bad.body)["message"], "bad: holds no weights");
  EXPECT_EQ(json::parse(bad.body)["error"]["message"], "bad: holds no weights");
}

TEST(AdminApiTest, ReadsWeightsBelowAllowedFoldersOnly) {
  RunningServer running({}, WeightOptions());
  for (const char* path : {"/etc", "/weights/../etc", "/weights-of-others", "/other", "weights", "",
                           "/", "/weights/a/../../etc"}) {
    const ClientResponse response =
        PostAdmin(running, "/update_weights", "admin", json{{"model_path", path}}.dump());
    EXPECT_EQ(response.status, 400) << path;
    EXPECT_THAT(response.body, HasSubstr("--allowed-weight-dirs")) << path;
  }
  const ClientResponse drafter =
      PostAdmin(running, "/update_weights", "admin",
                R"({"model_path":"/weights/a","draft_model_path":"/etc"})");
  EXPECT_THAT(drafter.body, HasSubstr("draft_model_path: weights are read from folders below"));
  EXPECT_THAT(PostAdmin(running, "/update_weights", "admin", "{}").body,
              HasSubstr("model_path: is missing"));
  EXPECT_THAT(PostAdmin(running, "/update_weights", "admin",
                        R"({"model_path":"/weights/a","lora_path":"b"})")
                  .body,
              HasSubstr("lora_path"));
  RunningServer none({}, AdminOptions());
  EXPECT_THAT(PostAdmin(none, "/update_weights", "admin", R"({"model_path":"/weights/a"})").body,
              HasSubstr("--allowed-weight-dirs"));
  EXPECT_THAT(running.engine.controls(), ElementsAre());
}

TEST(AdminApiTest, SleepsAndWakesByTags) {
  RunningServer running({}, AdminOptions());
  const auto sleeping = [&] {
    return HttpClient(running.port()).Get("/is_sleeping", "Authorization: Bearer user\r\n").body;
  };
  EXPECT_EQ(sleeping(), R"({"is_sleeping":false})");
  EXPECT_EQ(PostAdmin(running, "/sleep?level=1&mode=keep").body, R"({"status":"asleep"})");
  EXPECT_EQ(sleeping(), R"({"is_sleeping":true})");
  PostAdmin(running, "/wake_up?tags=weights");
  EXPECT_EQ(sleeping(), R"({"is_sleeping":true})");
  EXPECT_EQ(PostAdmin(running, "/wake_up?tags=kv_cache").body, R"({"status":"awake"})");
  EXPECT_EQ(sleeping(), R"({"is_sleeping":false})");
  PostAdmin(running, "/release_memory_occupation", "admin", R"({"tags":["kv_cache"]})");
  PostAdmin(running, "/resume_memory_occupation");
  EXPECT_THAT(running.engine.controls(),
              ElementsAre("sleep weights kv_cache 2", "wake weights", "wake kv_cache",
                          "sleep kv_cache 2", "wake weights kv_cache"));
  EXPECT_THAT(PostAdmin(running, "/sleep?level=0").body, HasSubstr("/pause"));
  EXPECT_THAT(PostAdmin(running, "/sleep?tags=dreams").body, HasSubstr("weights or kv_cache"));
  EXPECT_THAT(PostAdmin(running, "/wake_up?level=1").body, HasSubstr("level: unknown"));
}

}  // namespace
}  // namespace outrider
