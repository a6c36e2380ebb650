// A generation service driven step by step that answers every request with a script.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/generation_service.h"
#include "outrider/openai/request.h"

namespace outrider::cli {

/// Each Step gives every open request its next delta of `script`; the last one finishes it.
class StubService : public GenerationService {
 public:
  explicit StubService(std::vector<OutputDelta> script) : script_(std::move(script)) {}

  RequestId Submit(GenerationRequest request, OutputSink sink) override {
    if (request.prompt_token_ids.empty()) throw InvalidArgument("the prompt is empty");
    const RequestId id = next_id_++;
    open_[id] = {std::move(sink), 0};
    largest_batch_ = std::max(largest_batch_, static_cast<int64_t>(open_.size()));
    requests_.push_back(std::move(request));
    return id;
  }

  void CheckRoom(int64_t) const override {}

  void Abort(RequestId id) override { aborted_.push_back(id); }

  EngineCounters Counters() const override { return counters_; }

  void Pause(PauseMode, bool, std::function<void()> done) override { done(); }
  void Resume(std::function<void()> done) override { done(); }
  void ForgetPrefixes(std::function<void()> done) override { done(); }
  void UpdateWeights(WeightUpdate, ControlDone done) override { done(nullptr); }
  void Sleep(EngineMemory, PauseMode, ControlDone done) override { done(nullptr); }
  void WakeUp(EngineMemory, ControlDone done) override { done(nullptr); }

  StepLog& step_log() override { return step_log_; }

  void Step() {
    ++counters_.num_steps;
    counters_.model_seconds += 1e-6;
    std::vector<RequestId> finished;
    for (auto& [id, request] : open_) {
      OutputDelta delta = script_.at(request.next++);
      if (std::find(aborted_.begin(), aborted_.end(), id) != aborted_.end()) {
        delta = OutputDelta();
        delta.finish_reason = FinishReason::kAbort;
      }
      counters_.generation_tokens += static_cast<int64_t>(delta.token_ids.size());
      counters_.speculation.num_draft_tokens += delta.num_draft_tokens;
      counters_.speculation.num_accepted_tokens += delta.num_accepted_tokens;
      if (delta.num_draft_tokens > 0) ++counters_.speculation.num_drafts;
      if (delta.finish_reason.has_value()) finished.push_back(id);
      request.sink(id, std::move(delta));
    }
    for (const RequestId id : finished) open_.erase(id);
  }

  const std::vector<GenerationRequest>& requests() const { return requests_; }
  const std::vector<RequestId>& aborted() const { return aborted_; }
  int64_t largest_batch() const { return largest_batch_; }

 private:
  struct Open {
    OutputSink sink;
    size_t next = 0;
  };
  std::vector<OutputDelta> script_;
  std::map<RequestId, Open> open_;
  std::vector<GenerationRequest> requests_;
  std::vector<RequestId> aborted_;
  EngineCounters counters_;
  StepLog step_log_;
  RequestId next_id_ = 1;
  int64_t largest_batch_ = 0;
};

/// Three deltas: "Hel" [5], "lo" [6, 7] with 3 drafts of which 1 was accepted, " wor" [8, 9] and
/// the end.
inline std::vector<OutputDelta> HelloScript() {
  std::vector<OutputDelta> script(3);
  script[0].token_ids = {5};
  script[0].text = "Hel";
  script[1].token_ids = {6, 7};
  script[1].text = "lo";
  script[1].num_draft_tokens = 3;
  script[1].num_accepted_tokens = 1;
  script[2].token_ids = {8, 9};
  script[2].text = " wor";
  script[2].num_draft_tokens = 3;
  script[2].num_accepted_tokens = 1;
  script[2].finish_reason = FinishReason::kStop;
  script[2].stop_reason = 9;
  RequestStats& stats = script[2].stats;
  stats.prompt_tokens = 4;
  stats.completion_tokens = 5;
  stats.queue_seconds = 0.25;
  stats.first_token_seconds = 0.5;
  stats.total_seconds = 2.5;
  stats.speculation.num_drafts = 2;
  stats.speculation.num_draft_tokens = 6;
  stats.speculation.num_accepted_tokens = 2;
  stats.speculation.accepted_per_position = {2, 0, 0};
  return script;
}

inline GenerationRequest EncodedRequest() {
  GenerationRequest request;
  request.prompt_token_ids = {1, 2, 3, 4};
  return request;
}

inline openai::TokenRequest SmallRequest() {
  openai::TokenRequest request;
  request.prompts = {std::vector<int32_t>{1, 2, 3, 4}};
  return request;
}

}  // namespace outrider::cli
