// Names, labels and values of /metrics, as dashboards made for vLLM expect them.
#include "outrider/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tests/server/running_server.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kLabels = R"({engine="0",model_name="m"})";

TEST(ServerMetricsTest, TellsOfTheGpuWhereThereIsOne) {
  EngineCounters counters;
  EXPECT_THAT(ServerMetrics("m", 4096).Render(counters), Not(HasSubstr("outrider:gpu_")));
  counters.gpu = {.total_bytes = 1000,
                  .weight_bytes = 400,
                  .kv_cache_bytes = 300,
                  .work_bytes = 50,
                  .passes_repeated = 70,
                  .passes_launched = 8,
                  .idle_seconds = 0.25};
  const std::string text = ServerMetrics("m", 4096).Render(counters);
  const auto line = [](const std::string& name, const std::string& label,
                       const std::string& value) {
    return "\n" + name + R"({engine="0",model_name="m")" + label + "} " + value + "\n";
  };
  const std::string memory = "outrider:gpu_memory_bytes";
  EXPECT_THAT(text, HasSubstr(line(memory, R"(,use="total")", "1000")));
  EXPECT_THAT(text, HasSubstr(line(memory, R"(,use="weights")", "400")));
  EXPECT_THAT(text, HasSubstr(line(memory, R"(,use="kv_cache")", "300")));
  EXPECT_THAT(text, HasSubstr(line(memory, R"(,use="work_space")", "50")));
  EXPECT_THAT(text, HasSubstr(line("outrider:passes_total", R"(,mode="graph")", "70")));
  EXPECT_THAT(text, HasSubstr(line("outrider:passes_total", R"(,mode="eager")", "8")));
  EXPECT_THAT(text, HasSubstr(line("outrider:gpu_idle_seconds_total", "", "0.25")));
}

TEST(ServerMetricsTest, TellsOfPagesThatLeftTheCacheWhereTheyAreKept) {
  EngineCounters counters;
  EXPECT_THAT(ServerMetrics("m", 4096).Render(counters),
              AllOf(Not(HasSubstr("kv_offload")), Not(HasSubstr("external"))));
  counters.host_cache = {.page_bytes = 10,
                         .pages_held = 5,
                         .most_pages = 7,
                         .pages_saved = 30,
                         .pages_restored = 20,
                         .pages_dropped = 3,
                         .failed = true};
  counters.host_cache_queries = 100;
  counters.host_cache_hits = 64;
  const std::string text = ServerMetrics("m", 4096).Render(counters);
  const auto expect = [&](const std::string& name, const std::string& label,
                          const std::string& value) {
    EXPECT_THAT(text, HasSubstr("\n" + name + R"({engine="0",model_name="m")" + label + "} " +
                                value + "\n"));
  };
  expect("vllm:external_prefix_cache_queries_total", "", "100");
  expect("vllm:external_prefix_cache_hits_total", "", "64");
  expect("vllm:prompt_tokens_by_source_total", R"(,source="external_kv_transfer")", "64");
  expect("outrider:kv_offload_pages_total", R"(,event="saved")", "30");
  expect("outrider:kv_offload_pages_total", R"(,event="restored")", "20");
  expect("outrider:kv_offload_pages_total", R"(,event="dropped")", "3");
  expect("outrider:kv_offload_bytes_total", R"(,event="saved")", "300");
  expect("outrider:kv_offload_bytes_total", R"(,event="restored")", "200");
  expect("outrider:kv_offload_memory_bytes", R"(,use="held")", "50");
  expect("outrider:kv_offload_memory_bytes", R"(,use="limit")", "70");
  expect("outrider:kv_offload_failed", "", "1");
}

TEST(ServerMetricsTest, RendersTheEnginesCounters) {
  EngineCounters counters;
  counters.num_requests_running = 3;
  counters.num_requests_waiting = 2;
  counters.kv_cache_usage = 0.5;
  counters.prompt_tokens = 1000;
  counters.generation_tokens = 20;
  counters.num_preemptions = 4;
  counters.prefix_cache_queries = 50;
  counters.prefix_cache_hits = 40;
  counters.finished_stop = 5;
  counters.finished_length = 6;
  counters.finished_abort = 7;
  counters.speculation = {.num_drafts = 10,
                          .num_draft_tokens = 30,
                          .num_accepted_tokens = 21,
                          .accepted_per_position = {9, 7, 5}};
  counters.num_speculative_tokens = 3;
  counters.kv_block_size = 64;
  counters.num_kv_blocks = 100;
  for (const int64_t size : {1, 9, 16, 20000}) counters.step_tokens.Add(size);
  counters.verify_tokens.Add(8);
  counters.host_seconds = 2.5;
  counters.num_steps = 11;
  counters.draft_seconds = 1.5;
  const std::string text = ServerMetrics("m", 4096).Render(counters);
  const auto line = [](const std::string& name, const std::string& value) {
    return "\n" + name + kLabels + " " + value + "\n";
  };
  EXPECT_THAT(text, HasSubstr(line("vllm:num_requests_running", "3")));
  EXPECT_THAT(text, HasSubstr(line("vllm:num_requests_waiting", "2")));
  EXPECT_THAT(text, HasSubstr(line("vllm:kv_cache_usage_perc", "0.5")));
  EXPECT_THAT(text, HasSubstr(line("vllm:prompt_tokens_total", "1000")));
  EXPECT_THAT(text, HasSubstr(line("vllm:generation_tokens_total", "20")));
  EXPECT_THAT(text, HasSubstr(line("vllm:num_preemptions_total", "4")));
  EXPECT_THAT(text, HasSubstr(line("vllm:prefix_cache_queries_total", "50")));
  EXPECT_THAT(text, HasSubstr(line("vllm:prefix_cache_hits_total", "40")));
  EXPECT_THAT(text, HasSubstr(line("vllm:spec_decode_num_drafts_total", "10")));
  EXPECT_THAT(text, HasSubstr(line("vllm:spec_decode_num_draft_tokens_total", "30")));
  EXPECT_THAT(text, HasSubstr(line("vllm:spec_decode_num_accepted_tokens_total", "21")));
  EXPECT_THAT(text, HasSubstr(line("outrider:spec_decode_current_k", "3")));
  EXPECT_THAT(text, HasSubstr(line("outrider:step_host_seconds_total", "2.5")));
  EXPECT_THAT(text, HasSubstr(R"(vllm:cache_config_info{engine="0",model_name="m",)"
                              R"(block_size="64",num_gpu_blocks="100"} 1)"));
  const std::string source = R"(vllm:prompt_tokens_by_source_total{engine="0",model_name="m",)";
  EXPECT_THAT(text, HasSubstr(source + R"(source="local_compute"} 1000)"));
  EXPECT_THAT(text, HasSubstr(source + R"(source="local_cache_hit"} 40)"));
  const std::string bucket = R"(vllm:iteration_tokens_total_bucket{engine="0",model_name="m",le=)";
  EXPECT_THAT(text, HasSubstr(bucket + R"("1"} 1)"));
  EXPECT_THAT(text, HasSubstr(bucket + R"("8"} 1)"));
  EXPECT_THAT(text, HasSubstr(bucket + R"("16"} 3)"));
  EXPECT_THAT(text, HasSubstr(bucket + R"("16384"} 3)"));
  EXPECT_THAT(text, HasSubstr(bucket + R"("+Inf"} 4)"));
  EXPECT_THAT(text, HasSubstr(line("vllm:iteration_tokens_total_sum", "20026")));
  EXPECT_THAT(text, HasSubstr(line("outrider:verify_batch_tokens_count", "1")));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:num_requests_running gauge\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:generation_tokens_total counter\n"));
  EXPECT_THAT(text, HasSubstr(R"(vllm:request_success_total{engine="0",model_name="m",)"
                              R"(finished_reason="length"} 6)"));
  EXPECT_THAT(text, HasSubstr(R"(vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",)"
                              R"(model_name="m",position="2"} 5)"));
  EXPECT_THAT(text, HasSubstr(R"(outrider:step_seconds_total{engine="0",model_name="m",)"
                              R"(phase="draft"} 1.5)"));
}

TEST(ServerMetricsTest, TellsWhyRequestsWait) {
  ServerMetrics metrics("m", 4096);
  metrics.AddDeferred(1);
  metrics.AddDeferred(1);
  metrics.AddDeferred(-1);
  EngineCounters counters;
  counters.num_requests_waiting = 5;
  counters.finished_error = 2;
  const std::string text = metrics.Render(counters);
  const std::string reason = R"(vllm:num_requests_waiting_by_reason{engine="0",model_name="m",)";
  EXPECT_THAT(text, HasSubstr(reason + R"(reason="capacity"} 5)"));
  EXPECT_THAT(text, HasSubstr(reason + R"(reason="deferred"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(corrupted_requests_total{engine="0",model_name="m"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(finished_reason="error"} 2)"));
}

TEST(ServerMetricsTest, ObservesRequests) {
  ServerMetrics metrics("m", 4096);
  metrics.ObserveRequest(3, 100);
  metrics.ObserveFirstToken(0.5);
  metrics.ObserveLongestChoice(11);
  metrics.ObserveTokenInterval(0.003);
  RequestStats stats;
  stats.prompt_tokens = 30;
  stats.completion_tokens = 11;
  stats.cached_tokens = 20;
  stats.queue_seconds = 0.25;
  stats.first_token_seconds = 0.5;
  stats.total_seconds = 1.5;
  metrics.ObserveFinished(stats);
  const std::string text = metrics.Render({});
  const auto expect = [&](const std::string& name, const std::string& sum) {
    EXPECT_THAT(text, HasSubstr(name + "_count" + kLabels + " 1\n"));
    EXPECT_THAT(text, HasSubstr(name + "_sum" + kLabels + " " + sum + "\n"));
  };
  expect("vllm:time_to_first_token_seconds", "0.5");
  expect("vllm:inter_token_latency_seconds", "0.003");
  expect("vllm:request_time_per_output_token_seconds", "0.1");
  expect("vllm:e2e_request_latency_seconds", "1.5");
  expect("vllm:request_queue_time_seconds", "0.25");
  expect("vllm:request_prefill_time_seconds", "0.25");
  expect("vllm:request_decode_time_seconds", "1");
  expect("vllm:request_inference_time_seconds", "1.25");
  expect("vllm:request_prompt_tokens", "30");
  expect("vllm:request_prefill_kv_computed_tokens", "10");
  expect("vllm:request_generation_tokens", "11");
  expect("vllm:request_params_max_tokens", "100");
  expect("vllm:request_params_n", "3");
  expect("vllm:request_max_num_generation_tokens", "11");
  EXPECT_THAT(text, HasSubstr(R"(vllm:request_prompt_tokens_bucket{engine="0",model_name="m",)"
                              R"(le="2000"} 1)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(le="5000")")));
}

TEST(ServerMetricsTest, AreServedAndCountWhatRan) {
  RunningServer running({.tokens_per_step = 4});
  HttpClient client(running.port());
  ASSERT_EQ(client.Post("/v1/completions", R"({"prompt":"ab","max_tokens":8})").status, 200);
  ClientResponse metrics;
  // The stub counts a step after it has handed the step's output out.
  ASSERT_TRUE(Eventually([&] {
    metrics = client.Get("/metrics");
    return metrics.body.find(R"(finished_reason="length"} 1)") != std::string::npos;
  }));
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics.body,
              HasSubstr(R"(generation_tokens_total{engine="0",model_name="stub"} 8)"));
  EXPECT_THAT(metrics.body, HasSubstr(R"(e2e_request_latency_seconds_count{engine="0",)"
                                      R"(model_name="stub"} 1)"));
  EXPECT_THAT(metrics.body, HasSubstr(R"(inter_token_latency_seconds_count{engine="0",)"
                                      R"(model_name="stub"} 1)"));
}

// A request with several choices is one request, and its first token counts when it comes.
TEST(ServerMetricsTest, CountsRequestsAndTheirFirstTokens) {
  RunningServer running({.step_time = std::chrono::milliseconds(1)});
  HttpClient client(running.port());
  const std::string count = R"(_count{engine="0",model_name="stub"} )";
  const std::string sum = R"(_sum{engine="0",model_name="stub"} )";
  {
    HttpClient streaming(running.port());
    streaming.SendRequest("POST", "/v1/completions",
                          R"({"prompt":["ab","cd"],"n":3,"max_tokens":4000,"stream":true})");
    ASSERT_TRUE(Eventually([&] {
      return client.Get("/metrics").body.find("time_to_first_token_seconds" + count + "6\n") !=
             std::string::npos;
    }));
    const std::string running_now = client.Get("/metrics").body;
    EXPECT_THAT(running_now, HasSubstr("e2e_request_latency_seconds" + count + "0\n"));
    EXPECT_THAT(running_now, HasSubstr("request_params_n" + count + "1\n"));
    EXPECT_THAT(running_now, HasSubstr("request_params_n" + sum + "3\n"));
    EXPECT_THAT(running_now, HasSubstr("request_params_max_tokens" + count + "1\n"));
  }
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }));
  // The longest choice of one request, when all have ended: '.' ends the second prompt's.
  ASSERT_EQ(client.Post("/v1/completions", R"({"prompt":["ab","c."],"max_tokens":8})").status, 200);
  const std::string text = client.Get("/metrics").body;
  EXPECT_THAT(text, HasSubstr("request_max_num_generation_tokens" + count + "1\n"));
  EXPECT_THAT(text, HasSubstr("request_max_num_generation_tokens" + sum + "8\n"));
  EXPECT_THAT(text, HasSubstr("request_generation_tokens" + count + "2\n"));
}

TEST(ServerMetricsTest, CountsWhatTheQueueRefused) {
  RunningServer running({.max_requests = 0});
  HttpClient client(running.port());
  ASSERT_EQ(client.Post("/v1/completions", R"({"prompt":"ab","max_tokens":8})").status, 503);
  EXPECT_THAT(client.Get("/metrics").body,
              HasSubstr(R"(admission_rejections_total{engine="0",model_name="stub"} 1)"));
}

// Every name that a query of docs/grafana.json has is one of /metrics' lines.
TEST(ServerMetricsTest, TheDashboardsNamesAreServed) {
  std::ifstream file(SourceDirectory() / "docs/grafana.json");
  const nlohmann::json board = nlohmann::json::parse(file);
  ServerMetrics metrics("m", 4096);
  EngineCounters counters;
  counters.speculation.AddStep(1, 1);
  const std::string served = "\n" + metrics.Render(counters);
  const std::regex name("(vllm|outrider):[a-z0-9_]+");
  size_t num_names = 0;
  for (const auto& panel : board.at("panels")) {
    for (const auto& target : panel.value("targets", nlohmann::json::array())) {
      const std::string query = target.at("expr");
      for (std::sregex_iterator it(query.begin(), query.end(), name), end; it != end; ++it) {
        ++num_names;
        EXPECT_THAT(served, HasSubstr("\n" + it->str() + "{")) << query;
      }
    }
  }
  EXPECT_GE(num_names, 20U);
}

}  // namespace
}  // namespace outrider
