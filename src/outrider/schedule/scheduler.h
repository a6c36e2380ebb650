// Decides which requests run in a step, with how many tokens. A pure state machine over numbers: no
// tokens, no tensors, no clock. Plan, run the step, Commit what came out, again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/kv/block_pool.h"

namespace outrider {

/// Names a request inside one engine; grows with arrival, never reused.
using RequestId = uint64_t;

struct SchedulerConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t max_num_seqs = 0;            // request slots
  int32_t max_num_batched_tokens = 0;  // rows of a step; see Scheduler
  int32_t max_model_len = 0;           // positions a request may have
  int32_t lookahead_tokens = 0;        // positions that the drafter writes beyond the verified rows
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
  const BlockTable* block_table = nullptr;
};

struct StepPlan {
  std::vector<RequestId> preempted;  // lost slot and cache in this plan; they wait again
  std::vector<PlannedRequest> requests;
  std::vector<RequestId> admitted;  // got a slot in this plan; also in `requests`
};

/// Rules:
/// - Every request whose tokens but the last are cached is in every plan, with its drafts.
/// - The rest of the token budget goes to prompts in order of arrival; a chunk never mixes prompt
///   tokens and generated tokens. However many rows decode, prompts get kMinPromptTokens.
/// - A waiting request is admitted, in order of arrival, when a slot is free and the pool covers
/// all
///   its known tokens. Out of blocks for a decode row: the youngest request is preempted (its
///   blocks freed, to be computed again), never the oldest, so the oldest always gets on.
class Scheduler {
 public:
  static constexpr int32_t kMinPromptTokens = 64;

  explicit Scheduler(const SchedulerConfig& config);

  /// A new request. prompt_length < max_model_len. Ids must grow.
  void Add(RequestId id, int32_t prompt_length);

  /// Forgets a finished or aborted request and frees what it holds.
  void Remove(RequestId id);

  /// The next step. Stays valid until the next call; empty when there is nothing to run.
  const StepPlan& Plan();

  /// What the step did for a planned request: num_accepted of its drafts were right, num_emitted
  /// tokens were added (0 when it was not sampled), and num_drafts are to be verified next.
  void Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
              int32_t num_drafts);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const BlockPool& pool() const { return pool_; }

 private:
  struct Entry {
    RequestId id = 0;
    int32_t slot = -1;
    int32_t prompt_length = 0;
    int32_t num_tokens = 0;    // known tokens: prompt and emitted
    int32_t num_computed = 0;  // of them, those whose KV is cached
    int32_t num_drafts = 0;
    BlockTable blocks;

    bool Decodes() const { return num_computed >= prompt_length && num_computed + 1 == num_tokens; }
  };

  bool Reserve(Entry& entry, int32_t positions);
  void PlanDecodes();
  void PlanPrompts();
  void AdmitWaiting();
  void PlanChunk(const Entry& entry);
  void Preempt(Entry& entry);
  void Release(Entry& entry);

  SchedulerConfig config_;
  BlockPool pool_;
  std::vector<int32_t> free_slots_;
  std::unordered_map<RequestId, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> running_;  // by arrival
  std::deque<Entry*> waiting_;   // by arrival
  StepPlan plan_;
  int32_t budget_ = 0;  // rows left for prompts in the plan being made
};

}  // namespace outrider
