// The server as the command line starts it: options in, an OpenAI-compatible HTTP API out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/http/http_server.h"
#include "outrider/openai/request.h"
#include "outrider/output/output_format.h"
#include "outrider/server/page_facts.h"
#include "outrider/server/server_companion.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider {

struct ServerOptions {
  HttpServerOptions http;                       // address, limits, how to stop
  std::vector<std::string> served_model_names;  // at least one; the first is the name in answers
  std::string model_root;                       // the checkpoint, for /v1/models
  std::vector<std::string> api_keys;            // none: none is needed; not for /health, the page
  std::optional<int32_t> max_requests_per_key;  // at a time; needs keys
  std::vector<std::string> allowed_hosts;       // besides loopback names; "*": all
  bool share_prefix_cache = false;              // between keys; else each key has its own prefixes
  bool ignore_unknown_fields = false;           // of requests, with a warning each; else refused
  bool log_requests = false;                    // a line for each request that ends
  std::string otlp_traces_endpoint;             // a collector's address; "": no traces
  std::string admin_key;  // for routes that pause and the like; "": they are off
  std::vector<std::string> allowed_weight_dirs;  // below which other weights may be read
  int32_t max_model_len = 0;                     // the engine's
  int32_t max_logprobs = 20;
  int32_t num_speculative_tokens = 0;  // the engine's k
  int32_t tensor_parallel_size = 1;    // its ranks
  bool tells_experts = false;          // it tells the experts of tokens
  /// `metrics.speculative_decoding` in answers to requests that do not say.
  openai::SpeculationMetrics speculation_metrics = openai::SpeculationMetrics::kOff;
  OutputFormat output_format;                  // how the model writes reasoning and tool calls
  PageFacts page_facts;                        // what the web page is told
  openai::SamplingDefaults sampling_defaults;  // of generation_config.json
};

class Server {
 public:
  /// Binds the address. Throws Error when it cannot be had or the options make no sense. `service`
  /// and `encoder` must outlive the server, as must `grammars`, for structured output, if given.
  Server(ServerOptions options, GenerationService& service, const PromptEncoder& encoder,
         GrammarCompiler* grammars = nullptr);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Logs one line and serves until stopped; the calling thread is the I/O thread.
  void Run();

  /// Makes Run return: refuses what is new with 503, lets what runs finish for
  /// `http.shutdown_seconds`, aborts the rest. Thread-safe.
  void Stop();
  /// Stops once the engine has failed, when only answers are left to write: Run returns in a
  /// second, not before, so that who asks for its health gets 503.
  void StopAfterFailure();

  /// What another protocol shares with this one.
  ServerParts parts();
  /// The other protocol drains with this server, and must outlive its run. Before Run.
  void Join(ServerCompanion& companion);

  /// The TCP port that was bound; 0 on a unix socket.
  uint16_t port() const;

  /// Bytes of request bodies that are held now (HttpServer::body_bytes). Thread-safe.
  int64_t body_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
