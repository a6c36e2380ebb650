#include "outrider/server/server_facts.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/base/version.h"

namespace outrider {

double Throughput::SinceLast(int64_t tokens, std::chrono::steady_clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  const int64_t made = tokens - std::exchange(tokens_, tokens);
  return seconds > 0 ? static_cast<double>(made) / seconds : 0;
}

namespace {

int64_t TotalTokens(const EngineCounters& counters) {
  return int64_t{counters.num_kv_blocks} * counters.kv_block_size;
}

int64_t UsedTokens(const EngineCounters& counters) {
  return std::llround(counters.kv_cache_usage * static_cast<double>(TotalTokens(counters)));
}

}  // namespace

std::string OldLoadJson(const EngineCounters& counters) {
  return fmt::format(R"([{{"dp_rank":0,"num_reqs":{},"num_waiting_reqs":{},"num_tokens":{}}}])",
                     counters.num_requests_running + counters.num_requests_waiting,
                     counters.num_requests_waiting, UsedTokens(counters));
}

std::string LoadsJson(const EngineCounters& counters, double tokens_per_second) {
  const int64_t total_tokens = TotalTokens(counters);
  const int64_t used_tokens = UsedTokens(counters);
  const double hit_rate = counters.prefix_cache_queries == 0
                              ? 0
                              : static_cast<double>(counters.prefix_cache_hits) /
                                    static_cast<double>(counters.prefix_cache_queries);
  const double utilization = counters.max_num_seqs == 0
                                 ? 0
                                 : static_cast<double>(counters.num_requests_running) /
                                       static_cast<double>(counters.max_num_seqs);
  return fmt::format(
      R"({{"timestamp":"{:%Y-%m-%dT%H:%M:%S}Z","version":{},"dp_rank_count":1,"loads":[)"
      R"({{"dp_rank":0,"num_running_reqs":{},"num_waiting_reqs":{},"num_used_tokens":{},)"
      R"("max_total_num_tokens":{},"token_usage":{:.6g},"gen_throughput":{:.6g},)"
      R"("cache_hit_rate":{:.6g},"utilization":{:.6g},"max_running_requests":{}}}],)"
      R"("aggregate":{{"total_running_reqs":{},"total_waiting_reqs":{},"total_reqs":{},)"
      R"("avg_token_usage":{:.6g},"avg_throughput":{:.6g},"avg_utilization":{:.6g}}}}})",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      JsonString(kVersion), counters.num_requests_running, counters.num_requests_waiting,
      used_tokens, total_tokens, counters.kv_cache_usage, tokens_per_second, hit_rate, utilization,
      counters.max_num_seqs, counters.num_requests_running, counters.num_requests_waiting,
      counters.num_requests_running + counters.num_requests_waiting, counters.kv_cache_usage,
      tokens_per_second, utilization);
}

std::string ServerInfoJson(const ServerFacts& facts, const EngineCounters& counters) {
  return fmt::format(
      R"({{"version":{},"model_path":{},"served_model_name":{},"context_length":{},)"
      R"("max_running_requests":{},"max_total_num_tokens":{},"page_size":{},"tp_size":{},)"
      R"("dp_size":1,"enable_return_routed_experts":{},"speculative_num_draft_tokens":{}}})",
      JsonString(kVersion), JsonString(facts.model_root), JsonString(facts.model_name),
      facts.max_model_len, counters.max_num_seqs, TotalTokens(counters), counters.kv_block_size,
      facts.tensor_parallel_size, facts.tells_experts, counters.max_speculative_tokens);
}

std::string VersionOrDefault(const std::string& version) {
  return version.empty() ? "default" : version;
}

std::string ModelInfoJson(const ServerFacts& facts, const EngineCounters& counters) {
  return fmt::format(
      R"({{"model_path":{},"tokenizer_path":{},"served_model_name":{},"is_generation":true,)"
      R"("max_model_len":{},"weight_version":{},"has_image_understanding":false,"has_audio_understanding":false}})",
      JsonString(facts.model_root), JsonString(facts.model_root), JsonString(facts.model_name),
      facts.max_model_len, JsonString(VersionOrDefault(counters.weight_version)));
}

}  // namespace outrider
