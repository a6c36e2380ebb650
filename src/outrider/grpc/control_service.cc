#include "outrider/grpc/control_service.h"

#include <utility>

#include "outrider/base/random_id.h"
#include "outrider/base/version.h"
#include "outrider/grpc/request_head.h"
#include "outrider/server/server_facts.h"

namespace outrider {
namespace {

using ::grpc::Status;
using ::grpc::StatusCode;

// Ends the call: with what `fill` does, given the head, or for want of a key.
template <typename Fill>
::grpc::ServerUnaryReactor* Answer(::grpc::CallbackServerContext* context, const ApiKeys& keys,
                                   const Fill& fill) {
  auto* const reactor = context->DefaultReactor();
  const HttpRequest head = HeadOf(*context, "/vllm.Control");
  if (!keys.IsAuthorized(head)) {
    reactor->Finish(
        {StatusCode::UNAUTHENTICATED,
         "a valid API key is needed: send it as metadata \"authorization: Bearer KEY\""});
    return reactor;
  }
  fill(head);
  reactor->Finish(Status::OK);
  return reactor;
}

}  // namespace

ControlService::ControlService(ServerParts parts, GrpcFacts facts)
    : parts_(parts), facts_(std::move(facts)), instance_id_(RandomId()) {}

ControlService::Reactor* ControlService::GetServerInfo(Context* context,
                                                       const vllm::GetServerInfoRequest*,
                                                       vllm::ServerInfo* info) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    const EngineCounters counters = parts_.service.Counters();
    const auto ranks = static_cast<uint32_t>(facts_.tensor_parallel_size);
    info->set_engine_version(kVersion);
    info->set_api_version("vllm");
    info->set_instance_id(instance_id_);
    vllm::ParallelismInfo* const parallelism = info->mutable_parallelism();
    parallelism->set_tensor_parallel_size(ranks);
    parallelism->set_pipeline_parallel_size(1);
    parallelism->set_data_parallel_size(1);
    parallelism->set_decode_context_parallel_size(1);
    parallelism->set_world_size(ranks);
    parallelism->set_data_parallel_size_local(1);
    info->set_max_model_len(static_cast<uint32_t>(parts_.limits.max_model_len));
    info->set_kv_block_size(static_cast<uint32_t>(counters.kv_block_size));
    info->set_total_kv_blocks(static_cast<uint64_t>(counters.num_kv_blocks));
    info->set_max_running_requests(static_cast<uint64_t>(counters.max_num_seqs));
    info->set_max_batched_tokens(static_cast<uint64_t>(counters.max_num_batched_tokens));
  });
}

ControlService::Reactor* ControlService::GetModelInfo(Context* context,
                                                      const vllm::GetModelInfoRequest*,
                                                      vllm::ModelInfo* info) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    info->set_model_id(parts_.model_root);
    const std::vector<std::string>& names = parts_.models.names();
    info->set_served_model_name(names[0]);
    for (size_t i = 1; i < names.size(); ++i) info->add_served_model_aliases(names[i]);
    info->set_supports_text_input(facts_.has_tokenizer);
    info->set_supports_token_ids_input(true);
  });
}

ControlService::Reactor* ControlService::Abort(Context* context, const vllm::AbortRequest* request,
                                               vllm::AbortResponse*) {
  return Answer(context, parts_.keys, [&](const HttpRequest& head) {
    const int32_t caller = parts_.keys.CallerOf(head);
    for (const std::string& id : request->request_ids()) parts_.starter.Abort(id, caller);
  });
}

ControlService::Reactor* ControlService::GetKvEventSources(
    Context* context, const vllm::GetKvEventSourcesRequest*,
    vllm::GetKvEventSourcesResponse* response) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    if (!facts_.kv_events) return;
    const KvEventsConfig& config = *facts_.kv_events;
    vllm::KvEventSource* const source = response->add_sources();
    source->set_transport("zmq");
    source->set_endpoint(config.endpoint);
    source->set_topic(config.topic);
    source->set_replay_endpoint(config.replay_endpoint);
    source->set_data_parallel_rank(0);
    source->set_encoding("msgpack");
    source->set_schema_version(1);
    source->set_buffer_steps(static_cast<uint32_t>(config.buffer_steps));
    source->set_hwm(static_cast<uint32_t>(config.hwm));
    source->set_max_queue_size(static_cast<uint32_t>(config.max_queue_size));
  });
}

ControlService::Reactor* ControlService::IsPaused(Context* context, const vllm::IsPausedRequest*,
                                                  vllm::IsPausedResponse* response) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    response->set_paused(parts_.service.Counters().paused);
  });
}

ControlService::Reactor* ControlService::IsSleeping(Context* context,
                                                    const vllm::IsSleepingRequest*,
                                                    vllm::IsSleepingResponse* response) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    const EngineCounters counters = parts_.service.Counters();
    response->set_sleeping(counters.weights_asleep || counters.cache_asleep);
  });
}

ControlService::Reactor* ControlService::GetWeightVersion(
    Context* context, const vllm::GetWeightVersionRequest*,
    vllm::GetWeightVersionResponse* response) {
  return Answer(context, parts_.keys, [&](const HttpRequest&) {
    response->set_weight_version(VersionOrDefault(parts_.service.Counters().weight_version));
  });
}

}  // namespace outrider
