#include "outrider/grpc/grpc_writer.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "inference.pb.h"
#include "outrider/base/error.h"
#include "outrider/grpc/answer_frames.h"
#include "outrider/grpc/grpc_status.h"

namespace outrider {
namespace {

// What vLLM says of tokens that cannot come, as in JSON.
float Finite(float logprob) { return std::max(logprob, -9999.0F); }

// Adds to a PromptInfo or a SequenceOutput.
template <typename Info>
void AddLogprobs(std::span<const PositionLogprobs> positions, Info* info) {
  for (const PositionLogprobs& position : positions) {
    info->add_logprobs(Finite(position.chosen.logprob));
    info->add_ranks(static_cast<uint32_t>(position.rank));
    vllm::CandidateTokenInfo* const candidates = info->add_candidate_tokens();
    uint32_t rank = 0;
    for (const TokenLogprob& token : position.top) {
      ++rank;
      if (token.token_id == position.chosen.token_id) continue;
      auto* const candidate = candidates->add_tokens();
      candidate->set_id(static_cast<uint32_t>(token.token_id));
      candidate->set_logprob(Finite(token.logprob));
      candidate->set_rank(rank);
    }
  }
}

vllm::FinishInfo::FinishReason ReasonOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return vllm::FinishInfo::STOP;
    case FinishReason::kLength:
      return vllm::FinishInfo::LENGTH;
    case FinishReason::kAbort:
      return vllm::FinishInfo::ABORTED;
    case FinishReason::kError:
      break;  // is no answer
  }
  OUTRIDER_CHECK(false);
}

void AppendMessage(const vllm::GenerateResponse& response, std::string* out) {
  AppendFrame(FrameKind::kMessage, response.SerializeAsString(), out);
}

}  // namespace

GrpcWriter::GrpcWriter(openai::AnswerInfo info, const PromptEncoder& encoder)
    : info_(std::move(info)), encoder_(encoder), num_tokens_(static_cast<size_t>(info_.n)) {
  OUTRIDER_CHECK(info_.prompts.size() == 1);
}

void GrpcWriter::FillPrompt(const OutputDelta& delta, vllm::PromptInfo* prompt) const {
  const std::vector<int32_t>& ids = info_.prompts[0];
  prompt->set_num_prompt_tokens(static_cast<uint32_t>(ids.size()));
  if (info_.options.prompt_token_ids) {
    for (const int32_t id : ids) prompt->add_token_ids(static_cast<uint32_t>(id));
  }
  const bool is_scored = !delta.prompt_logprobs.empty() || ids.size() == 1;  // else it was aborted
  if (!info_.options.prompt_logprobs || !is_scored) return;
  prompt->add_logprobs(0);
  prompt->add_ranks(0);
  prompt->add_candidate_tokens();
  AddLogprobs(delta.prompt_logprobs, prompt);
}

void GrpcWriter::FillOutput(size_t choice, const OutputDelta& delta, vllm::SequenceOutput* output) {
  const auto count = static_cast<uint32_t>(delta.token_ids.size());
  num_tokens_[choice] += count;
  output->set_index(static_cast<uint32_t>(choice));
  if (info_.options.text) output->set_text(delta.text);
  output->set_num_tokens(count);
  if (info_.options.return_token_ids) {
    for (const int32_t id : delta.token_ids) output->add_token_ids(static_cast<uint32_t>(id));
  }
  if (info_.options.logprobs) AddLogprobs(delta.logprobs, output);
  if (!delta.finish_reason) return;
  vllm::FinishInfo* const finish = output->mutable_finish_info();
  finish->set_num_output_tokens(num_tokens_[choice]);
  finish->set_finish_reason(ReasonOf(*delta.finish_reason));
  if (const auto* id = std::get_if<int32_t>(&delta.stop_reason)) {
    finish->set_stop_token_id(static_cast<uint32_t>(*id));
  } else if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) {
    finish->set_stop_string(*text);
  } else if (delta.finish_reason == FinishReason::kStop && !delta.token_ids.empty() &&
             encoder_.IsSpecial(delta.token_ids.back())) {
    // A text can also end because its grammar is complete.
    finish->set_eos_token_id(static_cast<uint32_t>(delta.token_ids.back()));
  }
}

void GrpcWriter::WriteStart(std::string* out) {
  if (info_.options.prompt_logprobs) return;  // not known yet
  vllm::GenerateResponse response;
  FillPrompt({}, response.mutable_prompt_info());
  AppendMessage(response, out);
  prompt_told_ = true;
}

void GrpcWriter::WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) {
  if (delta.token_ids.empty() && delta.text.empty() && !delta.finish_reason) return;
  vllm::GenerateResponse response;
  if (!std::exchange(prompt_told_, true)) FillPrompt(delta, response.mutable_prompt_info());
  FillOutput(choice, delta, response.mutable_outputs());
  AppendMessage(response, out);
}

void GrpcWriter::WriteError(const openai::ApiError& error, std::string* out) {
  AppendFrame(FrameKind::kError, ErrorFrame(error), out);
}

std::string GrpcWriter::Body(std::vector<OutputDelta> choices) {
  vllm::GenerateResponse response;
  FillPrompt(choices.at(0), response.mutable_prompt_info());
  FillOutput(0, choices[0], response.mutable_outputs());
  std::string out;
  AppendMessage(response, &out);
  return out;
}

}  // namespace outrider
