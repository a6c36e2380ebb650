#include "outrider/server/server.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "outrider/base/error.h"
#include "outrider/server/api.h"

namespace outrider {
namespace {

ApiOptions ApiOptionsOf(const ServerOptions& options, const PromptEncoder& encoder) {
  if (options.served_model_names.empty()) {
    throw InvalidArgument("the server needs a name for its model: --served-model-name");
  }
  if (options.max_model_len < 2) {
    throw InvalidArgument("max_model_len is {}; a prompt and an answer need at least 2",
                          options.max_model_len);
  }
  ApiOptions api;
  api.served_model_names = options.served_model_names;
  api.model_root = options.model_root;
  api.api_keys = options.api_keys;
  api.max_requests_per_key = options.max_requests_per_key;
  api.allowed_hosts = options.allowed_hosts;
  api.restrict_hosts =
      options.api_keys.empty() && options.http.uds.empty() && IsLoopbackHost(options.http.host);
  api.share_prefix_cache = options.share_prefix_cache;
  api.log_requests = options.log_requests;
  api.otlp_traces_endpoint = options.otlp_traces_endpoint;
  api.admin_key = options.admin_key;
  api.allowed_weight_dirs = options.allowed_weight_dirs;
  api.output_format = options.output_format;
  api.page_facts = options.page_facts;
  api.limits.vocab_size = encoder.vocab_size();
  api.limits.max_model_len = options.max_model_len;
  api.limits.max_logprobs = options.max_logprobs;
  api.limits.num_speculative_tokens = options.num_speculative_tokens;
  api.tensor_parallel_size = options.tensor_parallel_size;
  api.limits.tells_experts = options.tells_experts;
  api.limits.speculation_metrics = options.speculation_metrics;
  api.limits.defaults = options.sampling_defaults;
  api.limits.ignore_unknown_fields = options.ignore_unknown_fields;
  return api;
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions options, GenerationService& service, const PromptEncoder& encoder,
       GrammarCompiler* grammars)
      : model_name(options.served_model_names.empty() ? "" : options.served_model_names[0]),
        api(ApiOptionsOf(options, encoder), service, encoder, grammars),
        http(std::move(options.http), api) {}

  std::string model_name;
  Api api;
  HttpServer http;
};

Server::Server(ServerOptions options, GenerationService& service, const PromptEncoder& encoder,
               GrammarCompiler* grammars)
    : impl_(std::make_unique<Impl>(std::move(options), service, encoder, grammars)) {}
Server::~Server() = default;

void Server::Run() {
  const std::string address = impl_->http.address();
  SPDLOG_INFO("ready: outrider serves model \"{}\" on {}/v1 and a web page on {}/",
              impl_->model_name, address, address);
  impl_->http.Run();
}

void Server::Stop() { impl_->http.Stop(); }
void Server::StopAfterFailure() { impl_->http.StopAfterFailure(); }

ServerParts Server::parts() { return impl_->api.parts(); }
void Server::Join(ServerCompanion& companion) { impl_->api.Join(companion); }

uint16_t Server::port() const { return impl_->http.port(); }
int64_t Server::body_bytes() const { return impl_->http.body_bytes(); }

}  // namespace outrider
