// The step loop: plan, layout, forward, verify, propose, commit. Requests join and leave at every
// step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/engine/generation_service.h"
#include "outrider/engine/kv_events.h"

namespace outrider {

class EngineCore;

/// An engine that its owner drives step by step. Submit, Abort and Counters may be called from any
/// thread; Step, from one thread at a time.
class Engine : public GenerationService {
 public:
  explicit Engine(std::unique_ptr<EngineCore> core);
  ~Engine() override;

  RequestId Submit(GenerationRequest request, OutputSink sink) override;
  void CheckRoom(int64_t count) const override;
  void Abort(RequestId id) override;
  EngineCounters Counters() const override;
  /// Waits until the step that runs has ended, then returns Counters. So everything that sinks were
  /// given before the call is counted. Thread-safe, but another thread must call Step meanwhile.
  EngineCounters CountersAfterStep();
  void Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done) override;
  void Resume(std::function<void()> done) override;
  void ForgetPrefixes(std::function<void()> done) override;
  void UpdateWeights(WeightUpdate update, ControlDone done) override;
  void Sleep(EngineMemory memory, PauseMode mode, ControlDone done) override;
  void WakeUp(EngineMemory memory, ControlDone done) override;
  StepLog& step_log() override;

  /// Sets who is told what becomes of cached blocks, on the stepping thread. Called before the
  /// first step.
  void SetKvEventSink(KvEventSink sink);

  /// Takes in what was submitted and runs one step. False when there was nothing to do. Throws
  /// Error when the device fails: all requests have ended with it then, and no other is taken.
  bool Step();

  /// Blocks until there is work or `Wake` is called, at most `seconds`.
  void WaitForWork(double seconds);

  /// Makes WaitForWork return.
  void Wake();

  /// No request is waiting or running.
  bool Idle() const;

  int32_t max_model_len() const;
  int32_t vocab_size() const;
  /// The k that runs by default; 0 without speculation.
  int32_t num_speculative_tokens() const;

 private:
  struct Mailbox;

  void Fail(const std::string& reason);
  /// Runs `command` on the stepping thread, before its next step.
  void Command(std::function<void(EngineCore&)> command);
  /// Runs `change` on the stepping thread and tells `done` how it went.
  void Control(std::function<void(EngineCore&)> change, ControlDone done);

  // These put a `done` off until Counters tells of what was done.
  std::function<void()> AfterStep(std::function<void()> done);
  ControlDone AfterStep(ControlDone done);
  void TellWhatIsDone();

  std::unique_ptr<EngineCore> core_;
  std::vector<std::function<void()>> done_;  // to be told; the stepping thread's
  std::unique_ptr<Mailbox> mailbox_;
};

}  // namespace outrider
