// A server whose conversations return after their pages have left the KV cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/server/model_server.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

double MetricOf(const ModelServer& server, const std::string& name, const std::string& label = "") {
  const std::string text = HttpClient(server.port()).Get("/metrics").body;
  std::smatch match;
  if (!std::regex_search(text, match,
                         std::regex("\n" + name + "\\{[^}]*" + label + "\\} (.*)\n"))) {
    ADD_FAILURE() << name << " is not in /metrics";
    return -1;
  }
  return std::stod(match[1]);
}

TEST(KvOffloadTest, AReturningConversationIsNotComputedAgain) {
  const TemporaryDirectory directory;
  TestEngineOptions options{.k = 3,
                            .block_size = 8,
                            .num_blocks = 60,
                            .max_num_batched_tokens = 64,
                            .max_model_len = 400};
  options.host_pages = 1000;
  options.host_directory = directory.path();
  const ModelServer server(options);
  const auto ask = [&](int conversation) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 240; ++i) prompt.push_back(6 + (conversation * 331 + i * 17) % 1500);
    const ClientResponse response = server.Post({{"prompt", prompt},
                                                 {"max_tokens", 10},
                                                 {"temperature", 0},
                                                 {"logprobs", 2},
                                                 {"ignore_eos", true}},
                                                "/v1/completions");
    EXPECT_EQ(response.status, 200) << response.body;
    return nlohmann::json::parse(response.body);
  };
  const nlohmann::json first = ask(0);
  EXPECT_EQ(MetricOf(server, "outrider:kv_offload_pages_total", "event=\"saved\""), 0);
  for (int other = 1; other < 4; ++other) ask(other);
  // Counters are those of the last step that has ended; an answer may come before its step's end.
  EXPECT_TRUE(Eventually([&] {
    return MetricOf(server, "outrider:kv_offload_pages_total", "event=\"saved\"") >= 29;
  }));
  const nlohmann::json again = ask(0);
  EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
  EXPECT_EQ(again["choices"][0]["logprobs"], first["choices"][0]["logprobs"]);
  // All whole blocks that leave the drafter what it looks ahead to.
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 232);
  EXPECT_TRUE(
      Eventually([&] { return MetricOf(server, "vllm:external_prefix_cache_hits_total") == 232; }));
  EXPECT_EQ(MetricOf(server, "outrider:kv_offload_pages_total", "event=\"restored\""), 29);
  EXPECT_GT(MetricOf(server, "outrider:kv_offload_memory_bytes", "use=\"held\""), 0);
  EXPECT_EQ(MetricOf(server, "outrider:kv_offload_failed"), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace outrider
