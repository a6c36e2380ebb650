#include "outrider/cli/server_options.h"

#include <sstream>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/file.h"
#include "outrider/generate/model_defaults.h"
#include "outrider/http/tls_context.h"

namespace outrider::cli {

namespace {

std::optional<TlsFiles> TlsFilesOf(const ServeSettings& serve) {
  if (!serve.ssl_certfile.empty()) {
    return TlsFiles{serve.ssl_certfile, serve.ssl_keyfile, serve.ssl_ca_certs};
  }
  for (const auto& [option, value] :
       {std::pair("--ssl-keyfile", serve.ssl_keyfile), {"--ssl-ca-certs", serve.ssl_ca_certs}}) {
    if (!value.empty()) {
      throw InvalidArgument("{}: has no effect without a certificate; give --ssl-certfile too",
                            option);
    }
  }
  return std::nullopt;
}

PageFacts MakePageFacts(const Settings& settings, const LoadedEngine& loaded) {
  PageFacts facts;
  facts.example_questions = ReadExampleQuestions(settings.engine.model);
  for (const Decision& decision : loaded.decisions) {
    if (decision.what == "drafter") {
      facts.drafter = decision.value;
      facts.drafter_reason = decision.why;
    } else if (decision.what == "draft length") {
      facts.draft_length = decision.value;
      facts.draft_length_reason = decision.why;
    }
  }
  return facts;
}

}  // namespace

HttpServerOptions MakeHttpOptions(const ServeSettings& serve) {
  HttpServerOptions http;
  http.host = serve.host;
  http.port = serve.port;
  http.uds = serve.uds;
  http.shutdown_seconds = serve.shutdown_timeout;
  http.handle_signals = true;
  http.cors = serve.cors;
  http.tls = TlsFilesOf(serve);
  return http;
}

std::vector<std::string> ApiKeysOf(const ServeSettings& serve) {
  constexpr uint64_t kMostBytes = 1 << 20;
  std::vector<std::string> keys = serve.api_keys;
  if (serve.api_key_file.empty()) return keys;
  std::istringstream lines(ReadTextFile(serve.api_key_file, kMostBytes));
  const size_t given = keys.size();
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    keys.push_back(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first));
  }
  if (keys.size() == given) {
    throw InvalidArgument("--api-key-file: {} holds no key; write one a line", serve.api_key_file);
  }
  return keys;
}

ServerOptions MakeServerOptions(const Settings& settings, const LoadedEngine& loaded) {
  const ServeSettings& serve = settings.serve;
  ServerOptions options;
  options.http = MakeHttpOptions(serve);
  options.ignore_unknown_fields = serve.ignore_unknown_fields;
  options.log_requests = serve.log_requests;
  options.otlp_traces_endpoint = serve.otlp_traces_endpoint;
  options.admin_key = serve.admin_key;
  options.allowed_weight_dirs = serve.allowed_weight_dirs;
  options.served_model_names = serve.served_model_names;
  options.model_root = settings.engine.model;
  options.api_keys = ApiKeysOf(serve);
  options.max_requests_per_key = serve.max_num_reqs_per_key;
  options.allowed_hosts = serve.allowed_hosts;
  options.share_prefix_cache = serve.share_prefix_cache;
  options.max_model_len = loaded.engine->max_model_len();
  options.max_logprobs = settings.engine.max_logprobs;
  options.num_speculative_tokens = loaded.engine->num_speculative_tokens();
  options.tensor_parallel_size = settings.engine.tensor_parallel_size;
  options.tells_experts = settings.engine.enable_return_routed_experts;
  options.speculation_metrics = serve.per_request_spec_decode_metrics;
  options.output_format =
      ChooseOutputFormat(serve.tool_call_parser, serve.reasoning_parser, loaded.config.model_type,
                         loaded.chat_template.has_value() ? loaded.chat_template->source() : "");
  options.sampling_defaults = ModelSamplingDefaults(loaded.config);
  options.page_facts = MakePageFacts(settings, loaded);
  return options;
}

}  // namespace outrider::cli
