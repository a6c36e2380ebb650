// A log of the engine's last steps: a fixed ring between the engine's thread and listeners. Without
// a listener a step costs one relaxed load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace outrider {

/// One step. Rows add up to those of the step's layout.
struct StepRecord {
  int64_t step = 0;  // since the engine's start, from 1
  double seconds = 0;
  int32_t decode_requests = 0;
  int32_t prompt_requests = 0;
  int32_t decode_rows = 0;  // known tokens of requests that decode
  int32_t draft_rows = 0;   // drafts to be verified
  int32_t prompt_rows = 0;
  int32_t accepted_drafts = 0;
  int32_t emitted_tokens = 0;
  int32_t num_speculative_tokens = 0;  // drafts per request that the schedule asked for afterwards
  int64_t running = 0;                 // requests after the step
  int64_t waiting = 0;
  double kv_cache_usage = 0;  // 0 .. 1
};

/// Thread-safe.
class StepLog {
 public:
  static constexpr int64_t kCapacity = 256;

  /// Gets the steps that are logged while it lives. The log must outlive it.
  class Listener {
   public:
    explicit Listener(StepLog& log);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    /// Replaces `records` by the steps since the last call, oldest first. Returns how many more
    /// there were that the ring had no room for.
    int64_t Read(std::vector<StepRecord>* records);

   private:
    StepLog& log_;
    int64_t next_;
  };

  bool has_listeners() const { return num_listeners_.load(std::memory_order_relaxed) > 0; }

  void Add(const StepRecord& record);

 private:
  std::atomic<int> num_listeners_{0};
  std::mutex mutex_;
  std::array<StepRecord, kCapacity> ring_;  // record i at i % kCapacity
  int64_t num_added_ = 0;
};

}  // namespace outrider
