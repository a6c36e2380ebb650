#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/options/option_rows.h"
#include "outrider/output/output_format.h"
#include "outrider/telemetry/trace_exporter.h"

namespace outrider {

namespace {

uint16_t ParsePort(const OptionValue& value) {
  // Kubernetes gives every pod variables for each service: for one called "outrider",
  // OUTRIDER_PORT=tcp://ADDRESS:PORT.
  if (Text(value).find("://") != std::string::npos) {
    throw InvalidArgument(
        "{}: '{}' is a service address, not a port; Kubernetes sets it for a service called "
        "outrider: set enableServiceLinks to false or rename the service",
        value.where, Text(value));
  }
  return static_cast<uint16_t>(Int32(value, 0, 65535));
}

std::string ChoiceOf(const OptionValue& value, const std::vector<std::string>& choices) {
  return choices[ParseChoice(value.where, Text(value), choices)];
}

const std::vector<std::string>& NonEmptyTexts(const OptionValue& value) {
  for (const std::string& text : value.texts) {
    if (text.empty()) throw InvalidArgument("{}: must not be empty", value.where);
  }
  return value.texts;
}

const std::string& NonEmptyText(const OptionValue& value) { return NonEmptyTexts(value).front(); }

// A flag's value may be a list in JSON, which is how vLLM takes these.
std::vector<std::string> TextsOf(const OptionValue& value) {
  const bool is_list = value.texts.size() == 1 && Text(value).starts_with('[');
  if (!is_list) return value.texts;
  const auto list = nlohmann::json::parse(Text(value), nullptr, false);
  const bool good = list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& entry) {
                      return entry.is_string();
                    });
  if (!good) throw InvalidArgument("{}: '{}' is no list of strings", value.where, Text(value));
  return list.get<std::vector<std::string>>();
}

// As browsers write it: a scheme and a host, perhaps a port, nothing after that.
void RequireOrigin(const std::string& where, const std::string& origin) {
  if (origin == "*") return;
  const size_t scheme = origin.find("://");
  const bool good = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                    origin.find_first_not_of("abcdefghijklmnopqrstuvwxyz+-.") == scheme &&
                    origin.find_first_of("/ ,\"'", scheme + 3) == std::string::npos;
  if (good) return;
  throw InvalidArgument(
      "{}: '{}' is no origin: give it as https://HOST or https://HOST:PORT, without a path, or * "
      "for every origin",
      where, origin);
}

// A method or the name of a header. HTTP would take some more characters, which nobody uses.
void RequireHttpName(const std::string& where, const std::string& text, const char* what) {
  const bool good = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (good || text == "*") return;
  throw InvalidArgument("{}: '{}' is no {}; * stands for all", where, text, what);
}

}  // namespace

std::vector<OptionRow> ServeOptionRows() {
  const CommandSet serve = {Command::kServe};
  const OptionKind one = OptionKind::kValue;
  const OptionKind many = OptionKind::kRepeated;
  const ServeSettings defaults;
  const EngineOptions engine_defaults;
  return {
      {"host", one, "Server", "ADDRESS", defaults.host,
       "Address to listen on; 0.0.0.0 for every interface", serve,
       [](Settings& s, const OptionValue& v) { s.serve.host = NonEmptyText(v); }},
      {"port", one, "Server", "N", fmt::to_string(defaults.port),
       "Port to listen on; 0 takes a free one", serve,
       [](Settings& s, const OptionValue& v) { s.serve.port = ParsePort(v); }},
      {"uds", one, "Server", "PATH", "", "Unix socket to listen on instead of host and port", serve,
       [](Settings& s, const OptionValue& v) { s.serve.uds = NonEmptyText(v); }},
      {"grpc-port", one, "Server", "N", "off",
       "Serve vLLM's gRPC services, too, on this port of the host; 0 takes a free one", serve,
       [](Settings& s, const OptionValue& v) { s.serve.grpc_port = ParsePort(v); }},
      {"api-key", many, "Server", "KEY", "",
       "Keys of which requests must bring one as a bearer token (all but /health and the web page)",
       serve, [](Settings& s, const OptionValue& v) { s.serve.api_keys = NonEmptyTexts(v); },
       /*secret=*/true},
      {"api-key-file", one, "Server", "FILE", "none",
       "File of more keys, one a line: unlike arguments it is not shown to every user of the "
       "machine",
       serve, [](Settings& s, const OptionValue& v) { s.serve.api_key_file = NonEmptyText(v); }},
      {"enable-admin-api", one, "Server", "KEY", "off",
       "Routes that pause, resume, forget cached prefixes, update weights and give memory back, "
       "for "
       "those who bring this key, which opens no other route",
       serve, [](Settings& s, const OptionValue& v) { s.serve.admin_key = NonEmptyText(v); },
       /*secret=*/true},
      {"allowed-weight-dirs", many, "Server", "DIR", "none",
       "Folders below which /update_weights may read weights", serve,
       [](Settings& s, const OptionValue& v) { s.serve.allowed_weight_dirs = NonEmptyTexts(v); }},
      {"weight-version", one, "Server", "NAME", "none",
       "A name for the weights that the server starts with, told in answers", serve,
       [](Settings& s, const OptionValue& v) { s.engine.weight_version = NonEmptyText(v); }},
      {"enable-return-routed-experts", OptionKind::kSwitch, "Server", "", "",
       "Answers tell the experts of every token in every layer (routed_experts), for trainers that "
       "replay them",
       serve,
       [](Settings& s, const OptionValue& v) {
         s.engine.enable_return_routed_experts = Switch(v);
       }},
      {"kv-events-config", one, "Server", "JSON", "none",
       "Publish what becomes of cached blocks over ZeroMQ, as vLLM does, like "
       "'{\"endpoint\": \"tcp://*:5557\", \"topic\": \"kv@POD@MODEL\"}'",
       serve,
       [](Settings& s, const OptionValue& v) { s.serve.kv_events_config = NonEmptyText(v); }},
      {"share-prefix-cache", OptionKind::kSwitch, "Server", "", "",
       "Requests of all keys share cached prefixes; without it each key has its own, so that "
       "counts "
       "of cached tokens tell nothing of what others sent",
       serve, [](Settings& s, const OptionValue& v) { s.serve.share_prefix_cache = Switch(v); }},
      {"max-num-reqs-per-key", one, "Server", "N", "no limit",
       "Most requests that a key may have at a time; more are refused with status 429", serve,
       [](Settings& s, const OptionValue& v) { s.serve.max_num_reqs_per_key = Int32(v, 1); }},
      {"allowed-hosts", many, "Server", "NAME", "localhost on a loopback address without keys",
       "Host names besides localhost that requests may be addressed to (Host field); * for all",
       serve, [](Settings& s, const OptionValue& v) { s.serve.allowed_hosts = NonEmptyTexts(v); }},
      {"allowed-origins", many, "Server", "ORIGIN", "none",
       "Origins whose web pages may use the API, like https://example.org; * for every origin",
       serve,
       [](Settings& s, const OptionValue& v) {
         s.serve.cors.allowed_origins = TextsOf(v);
         for (const auto& origin : s.serve.cors.allowed_origins) RequireOrigin(v.where, origin);
       }},
      {"allowed-methods", many, "Server", "METHOD", "*",
       "Methods that pages of allowed origins may use; * for all that routes take", serve,
       [](Settings& s, const OptionValue& v) {
         s.serve.cors.allowed_methods = TextsOf(v);
         for (const auto& name : s.serve.cors.allowed_methods) {
           RequireHttpName(v.where, name, "method");
         }
       }},
      {"allowed-headers", many, "Server", "NAME", "*",
       "Request headers that pages of allowed origins may send; * for all", serve,
       [](Settings& s, const OptionValue& v) {
         s.serve.cors.allowed_headers = TextsOf(v);
         for (const auto& name : s.serve.cors.allowed_headers) {
           RequireHttpName(v.where, name, "name of a header");
         }
       }},
      {"allow-credentials", OptionKind::kSwitch, "Server", "", "",
       "Pages of allowed origins may send credentials, such as client certificates; needs origins "
       "by name",
       serve,
       [](Settings& s, const OptionValue& v) { s.serve.cors.allow_credentials = Switch(v); }},
      {"ssl-certfile", one, "Server", "FILE", "none",
       "Certificate in PEM format: serve HTTPS instead of HTTP", serve,
       [](Settings& s, const OptionValue& v) { s.serve.ssl_certfile = NonEmptyText(v); }},
      {"ssl-keyfile", one, "Server", "FILE", "in the certificate's file",
       "The certificate's private key in PEM format", serve,
       [](Settings& s, const OptionValue& v) { s.serve.ssl_keyfile = NonEmptyText(v); }},
      {"ssl-ca-certs", one, "Server", "FILE", "none",
       "Certificates in PEM format: clients must show one that was issued by one of these", serve,
       [](Settings& s, const OptionValue& v) { s.serve.ssl_ca_certs = NonEmptyText(v); }},
      {"served-model-name", many, "Server", "NAME", "the model path as given",
       "Name of the model in the API; with several, the first is used in responses", serve,
       [](Settings& s, const OptionValue& v) { s.serve.served_model_names = NonEmptyTexts(v); }},
      {"shutdown-timeout", one, "Server", "SECONDS", fmt::to_string(defaults.shutdown_timeout),
       "Time that running requests get to finish after SIGINT, SIGTERM or SIGHUP; a second signal "
       "ends at once",
       serve,
       [](Settings& s, const OptionValue& v) { s.serve.shutdown_timeout = Number(v, 0, 86400); }},
      {"max-num-queued-reqs", one, "Server", "N", "no limit",
       "Most requests that wait; more are refused with status 503", serve,
       [](Settings& s, const OptionValue& v) { s.engine.max_num_queued_reqs = Int32(v, 1); }},
      {"max-logprobs", one, "Server", "N", fmt::to_string(engine_defaults.max_logprobs),
       "Most log-probabilities per token that a request may ask for", serve,
       [](Settings& s, const OptionValue& v) { s.engine.max_logprobs = Int32(v, 0, 100000); }},
      {"ignore-unknown-fields", OptionKind::kSwitch, "Server", "", "",
       "Take requests with fields that this server does not know or does not support, with a "
       "warning for each; without it they are refused",
       serve, [](Settings& s, const OptionValue& v) { s.serve.ignore_unknown_fields = Switch(v); }},
      {"per-request-spec-decode-metrics", one, "Server", "off|summary|detailed", "off",
       "What responses tell about their own speculation, in metrics.speculative_decoding; detailed "
       "adds every step's drafts",
       serve,
       [](Settings& s, const OptionValue& v) {
         static const std::array<std::string, 3> kNames = {"off", "summary", "detailed"};
         s.serve.per_request_spec_decode_metrics =
             static_cast<openai::SpeculationMetrics>(ParseChoice(v.where, Text(v), kNames));
       }},
      {"tool-call-parser", one, "Server", fmt::to_string(fmt::join(ToolParserNames(), "|")),
       defaults.tool_call_parser,
       "How the model writes tool calls; auto: by model type and chat template", serve,
       [](Settings& s, const OptionValue& v) {
         s.serve.tool_call_parser = ChoiceOf(v, ToolParserNames());
       }},
      {"reasoning-parser", one, "Server", fmt::to_string(fmt::join(ReasoningParserNames(), "|")),
       defaults.reasoning_parser, "How the model writes its reasoning; auto: by model type", serve,
       [](Settings& s, const OptionValue& v) {
         s.serve.reasoning_parser = ChoiceOf(v, ReasoningParserNames());
       }},
      {"enable-log-requests", OptionKind::kSwitch, "Logging", "", "",
       "A line for each request when it ends: its id, tokens, times", serve,
       [](Settings& s, const OptionValue& v) { s.serve.log_requests = Switch(v); }},
      {"otlp-traces-endpoint", one, "Logging", "URL", "none",
       "Where a span for each request goes, as OTLP over HTTP in JSON, like http://localhost:4318 "
       "or https://HOST; without a path, /v1/traces",
       serve,
       [](Settings& s, const OptionValue& v) {
         ParseTracesEndpoint(v.where, Text(v));
         s.serve.otlp_traces_endpoint = Text(v);
       }},
      {"stats-interval", one, "Logging", "SECONDS", fmt::to_string(defaults.stats_interval),
       "Time between lines of statistics, which are silent when idle; 0 for none", serve,
       [](Settings& s, const OptionValue& v) { s.serve.stats_interval = Number(v, 0, 86400); }},
  };
}

}  // namespace outrider
