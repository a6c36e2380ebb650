// One device's part of a step: its network, cache, drafter and sampler. A rank runs what the step
// runner lays out and decides nothing about requests. All ranks that share a model run every layout
// (rank_team.h). The first one writes results.
//
// Where devices keep tokens, every rank draws them by itself. Elsewhere the first rank draws, from
// logits of which the others make their parts, and tells the others the drafts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/base/thread_pool.h"
#include "outrider/draft/drafter.h"
#include "outrider/execute/executor.h"
#include "outrider/execute/logits_pass.h"
#include "outrider/execute/step_layout.h"
#include "outrider/kv/page_number.h"
#include "outrider/networks/network.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/sampling/acceptance.h"

namespace outrider {

struct RankParts {
  std::unique_ptr<Ops> ops;  // the model's, where the engine owns them; the members below use them
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Communicator> ranks;  // with the others that share the model; null: there is one
  std::vector<int> processors;          // of the pool's threads; empty: any
  /// The device's: the model's and the drafter's passes call it.
  std::unique_ptr<BetweenLaunches> between_launches = std::make_unique<BetweenLaunches>();
  std::unique_ptr<Network> model;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Drafter> drafter;  // null: no speculation
  AcceptanceOptions acceptance;
  bool probabilistic_drafts = false;  // drafts of sampled requests are drawn
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  int32_t num_slots = 0;
};

class Rank {
 public:
  explicit Rank(RankParts parts);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  /// Returns what it was made of. It can only be destroyed afterwards.
  RankParts TakeApart() &&;

  const Ops& ops() const { return parts_.model->device().ops; }
  void SetBetweenLaunches(BetweenLaunches call) { *parts_.between_launches = std::move(call); }
  const Network& model() const { return *parts_.model; }
  const KvCache& cache() const { return *parts_.cache; }
  int32_t num_slots() const { return parts_.num_slots; }
  bool has_drafter() const { return parts_.drafter != nullptr; }
  /// See Drafter::keeps_state.
  bool drafter_keeps_state() const { return parts_.drafter && parts_.drafter->keeps_state(); }
  int32_t max_drafts() const { return parts_.drafter ? parts_.drafter->max_drafts() : 0; }

  /// A slot has a request, whose first `cached_tokens` tokens come from the prefix cache.
  void Admit(int32_t slot, int32_t cached_tokens);

  /// Bytes of a page of the cache, with what the drafter keeps of it.
  int64_t page_bytes() const;
  /// Whether other ranks have pages of their own, with the entries of their requests.
  bool divides_cache() const { return cache_place().ranks > 1; }
  /// As PageAccess has them; of page_bytes() bytes. Only the rank that has the page is read; all
  /// are written, as the drafters of all keep account of it.
  bool HasPage(int32_t page) const {
    return RankOfPage(page, cache_place().ranks) == cache_place().rank;
  }
  void ReadPage(int32_t page, std::span<std::byte> to);
  void WritePage(int32_t page, std::span<const std::byte> from);
  const std::vector<int>& processors() const { return parts_.processors; }
  /// Among those that share the model.
  int32_t index() const { return parts_.ranks == nullptr ? 0 : parts_.ranks->place().rank; }

  /// Runs the target over the rows of a layout. The first rank may be asked for their experts.
  void Forward(const BatchLayout& layout, bool tells_experts = false);
  /// The experts of the rows that Forward has run last, where it was asked: [rows, layers, top_k]
  /// of RoutedShapeOf. The first call after Forward waits for what was launched.
  std::span<const int16_t> ExpertsOf(int32_t first_row, int32_t rows);

  // Tokens of the rows that Forward has run; see LogitsPass.

  void Verify(const StepLayout& step);
  /// On all ranks. Results are the first one's, which Ready and Wait are of.
  std::optional<Ticket> LaunchVerify(const StepLayout& step);
  bool Ready(Ticket ticket) const { return logits_pass_.Ready(ticket); }
  void Wait(Ticket ticket) {
    logits_pass_.Wait(ticket);
    ThrowIfEnded();  // what came was not made then
  }
  void ScorePrompts(const StepLayout& step);

  // Drafts of the requests whose rows Forward has run; see Drafter.

  void LaunchDrafts(std::span<const DraftRequest> requests, int32_t depth) {
    launched_drafts_ = parts_.drafter->Launch(requests, depth, drafter_reads());
  }
  /// Whether what LaunchDrafts has launched finishes the entries of the step's rows.
  bool HasFinishedEntries() const {
    return launched_drafts_ && parts_.drafter->launch_finishes_entries();
  }
  /// Ends what LaunchDrafts has launched, or does all at once. Only the first rank writes to
  /// `drafts`.
  void Propose(std::span<const DraftRequest> requests, int32_t depth, MatrixView<TokenRef> drafts);
  /// What the drafts of a request in `slot` are drawn with; null: they are the most likely tokens.
  const SamplingParams* DraftSampling(const RequestSlot& slot) const;
  /// Whether the distributions that drafts are drawn from are kept for verification.
  bool KeepsDraftProbs() const;

  /// Of its threads; see ThreadPool.
  uint64_t progress() const { return parts_.pool->progress(); }
  /// Where there are several ranks: see Communicator.
  void End(const std::string& reason) {
    if (parts_.ranks) parts_.ranks->End(reason);
  }
  void ThrowIfEnded() {
    if (parts_.ranks) parts_.ranks->ThrowIfEnded();
  }

  double kernel_seconds() const;
  ReplayCounts passes() const;

 private:
  bool is_first() const { return index() == 0; }
  const RankPlace& cache_place() const { return attention_.cache_place(); }
  /// The entries of a page that the rank has.
  std::span<std::byte> CachePage(int32_t page) {
    return parts_.cache->page(OwnPage(page, cache_place().ranks));
  }
  Tensor drafter_reads() const { return taps_.empty() ? hidden_ : tapped_; }
  /// On ranks whose results nobody reads: waits for the results of LaunchVerify, up to the last
  /// `left`.
  void WaitForUnread(size_t left);
  /// On ranks whose results nobody reads: lets the host read the tokens that the first one's has.
  void ReadTokens();

  RankParts parts_;
  LogitsPass logits_pass_;
  AttentionPlan attention_;
  std::unique_ptr<StepInputs> inputs_;
  // Kept to reuse memory.
  std::unique_ptr<RowMemory> hidden_memory_;
  std::unique_ptr<RowMemory> tapped_memory_;
  Tensor hidden_;  // [rows of inputs_, the output width]
  Tensor tapped_;  // [rows of inputs_, taps * hidden], of the layers that the drafter reads
  std::vector<LayerTap> taps_;
  RoutedShape routed_;
  Buffer experts_on_device_;      // [at least rows of inputs_, layers, top_k]
  std::vector<int16_t> experts_;  // [rows of inputs_, layers, top_k]; empty: not read yet
  std::optional<Ticket> launched_drafts_;
  std::vector<TokenRef> drafts_;  // of a rank whose drafts nobody reads
  std::deque<Ticket> unread_;     // of a rank whose results nobody reads: not waited for
};

}  // namespace outrider
