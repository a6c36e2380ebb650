// What routers ask a server: its load, its limits, its model. Under SGLang's names.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "outrider/engine/generation_service.h"

namespace outrider {

struct ServerFacts {
  std::string model_name;  // the first served name
  std::string model_root;  // the checkpoint, as it was given
  int32_t max_model_len = 0;
  int32_t tensor_parallel_size = 1;
  bool tells_experts = false;
};

/// Tokens per second since it was asked last.
class Throughput {
 public:
  double SinceLast(int64_t tokens, std::chrono::steady_clock::time_point now);

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  int64_t tokens_ = 0;
};

/// /v1/loads: one rank, and the sums over all ranks, which are its own.
std::string LoadsJson(const EngineCounters& counters, double tokens_per_second);

/// /get_load, as SGLang had it before: an array with the only rank.
std::string OldLoadJson(const EngineCounters& counters);

/// /server_info.
std::string ServerInfoJson(const ServerFacts& facts, const EngineCounters& counters);

/// /model_info.
std::string ModelInfoJson(const ServerFacts& facts, const EngineCounters& counters);

/// SGLang's name for weights that nobody named: "default".
std::string VersionOrDefault(const std::string& version);

}  // namespace outrider
