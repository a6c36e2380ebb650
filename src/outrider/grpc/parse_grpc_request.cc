#include "outrider/grpc/parse_grpc_request.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "inference.pb.h"
#include "outrider/base/random_id.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_shared.h"

namespace outrider {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;
using openai::RequestError;
using openai::RequestLimits;
using openai::TokenRequest;

[[noreturn]] void Refuse(const std::string& field, const std::string& what) {
  throw RequestError(ErrorCode::kInvalidArgument, field,
                     field.empty() ? what : fmt::format("{}: {}", field, what));
}

// What a newer client asks for and nobody here would look at. Within messages that are refused
// anyway nothing is looked for.
void RefuseUnknownFields(const Message& message, const RequestLimits& limits) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const std::string what =
        fmt::format("field {} of {} is not known to this server", unknown.field(i).number(),
                    message.GetDescriptor()->full_name());
    if (!limits.ignore_unknown_fields) Refuse("", what + "; leave it out");
    SPDLOG_WARN("{}: ignored", what);
  }
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) continue;
    RefuseUnknownFields(message.GetReflection()->GetMessage(message, field), limits);
  }
}

void RefuseUnsupported(const vllm::GenerateRequest& request) {
  if (request.media_size() > 0) Refuse("media", "not supported: this server's models read text");
  if (!request.lora_name().empty()) Refuse("lora_name", "not supported: this server has no LoRA");
  const vllm::KVCacheParameters& kv = request.kv();
  for (const auto& [name, params] : {std::pair{"kv.kv_transfer_params", &kv.kv_transfer_params()},
                                     {"kv.ec_transfer_params", &kv.ec_transfer_params()}}) {
    if (!params->fields().empty()) Refuse(name, "not supported yet by this server; leave it out");
  }
}

// The request as the HTTP API spells it, for its parsers.
class Fields {
 public:
  template <typename Value>
  void Set(const char* name, const Value& value) {
    values_[name] = value;
  }
  template <typename Value>
  void SetIfAny(const char* name, const Value& value) {
    if (value != Value{}) values_[name] = value;
  }
  // JSON has no such numbers.
  void SetNumber(const char* name, float value) {
    if (!std::isfinite(value)) Refuse(name, fmt::format("must be a finite number, not {}", value));
    values_[name] = value;
  }
  void SetNumberIfAny(const char* name, float value) {
    if (value != 0) SetNumber(name, value);
  }
  template <typename List>
  void SetList(const char* name, const List& list) {
    if (!list.empty()) values_[name] = std::vector(list.begin(), list.end());
  }

  const json& values() const { return values_; }

 private:
  json values_ = json::object();
};

void SetSampling(const vllm::GenerateRequest& request, Fields* fields) {
  fields->SetNumber("temperature", request.has_temperature() ? request.temperature() : 0);
  const vllm::RandomSampling& sampling = request.sampling();
  fields->SetIfAny("n", sampling.num_sequences());
  fields->SetIfAny("top_k", sampling.top_k());
  fields->SetNumberIfAny("top_p", sampling.top_p());
  fields->SetNumberIfAny("min_p", sampling.min_p());
  if (sampling.has_seed()) fields->Set("seed", sampling.seed());
}

json StructuredOutput(const vllm::DecodingParameters& decoding) {
  using Parameters = vllm::DecodingParameters;
  switch (decoding.structured_output_case()) {
    case Parameters::kJson:
      return {{"json", decoding.json()}};
    case Parameters::kRegex:
      return {{"regex", decoding.regex()}};
    case Parameters::kChoice: {
      const auto& choices = decoding.choice().choices();
      return {{"choice", std::vector(choices.begin(), choices.end())}};
    }
    case Parameters::kGrammar:
      return {{"grammar", decoding.grammar()}};
    case Parameters::kJsonObject:
      return {{"json_object", decoding.json_object()}};
    case Parameters::kStructuralTag:
      return {{"structural_tag", decoding.structural_tag()}};
    case Parameters::STRUCTURED_OUTPUT_NOT_SET:
      break;
  }
  return nullptr;
}

void SetDecoding(const vllm::DecodingParameters& decoding, Fields* fields) {
  fields->SetNumberIfAny("presence_penalty", decoding.presence_penalty());
  fields->SetNumberIfAny("frequency_penalty", decoding.frequency_penalty());
  fields->SetNumberIfAny("repetition_penalty", decoding.repetition_penalty());
  json biases = json::object();
  for (const auto& [token, bias] : decoding.logit_bias()) {
    if (!std::isfinite(bias)) Refuse("logit_bias", fmt::format("{} is no finite number", bias));
    biases[std::to_string(token)] = bias;
  }
  if (!biases.empty()) fields->Set("logit_bias", biases);
  fields->SetList("allowed_token_ids", decoding.allowed_token_ids());
  if (const json structured = StructuredOutput(decoding); !structured.is_null()) {
    fields->Set("structured_outputs", structured);
  }
}

void SetStopping(const vllm::StoppingCriteria& stopping, Fields* fields) {
  fields->SetIfAny("max_tokens", stopping.max_new_tokens());
  fields->SetIfAny("min_tokens", stopping.min_new_tokens());
  fields->SetList("stop_token_ids", stopping.stop_token_ids());
  fields->SetList("stop", stopping.stop_strings());
  fields->SetIfAny("include_stop_str_in_output", stopping.include_stop_strings());
  fields->SetIfAny("ignore_eos", stopping.ignore_eos());
}

// How many candidates; `name` is the field's.
int64_t CountOf(const vllm::CandidateTokens& candidates, const std::string& name,
                const RequestLimits& limits) {
  switch (candidates.select_case()) {
    case vllm::CandidateTokens::kTopN:
      return candidates.top_n();
    case vllm::CandidateTokens::kAll:
      return candidates.all() ? limits.vocab_size : 0;
    case vllm::CandidateTokens::kTokenIds:
      if (!candidates.token_ids().ids().empty()) {
        Refuse(name, "token_ids are not supported; ask for top_n");
      }
      return 0;
    case vllm::CandidateTokens::SELECT_NOT_SET:
      return 0;
  }
  return 0;
}

void SetResponse(const vllm::ResponseOptions& response, const RequestLimits& limits,
                 Fields* fields) {
  if (response.has_skip_special_tokens()) {
    fields->Set("skip_special_tokens", response.skip_special_tokens());
  }
  if (response.output_logprobs()) {
    fields->Set("logprobs",
                CountOf(response.output_candidates(), "response.output_candidates", limits));
  }
  if (response.prompt_logprobs()) {
    fields->Set("prompt_logprobs",
                CountOf(response.prompt_candidates(), "response.prompt_candidates", limits));
  }
}

openai::CompletionPrompt PromptOf(const vllm::GenerateRequest& request,
                                  const RequestLimits& limits) {
  switch (request.prompt_case()) {
    case vllm::GenerateRequest::kText:
      return request.text();
    case vllm::GenerateRequest::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      return openai::ReadTokenIds(std::vector(ids.begin(), ids.end()), limits.vocab_size,
                                  "token_ids");
    }
    case vllm::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  Refuse("", "there is no prompt: give text or token_ids");
}

}  // namespace

TokenRequest ParseGrpcRequest(std::string_view bytes, bool stream, const RequestLimits& limits) {
  vllm::GenerateRequest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    Refuse("", "the request is no vllm.GenerateRequest, or has text that is not UTF-8");
  }
  RefuseUnknownFields(message, limits);
  RefuseUnsupported(message);
  if (!stream && message.sampling().num_sequences() > 1) {
    Refuse("n", "more than 1 is for GenerateStream: an answer of Generate holds one sequence");
  }
  Fields fields;
  fields.SetIfAny("request_id", message.request_id());
  fields.SetIfAny("model", message.model());
  fields.SetIfAny("priority", message.priority());
  fields.SetIfAny("cache_salt", message.kv().cache_salt());
  fields.SetIfAny("truncate_prompt_tokens", message.truncate_prompt_tokens());
  SetSampling(message, &fields);
  SetDecoding(message.decoding(), &fields);
  SetStopping(message.stopping(), &fields);
  SetResponse(message.response(), limits, &fields);

  TokenRequest request;
  request.prompts.push_back(PromptOf(message, limits));
  openai::FieldReader reader(fields.values(), "");
  request.max_tokens = openai::ParseTokenCount(reader, "max_tokens", 1);
  request.default_max_tokens = limits.max_model_len;
  openai::ParseTokenLogprobs(reader, limits, &request);
  // Schemas are texts, so their members keep their order.
  const std::string raw = fields.values().dump();
  openai::ParseShared(reader, reader, raw, limits, &request);
  reader.RefuseUnknown();
  // A salt that no other request has.
  if (message.kv().bypass_prefix_cache()) request.cache_salt = "bypass " + RandomId();
  const vllm::ResponseOptions& response = message.response();
  request.answer.stream = stream;
  request.answer.text = !response.has_output_text() || response.output_text();
  request.answer.return_token_ids = response.output_token_ids();
  request.answer.prompt_token_ids = response.prompt_token_ids();
  return request;
}

}  // namespace outrider
