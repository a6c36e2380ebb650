// The step loop, on one thread: plan, launch, wait, deliver, commit. With an executor that takes
// two steps, the next is planned and launched while one runs (executor.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "outrider/draft/draft_length_policy.h"
#include "outrider/draft/draft_schedule.h"
#include "outrider/engine/executor_maker.h"
#include "outrider/engine/generation_service.h"
#include "outrider/engine/kv_events.h"
#include "outrider/engine/request_state.h"
#include "outrider/execute/executor.h"
#include "outrider/kv/host_cache.h"
#include "outrider/schedule/scheduler.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

/// What an engine is made of.
struct EngineParts {
  /// Makes new executors; null: the first one stays.
  std::unique_ptr<ExecutorMaker> maker = nullptr;
  std::unique_ptr<Executor> executor;
  std::string weight_version = {};                       // "": nobody named it
  DraftSchedule draft_schedule{0, {}};                   // with speculation: by max_drafts
  std::optional<DraftLengthPolicy> draft_length_policy;  // decides instead of draft_schedule
  const Tokenizer* tokenizer = nullptr;                  // null: no text
  SchedulerConfig scheduler;                             // max_drafts: 0 without speculation
  bool prefix_caching = true;
  std::optional<int32_t> max_num_queued_reqs;
  int32_t max_logprobs = 20;
  uint64_t seed = 0;
  std::optional<RoutedShape> routed = {};  // of experts that requests may ask for; unset: of none
  std::optional<GpuFigures> gpu;           // what is known at start
  /// Takes pages that leave the cache's pool, of Executor::page_bytes() bytes; null: they are lost.
  std::unique_ptr<PageStore> page_store = nullptr;
};

class EngineCore {
 public:
  explicit EngineCore(EngineParts parts);
  /// Ends the engine and returns its parts. It must have no requests.
  EngineParts ReleaseParts() &&;

  const EngineParts& parts() const { return parts_; }
  int32_t vocab_size() const { return vocab_size_; }
  std::span<const int32_t> eos_token_ids() const { return eos_token_ids_; }
  StepLog& step_log() { return step_log_; }
  /// From the next step on, unless there is a draft_length_policy.
  void SetDraftSchedule(DraftSchedule schedule) { parts_.draft_schedule = std::move(schedule); }

  void Add(RequestId id, GenerationRequest request, OutputSink sink);
  void Abort(RequestId id);
  /// Ends all requests and tells them why. Nothing runs any more.
  void Fail(const std::string& reason);

  /// Ends the oldest step in flight, after launching as many as the executor takes; false when
  /// there is nothing to run.
  bool Step();

  /// As GenerationService has them, on the engine's thread.
  void Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done);
  void Resume(const std::function<void()>& done);
  void ForgetPrefixes();
  /// Throws Error where weights cannot be changed, and for weights that cannot replace those that
  /// run. Those then go on.
  void UpdateWeights(const WeightUpdate& update);
  void Sleep(EngineMemory memory, PauseMode mode, const ControlDone& done);
  void WakeUp(EngineMemory memory);

  /// Sets who is told what becomes of cached blocks. Called before the first request.
  void SetKvEventSink(KvEventSink sink);

  bool Idle() const { return requests_.empty(); }
  /// Replaces `counters`, whose memory is reused.
  void ReadCounters(EngineCounters& counters) const;

 private:
  /// A request that came during a pause.
  struct Held {
    RequestId id;
    GenerationRequest request;
    OutputSink sink;
  };

  /// What is to sleep once a pause has come to rest.
  struct SleepRequest {
    EngineMemory memory;
    bool pauses = false;  // the pause is for its sake, and ends then
    ControlDone done;
  };

  /// Between Pause and Resume.
  struct PauseState {
    PauseMode mode;
    bool forget_prefixes;
    bool at_rest = false;                             // nothing runs any more
    std::vector<std::function<void()>> waiting = {};  // to be called then
    std::optional<SleepRequest> sleep = {};           // to be done then
  };

  struct StepInFlight {
    const StepPlan* plan = nullptr;
    Ticket ticket = 0;
    int32_t num_drafts = 0;  // per request, that it was launched with
  };

  /// Pages of the executor that there is.
  struct ExecutorPages : PageAccess {
    explicit ExecutorPages(const EngineParts& parts_of_engine) : parts(parts_of_engine) {}
    void ReadPage(int32_t page, std::span<std::byte> to) override {
      parts.executor->ReadPage(page, to);
    }
    void WritePage(int32_t page, std::span<const std::byte> from) override {
      parts.executor->WritePage(page, from);
    }
    const EngineParts& parts;
  };

  /// What became of one planned request.
  struct Outcome {
    RequestState* state = nullptr;  // null: the request was gone before the step ended
    int32_t num_emitted = 0;
  };

  void Admit(Held held);
  /// Whether steps may be launched.
  bool MayLaunch() const {
    if (finishing_ || asleep_.weights || asleep_.kv_cache) return false;
    return !pause_ || (pause_->mode == PauseMode::kWait && !pause_->at_rest);
  }
  /// Ends a pause's wait if nothing runs any more. No step is in flight. False: there was nothing
  /// to do.
  bool ComeToRest();
  void TellKvEvents();
  void AbortAll();
  /// Ends the steps in flight.
  void FinishSteps();
  /// Takes slots and cache from all requests; the prefix cache is empty then.
  void EmptyCache();
  /// Makes a request's keys as its prompt begins: blocks that other weights filled have other keys.
  void StartKeys(RequestState& state);
  void FallAsleep(EngineMemory memory);
  /// Makes the executor, with the weights that were read last.
  void TakeWeights();
  ExecutorMaker& MakerThatChanges();

  /// Counts a step that the host spent `step_seconds` on. Returns how long it took, at least the
  /// time that it ran.
  double CountSeconds(double step_seconds, const ExecutorSeconds& before);
  /// Launches a step, if there is anything to run.
  bool LaunchStep();
  void ApplyPlan(const StepPlan& plan);
  /// Counts what an admitted request found of its prompt.
  void CountPrefix(const RequestState& state, const Admission& admission);
  /// Tells of blocks that came back with requests that were admitted.
  void TellReturned(const StepPlan& plan);
  /// How many drafts each request gets after a step of this plan.
  int32_t ChooseDraftLength(const StepPlan& plan);
  /// Waits for the oldest step, delivers what it gave, and commits it.
  void FinishStep(StepRecord& record);
  void EmitTokens(const StepPlan& plan, std::span<const RequestResult> results);
  void Commit(const StepPlan& plan, std::span<const RequestResult> results,
              std::span<const int32_t> num_drafts);
  /// The record of a step that has run.
  StepRecord DescribeStep(const StepPlan& plan, std::span<const RequestResult> results) const;
  /// Tells the policy what became of the step's drafts. wanted: whether the step before was to
  /// have some made.
  void ObserveStep(const StepPlan& plan, std::span<const RequestResult> results, bool wanted);
  /// Ends a request that has finished.
  void End(RequestState& state);
  /// Takes the request's slot.
  void LeaveSlot(RequestState& state);
  void Remove(RequestState& state);
  void CountFinish(FinishReason reason);

  EngineParts parts_;
  // The executor's, but there is a time without one; read by other threads.
  const int32_t vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  std::shared_ptr<const std::string> weight_version_;
  int64_t num_updates_ = 0;
  ExecutorPages executor_pages_;
  std::optional<HostCache> host_cache_;
  Scheduler scheduler_;
  BlockKeyHasher hasher_;
  std::map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<RequestState*> by_slot_;  // of running requests
  EngineCounters counters_;
  // Seconds of all steps.
  double step_seconds_ = 0;
  double kernel_seconds_ = 0;
  StepLog step_log_;
  std::array<StepInFlight, Scheduler::kMostInFlight> in_flight_;  // the oldest first
  int32_t num_in_flight_ = 0;
  std::optional<PauseState> pause_;
  EngineMemory asleep_;  // without weights there is no executor
  bool finishing_ = false;
  std::vector<Held> held_;
  std::optional<KvEventLog> kv_events_;  // with a sink
  KvEventSink kv_event_sink_;
  // Kept to reuse memory.
  std::vector<Outcome> outcomes_;  // by index in the plan
  std::vector<int32_t> tried_;     // [k] as DraftLengthPolicy counts them
  std::vector<int32_t> accepted_;  // [k]
};

}  // namespace outrider
