// The engine as its callers see it: submit, abort, look at counters. The server uses this interface
// only, so its tests can put another service behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "outrider/base/error.h"
#include "outrider/engine/generation.h"
#include "outrider/engine/step_log.h"
#include "outrider/engine/weight_folders.h"
#include "outrider/kv/host_cache.h"

namespace outrider {

/// How many tokens steps ran, as a histogram with vLLM's bounds.
struct StepSizes {
  static constexpr std::array<int64_t, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                      512, 1024, 2048, 4096, 8192, 16384};

  std::array<int64_t, kBounds.size() + 1> counts{};  // by the first bound not below the size
  int64_t sum = 0;                                   // of the sizes

  void Add(int64_t size) {
    size_t i = 0;
    while (i < kBounds.size() && size > kBounds[i]) ++i;
    ++counts[i];
    sum += size;
  }
};

/// What an engine on a GPU reports beside EngineCounters.
struct GpuFigures {
  // Bytes, when the engine started.
  int64_t total_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t kv_cache_bytes = 0;
  int64_t work_bytes = 0;
  // Since start.
  int64_t passes_repeated = 0;  // recorded passes of the target or of a draft module
  int64_t passes_launched = 0;  // launched one operation after the other
  double idle_seconds = 0;      // without work for the GPU while requests ran
};

/// A snapshot of what an engine is doing and has done. Counters only grow.
struct EngineCounters {
  // Now.
  int64_t num_requests_running = 0;
  int64_t num_requests_waiting = 0;
  double kv_cache_usage = 0;           // 0 .. 1
  int32_t num_speculative_tokens = 0;  // drafts per request that the schedule asked for last
  bool paused = false;
  bool failed = false;          // the device did: no request is taken any more
  bool weights_asleep = false;  // their memory was given back
  bool cache_asleep = false;
  std::string weight_version;  // "": nobody named it
  // Always.
  int32_t max_num_seqs = 0;            // requests that can run at a time
  int32_t max_num_batched_tokens = 0;  // rows of a step
  int32_t max_speculative_tokens = 0;  // k
  int32_t kv_block_size = 0;           // tokens
  int32_t num_kv_blocks = 0;
  std::optional<GpuFigures> gpu;              // with a GPU
  std::optional<HostCacheCounts> host_cache;  // with a tier of the prefix cache behind the pool
  // Since start.
  int64_t num_steps = 0;
  int64_t prompt_tokens = 0;      // prompt tokens computed
  int64_t generation_tokens = 0;  // tokens emitted
  int64_t num_preemptions = 0;
  int64_t prefix_cache_queries = 0;  // tokens looked up
  int64_t prefix_cache_hits = 0;     // tokens found in the pool
  int64_t host_cache_queries = 0;    // tokens that the pool had not, with a host cache
  int64_t host_cache_hits = 0;       // of these, tokens that came back
  int64_t finished_stop = 0;
  int64_t finished_length = 0;
  int64_t finished_abort = 0;
  int64_t finished_error = 0;
  SpeculationCounts speculation;
  StepSizes step_tokens;    // prompt tokens computed and tokens emitted
  StepSizes verify_tokens;  // rows of requests that decode, drafts included; of steps with any
  // Seconds spent in steps, by part; their sum is the time of all steps.
  double plan_seconds = 0;    // plan, layout, commit, output
  double model_seconds = 0;   // the target's forward pass
  double sample_seconds = 0;  // head, logits processing, sampling
  double draft_seconds = 0;   // drafter
  /// The part of all these that was not spent in the model: plan, layout, commit, output, sampling
  /// and the drafter's bookkeeping.
  double host_seconds = 0;
};

/// What becomes of requests when an engine pauses.
enum class PauseMode : uint8_t {
  kAbort,  // they end
  kWait,   // they finish first
  kKeep,   // they stop where they are, and go on after Resume
};

/// Other weights for the model that an engine runs.
struct WeightUpdate {
  WeightFolders folders;
  std::string version;           // "": a number
  bool aborts_requests = false;  // else those that run are computed again, and go on
};

/// Parts of an engine's memory.
struct EngineMemory {
  bool weights = false;
  bool kv_cache = false;
};

/// Called once when what was asked for is done (null), or with the reason why it was not. May be
/// called on any thread. Must not block.
using ControlDone = std::function<void(const Error* error)>;

class GenerationService {
 public:
  virtual ~GenerationService() = default;

  /// Queues a request; `sink` is called from then on. Thread-safe. Throws Error: kInvalidArgument
  /// for a request that can never run, kOverloaded when the queue is full, kUnavailable when
  /// stopping.
  virtual RequestId Submit(GenerationRequest request, OutputSink sink) = 0;

  /// Throws Error where there is no room to submit `count` requests: kOverloaded when the queue is
  /// full, kInvalidArgument when it is too short for them at any time. Thread-safe.
  virtual void CheckRoom(int64_t count) const = 0;

  /// Ends a request; its sink gets a last delta with FinishReason::kAbort unless it had finished.
  /// Thread-safe; unknown ids are ignored (the request may have just finished).
  virtual void Abort(RequestId id) = 0;

  /// Thread-safe.
  virtual EngineCounters Counters() const = 0;

  // The functions below are thread-safe. `done` is called on any thread and must not block.

  /// Stops running steps until Resume. Requests that come meanwhile wait. `done` is called once
  /// nothing runs any more. With forget_prefixes the prefix cache is empty then, except with kKeep.
  virtual void Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done) = 0;

  /// Goes on after Pause. If the pause has not come to rest yet, its `done` is called too.
  virtual void Resume(std::function<void()> done) = 0;

  /// Empties the prefix cache. Requests that run keep what they have found.
  virtual void ForgetPrefixes(std::function<void()> done) = 0;

  /// Changes the weights. If something is wrong with the new ones, the old ones stay. No step runs
  /// meanwhile. Requests that run are computed again up to where they are, so the weights that draw
  /// a token have computed everything before it. The prefix cache is empty then.
  virtual void UpdateWeights(WeightUpdate update, ControlDone done) = 0;

  /// Gives memory back once nothing runs (Pause, with `mode`), until WakeUp. Requests that come
  /// meanwhile wait; kept ones are computed again.
  virtual void Sleep(EngineMemory memory, PauseMode mode, ControlDone done) = 0;

  /// Reads weights again from where they came, and makes room for the cache.
  virtual void WakeUp(EngineMemory memory, ControlDone done) = 0;

  /// Where to listen to the steps as they run; lives as long as the service.
  virtual StepLog& step_log() = 0;
};

}  // namespace outrider
