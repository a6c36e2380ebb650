// /debug/steps: a stream of server-sent events, a few a second, with what the engine's steps ran.
// The web page's strip shows it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/http/http_message.h"

namespace outrider {

class StepFeed : public HttpProducer {
 public:
  /// `first_event`: a JSON object for clients that begin to listen. The feed ends once `stopping`
  /// is true. `service` and `stopping` must outlive the feed.
  StepFeed(GenerationService& service, std::string first_event, const bool& stopping);

  void Produce(HttpOutput* output) override;
  void Abandon() override { listener_.reset(); }
  void Cancel() override { cancelled_ = true; }

 private:
  using Clock = std::chrono::steady_clock;

  void AppendEvent(std::string* out);

  GenerationService& service_;
  std::string first_event_;
  const bool& stopping_;
  bool cancelled_ = false;
  bool head_sent_ = false;
  std::unique_ptr<StepLog::Listener> listener_;
  std::vector<StepRecord> records_;
  Clock::time_point last_event_;
  EngineCounters last_;  // told in the last event
};

}  // namespace outrider
