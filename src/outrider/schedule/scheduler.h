// Decides which requests run in a step, with how many tokens. A pure state machine over numbers: no
// tokens, no tensors, no clock. Plan, run the step, Commit what came out, again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/kv/cache_coordinator.h"

namespace outrider {

/// Names a request inside one engine; grows with arrival, never reused.
using RequestId = uint64_t;

struct SchedulerConfig {
  CacheConfig cache;
  int32_t max_num_seqs = 0;            // request slots
  int32_t max_num_batched_tokens = 0;  // rows of a step; see Scheduler
  int32_t max_model_len = 0;           // positions a request may have
  int32_t max_drafts = 0;              // most drafts of a request in a step
  int32_t lookahead_tokens = 0;        // positions that the drafter writes beyond the verified rows
  int32_t tokens_ahead = 0;            // tokens after a block that its entries depend on
  bool exact_prefix = false;           // publish only what was computed as a prompt
};

/// A request as it arrives.
struct NewRequest {
  RequestId id = 0;
  int32_t prompt_length = 0;
  int32_t priority = 0;  // lower runs first; equal ones in order of arrival
  /// Keys of the request's blocks, which the caller extends as tokens become known; null: no prefix
  /// caching for this request. Must outlive the request.
  const BlockKeys* keys = nullptr;
};

/// A waiting request that was let in.
struct Admission {
  RequestId id = 0;
  int32_t slot = 0;
  int32_t cached_tokens = 0;  // prompt tokens found in the cache
};

/// One request's part of the step.
struct PlannedRequest {
  RequestId id = 0;
  int32_t slot = 0;
  Phase phase = Phase::kDecode;
  int32_t context_length = 0;
  int32_t num_tokens = 0;  // known tokens to run, from context_length on
  int32_t num_drafts = 0;  // draft tokens after them
  bool samples = false;
  const CacheTables* tables = nullptr;
};

struct StepPlan {
  std::vector<RequestId> preempted;  // lost slot and cache in this plan; they wait again
  std::vector<PlannedRequest> requests;
  std::vector<Admission> admitted;  // got a slot in this plan; also in `requests`
};

/// Rules:
/// - Every request whose tokens but the last are cached is in every plan, with its drafts.
/// - Turns go by priority, then arrival.
/// - The rest of the token budget goes to prompts by turn; a chunk never mixes prompt
///   tokens and generated tokens. However many rows decode, prompts get kMinPromptTokens.
/// - A waiting request is admitted, in its turn, when a slot is free and the pool covers all its
///   known tokens (of a sliding window: its first chunk). Out of pages for a running request's next
///   rows: the request whose turn is last is preempted (its pages freed, to be computed again),
///   never the first, so the first always gets on.
/// - Full blocks of verified tokens are published once the drafter's entries in them are final. A
///   request starts after the longest published prefix of its prompt that every cache group can
///   resume and that leaves it at least one prompt token to compute. Tokens generated before a
///   preemption are computed again.
/// - Blocks that have left a sliding window are freed while their request runs.
class Scheduler {
 public:
  static constexpr int32_t kMinPromptTokens = 64;

  explicit Scheduler(const SchedulerConfig& config);

  /// prompt_length < max_model_len. Ids must grow.
  void Add(const NewRequest& request);

  /// Forgets a finished or aborted request and frees what it holds.
  void Remove(RequestId id);

  /// The next step. Stays valid until the next call; empty when there is nothing to run.
  const StepPlan& Plan();

  /// What the step did for a planned request: num_accepted of its drafts were right, num_emitted
  /// tokens were added (0 when it was not sampled), and num_drafts are to be verified next. The
  /// request's keys cover its known tokens, and the drafter has seen them.
  void Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
              int32_t num_drafts);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const BlockPool& pool() const { return cache_.pool(); }

 private:
  struct Entry {
    RequestId id = 0;
    int32_t priority = 0;
    const BlockKeys* keys = nullptr;
    int32_t slot = -1;
    int32_t prompt_length = 0;
    int32_t num_tokens = 0;    // known tokens: prompt and emitted
    int32_t num_computed = 0;  // of them, those whose KV is cached
    int32_t num_drafts = 0;
    CacheTables tables;

    bool Decodes() const { return num_computed >= prompt_length && num_computed + 1 == num_tokens; }
    /// Known tokens that a chunk may still run: of the prompt, or of what was generated before a
    /// preemption.
    int32_t ChunkTokens() const {
      return (num_computed < prompt_length ? prompt_length : num_tokens) - num_computed;
    }
  };

  static bool Before(const Entry* a, const Entry* b);
  static void InsertByTurn(auto& entries, Entry* entry);
  /// Pages for the next `rows` rows of a request and what its drafter writes behind them, and, in
  /// full-history groups, for positions [0, full_end).
  bool Reserve(Entry& entry, int32_t rows, int32_t full_end);
  bool Admit(Entry& entry);
  void Publish(Entry& entry);
  void ReservePages();
  void PlanDecodes();
  void PlanPrompts();
  void AdmitWaiting();
  void PlanChunk(const Entry& entry);
  void Preempt(Entry& entry);
  void Release(Entry& entry);

  SchedulerConfig config_;
  CacheCoordinator cache_;
  std::vector<int32_t> free_slots_;
  std::vector<Entry*> by_slot_;  // null: free
  std::unordered_map<RequestId, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> running_;  // by turn
  std::deque<Entry*> waiting_;   // by turn
  StepPlan plan_;
  int32_t budget_ = 0;  // rows left for prompts in the plan being made
};

}  // namespace outrider
