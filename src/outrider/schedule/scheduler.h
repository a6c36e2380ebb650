// Decides which requests run in a step, with how many tokens. It is a pure state machine over
// numbers: no tokens, no tensors, no clock. Its owner calls Plan, runs the step, calls Commit with
// what came out, and starts again. The next step may be planned before a step is committed, from
// bounds of what that step will have done.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kv/cache_coordinator.h"

namespace outrider {

/// Names a request inside one engine; grows with arrival, never reused.
using RequestId = uint64_t;

struct SchedulerConfig {
  CacheConfig cache;
  /// How many ranks have such a cache, each with the entries of its own requests.
  int32_t cache_ranks = 1;
  int32_t max_num_seqs = 0;            // request slots
  int32_t max_num_batched_tokens = 0;  // rows of a step; see Scheduler
  int32_t max_model_len = 0;           // positions a request may have
  int32_t max_drafts = 0;              // most drafts of a request in a step
  int32_t lookahead_tokens = 0;        // positions that the drafter writes beyond the verified rows
  int32_t tokens_ahead = 0;            // tokens after a block that its entries depend on
  bool publish_answers = true;         // false: only blocks that were computed as a prompt
};

/// A request as it arrives.
struct NewRequest {
  RequestId id = 0;
  int32_t prompt_length = 0;
  int32_t max_total_tokens = 0;  // prompt and output, where it ends; 0: max_model_len
  int32_t priority = 0;          // lower runs first; equal ones in order of arrival
  /// Keys of the request's blocks, which the caller extends as tokens become known; null: no prefix
  /// caching for this request. Must outlive the request.
  const BlockKeys* keys = nullptr;
  /// Most tokens of its prompt that may be found in the cache. The others must run, as their rows
  /// are wanted.
  int32_t most_shared = std::numeric_limits<int32_t>::max();
};

/// A waiting request that was let in.
struct Admission {
  RequestId id = 0;
  int32_t slot = 0;
  int32_t cached_tokens = 0;    // prompt tokens found in the cache
  int32_t returned_tokens = 0;  // of these, tokens that only the host cache had
};

/// One request's part of the step. Context length and drafts are bounds while a step that samples
/// the request is in flight.
struct PlannedRequest {
  RequestId id = 0;
  int32_t slot = 0;
  Phase phase = Phase::kDecode;
  int32_t context_length = 0;       // at least
  int32_t most_context_length = 0;  // at most
  int32_t num_tokens = 0;           // known tokens to run, from the context's end on
  int32_t num_drafts = 0;           // draft tokens after them, at most
  bool samples = false;
  /// Whether blocks may be published after the step even if the request ends with it. The drafter's
  /// entries are then wanted, too.
  bool publishes = false;
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
/// - The rest of the token budget goes to prompts by turn. The first prompt that does not end in
///   the step leaves half of what it could have to short ones behind it: those of its priority with
///   less than half as much left, the shortest first. So a short prompt does not wait for the end
///   of a long one, and no prompt gets less than half of the rows in its turn. However many rows
///   decode, prompts get kMinPromptTokens. A chunk never mixes prompt tokens and generated tokens.
/// - A waiting request is admitted, when it gets rows, if a slot is free and the pool covers all
///   its known tokens (of a sliding window: its first chunk). It passes only those that could be
///   admitted beside it, so it takes nobody's place.
/// - When pages for a running request's next rows are short, the request whose turn is last is
///   preempted: its pages are freed, and it is computed again. The first is never preempted, so it
///   always gets on.
/// - Full blocks of verified tokens are published once the drafter's entries in them are final,
///   those of a request's last step too. A request starts after the longest published prefix of its
///   prompt that every cache group can resume and that leaves at least one prompt token to compute.
///   Tokens generated before a preemption are computed again.
/// - Where ranks have caches of their own, a request is admitted to the rank with the most free
///   pages, where a cached page of its prompt counts as kPagesOfAHit; to the next rank where that
///   one has too few. It stays there until it ends or is preempted, and takes no other rank's
///   pages. So the first by turn on each rank always gets on.
/// - Blocks that have left a sliding window are freed while their request runs.
/// - With a step in flight, a plan is empty if a request may need more pages than are free. That
///   step is to be committed first. So no request is preempted for a bound, or while a step with it
///   is in flight.
class Scheduler {
 public:
  static constexpr int32_t kMinPromptTokens = 64;
  static constexpr int32_t kPagesOfAHit = 4;
  static constexpr int32_t kMostInFlight = 2;  // steps that are planned and not committed

  explicit Scheduler(const SchedulerConfig& config);

  /// prompt_length < max_model_len. Ids must grow.
  void Add(const NewRequest& request);

  /// Forgets a finished or aborted request and frees what it holds. Steps in flight are not
  /// committed for it.
  void Remove(RequestId id);

  /// Plans the next step; empty when there is nothing to run. At most one step may be in flight
  /// (planned and not committed). The plan stays valid until kMostInFlight more were planned, but
  /// for the block tables of requests that were removed.
  const StepPlan& Plan();

  /// Takes what the oldest step in flight did for a planned request: num_accepted of its drafts
  /// were right, num_emitted tokens were added (0 when it was not sampled), and num_drafts are to
  /// be verified next. The request's keys must cover its known tokens, and the drafter must have
  /// seen them. A request that has ended may be committed before it is removed, with the tokens up
  /// to its end.
  void Commit(const PlannedRequest& planned, int32_t num_accepted, int32_t num_emitted,
              int32_t num_drafts);

  /// Takes slots and cache from all requests, which are computed again. No step may be in flight.
  void PreemptAll();

  /// Sets where pages go that leave the pool, and from where they come back when an admitted
  /// request needs them. `host` must outlive the scheduler. Pages are copied during Plan.
  void SetHostCache(HostCache* host) {
    for (CacheCoordinator& cache : caches_) cache.SetHostCache(host);
  }

  /// Forgets all published prefixes; requests that run keep what they have.
  void ForgetPrefixes() {
    for (CacheCoordinator& cache : caches_) cache.ForgetPublished();
  }
  /// Logs what becomes of published blocks. `log` must outlive the scheduler. There must be one
  /// cache: several would each tell of their own copy of a block.
  void SetPrefixLog(std::vector<BlockPoolEvent>* log) {
    OUTRIDER_CHECK(caches_.size() == 1);
    caches_.front().SetLog(log);
  }

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  /// The pages of a rank that has a cache.
  const BlockPool& pool(int32_t rank = 0) const {
    return caches_.at(static_cast<size_t>(rank)).pool();
  }
  /// The part of all pages that requests hold, 0 to 1.
  double CacheUsage() const;

 private:
  struct Entry {
    RequestId id = 0;
    int32_t priority = 0;
    const BlockKeys* keys = nullptr;
    int32_t most_shared = 0;
    int32_t likely_hit = 0;  // while it waits: tokens that were cached when it arrived
    int32_t slot = -1;
    int32_t rank = 0;  // whose cache its tables are of
    int32_t prompt_length = 0;
    int32_t max_total_tokens = 0;
    int32_t num_tokens = 0;    // known tokens: prompt and emitted
    int32_t num_computed = 0;  // of them, those whose KV is cached
    int32_t num_drafts = 0;    // to be verified next
    CacheTables tables;
    // What steps in flight run of it.
    int32_t steps_in_flight = 0;
    int32_t tokens_in_flight = 0;   // known tokens
    int32_t drafts_in_flight = 0;   // at most
    int32_t samples_in_flight = 0;  // steps that sample it: each adds at least one token

    // After the steps in flight; every accepted draft adds one to all of these.
    int32_t LeastTokens() const { return num_tokens + samples_in_flight; }
    int32_t LeastComputed() const { return num_computed + tokens_in_flight; }
    int32_t MostComputed() const { return LeastComputed() + drafts_in_flight; }
    /// The steps in flight are its last.
    bool Ends() const { return steps_in_flight > 0 && LeastTokens() >= max_total_tokens; }
    bool Decodes() const {
      return LeastComputed() >= prompt_length && LeastComputed() + 1 == LeastTokens();
    }
    /// Known tokens that a chunk may still run: of the prompt, or of what was generated before a
    /// preemption.
    int32_t ChunkTokens() const {
      return (LeastComputed() < prompt_length ? prompt_length : num_tokens) - LeastComputed();
    }
    /// Known tokens that are to run before it decodes; an estimate while it waits.
    int32_t RowsLeft() const { return num_tokens - (slot < 0 ? likely_hit : LeastComputed()); }
  };

  static bool Before(const Entry* a, const Entry* b);
  static void InsertByTurn(auto& entries, Entry* entry);
  /// Pages for the next `rows` rows of a request and what its drafter writes behind them, and, in
  /// full-history groups, for positions [0, full_end).
  bool Reserve(Entry& entry, int32_t rows, int32_t full_end);
  CacheCoordinator& CacheOf(const Entry& entry) { return caches_[static_cast<size_t>(entry.rank)]; }
  /// The running request of a rank whose turn is last; there is one.
  Entry& LastOf(int32_t rank);
  /// Sorts ranks_ by how well a waiting request would stay there, the best first.
  void SortRanksFor(const Entry& entry);
  /// Gives a waiting request a rank and a slot, and pages for a chunk of up to `most_rows`.
  bool Admit(Entry& entry, int32_t most_rows);
  /// Its pages on its rank, with those of the longest prefix that is cached there.
  std::optional<CacheCoordinator::SharedPrefix> TakePages(Entry& entry, int32_t most_rows);
  int32_t MostShared(const Entry& entry) const;
  /// Tokens whose blocks may be published, of those that are computed.
  int32_t PublishableTokens(const Entry& entry) const;
  void Publish(Entry& entry);
  /// Drafts that the next step may verify.
  int32_t MostDrafts(const Entry& entry) const;
  StepPlan& plan() { return plans_[last_plan_]; }
  /// False: pages may be short and a step is in flight.
  bool ReservePages();
  void PlanDecodes();
  void PlanPrompts();
  /// Into prompts_ those that rows could go to, by turn.
  void FindPrompts();
  /// Rows for short prompts behind prompts_[first], up to half of the budget.
  void PlanShortPrompts(size_t first);
  /// Whether the request that waits longest could be admitted behind this one.
  bool LeavesRoom(const Entry& entry) const;
  /// Most pages that a request which waits would take now.
  int64_t PagesToAdmit(const Entry& entry) const;
  /// Returns how many rows it got.
  int32_t PlanChunk(Entry& entry, int32_t most_rows);
  void AddToPlan(Entry& entry, PlannedRequest planned);
  void Preempt(Entry& entry);
  void Release(Entry& entry);

  SchedulerConfig config_;
  std::vector<CacheCoordinator> caches_;  // by rank
  std::vector<int32_t> free_slots_;
  std::vector<Entry*> by_slot_;  // null: free
  std::unordered_map<RequestId, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> running_;  // by turn
  std::deque<Entry*> waiting_;   // by turn
  // State of the plan being made.
  std::vector<Entry*> prompts_;         // that rows could go to, by turn; null: it has its rows
  std::vector<Entry**> short_prompts_;  // by rows left
  std::vector<int32_t> ranks_;          // all, in the order in which a request tries them
  bool admits_ = false;                 // nobody waits whom others must not pass
  std::array<StepPlan, kMostInFlight> plans_;
  size_t last_plan_ = 0;
  int32_t num_in_flight_ = 0;  // of all requests, their steps in flight
  int32_t budget_ = 0;         // rows left for prompts in the plan being made
};

}  // namespace outrider
