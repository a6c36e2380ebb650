// What a command line asks for, after flags, environment, configuration file and defaults have been
// laid over each other. The structs' initialisers are the defaults that the documentation shows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "outrider/base/logging.h"
#include "outrider/engine/engine_options.h"
#include "outrider/grammar/grammar_spec.h"
#include "outrider/http/cors.h"
#include "outrider/openai/request.h"
#include "outrider/options/batch_items.h"
#include "outrider/sampling/sampling_params.h"

namespace outrider {

/// What a user can ask for on the command line, in the order of the help text.
enum class Command : uint8_t {
  kServe,
  kGenerate,
  kChat,
  kBenchLatency,
  kBenchThroughput,
  kBenchServe,
  kBenchKernels,
  kExplain
};

inline constexpr std::array kAllCommands = {
    Command::kServe,           Command::kGenerate,   Command::kChat,         Command::kBenchLatency,
    Command::kBenchThroughput, Command::kBenchServe, Command::kBenchKernels, Command::kExplain};

/// "serve", "generate", "bench latency", ...
std::string CommandName(Command command);

/// `outrider serve`.
struct ServeSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                          // 0: any free port
  std::string uds;                               // a Unix socket's path instead of host and port
  std::optional<uint16_t> grpc_port;             // unset: no gRPC; 0: any free port
  std::vector<std::string> api_keys;             // none: none is needed
  std::string api_key_file;                      // with more of them, one a line
  std::optional<int32_t> max_num_reqs_per_key;   // at a time; unset: no limit
  bool share_prefix_cache = false;               // between keys
  std::string admin_key;                         // empty: routes that pause and the like are off
  std::vector<std::string> allowed_weight_dirs;  // below which other weights may be read
  std::string kv_events_config;                  // JSON; empty: no events
  std::vector<std::string> allowed_hosts;        // that requests may be addressed to
  CorsOptions cors;                              // of web pages of other origins
  std::string ssl_certfile;                      // empty: plain HTTP
  std::string ssl_keyfile;                       // empty: in ssl_certfile
  std::string ssl_ca_certs;                      // empty: clients need no certificate
  bool log_requests = false;
  bool ignore_unknown_fields = false;
  std::string otlp_traces_endpoint;             // empty: no traces
  std::vector<std::string> served_model_names;  // empty: the model path as given
  double shutdown_timeout = 25;                 // seconds that running requests get to finish
  double stats_interval = 10;                   // seconds between statistics lines, 0: none
  openai::SpeculationMetrics per_request_spec_decode_metrics = openai::SpeculationMetrics::kOff;
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
};

/// `outrider generate`, of which exactly one of the three prompts is set, and `outrider chat`,
/// which has none of them.
struct GenerateSettings {
  std::optional<std::string> prompt;  // "-": standard input
  std::optional<std::string> chat;    // "-": standard input
  std::vector<int32_t> prompt_token_ids;
  std::optional<std::string> system;  // only with a conversation

  // Unset: the model's generation_config.json, else the values of SamplingParams.
  std::optional<double> temperature;
  std::optional<int32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  uint64_t seed = 0;
  std::optional<int32_t> max_tokens;  // unset: to the end of the context, at most 512
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> logprobs;
  std::vector<std::string> bad_words;
  std::optional<GrammarSpec> grammar;
  std::string grammar_option;  // that asked for it, for errors
  SamplingParams sampling;     // what is not named above and has a flag
  bool json = false;
};

/// `outrider chat`, beside GenerateSettings. With a url, engine.model is the name to ask for.
struct ChatSettings {
  std::string url;      // of a server that runs; "": the model is loaded
  std::string api_key;  // the server's; "": none
};

/// `outrider bench`.
struct BenchSettings {
  std::vector<int32_t> spec_tokens;  // rows of the table; empty: 0 up to the model's default
  int32_t input_len = 128;
  int32_t output_len = 128;
  std::optional<int32_t> num_prompts;  // unset: 8 for latency, 64 otherwise, or the whole file
  std::optional<int32_t> batch_size;   // unset: 1 for latency, all prompts otherwise
  std::string prompts_file;            // JSON lines; empty: random token ids
  double temperature = 0;
  bool ignore_eos = false;  // random prompts always run to output_len
  std::string json;         // where the figures go as JSON: a path, "-" or nowhere
};

/// `outrider explain`.
struct ExplainSettings {
  std::vector<BatchItem> batch;  // empty: explain the model
  bool json = false;
};

/// Everything that a command line can set.
struct Settings {
  EngineOptions engine;
  ServeSettings serve;
  GenerateSettings generate;
  ChatSettings chat;
  BenchSettings bench;
  ExplainSettings explain;
  std::string log_level;  // empty: "info" for serve, "warning" for the others
  LogFormat log_format = LogFormat::kText;
};

}  // namespace outrider
