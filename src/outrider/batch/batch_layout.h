// What one step runs, row by row. Built once per step, read by model, attention, sampler and
// drafter: nobody else computes an offset.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "outrider/batch/token_ref.h"
#include "outrider/kv/cache_group.h"

namespace outrider {

/// The form that a request's rows run in: generated tokens absorbed, prompt tokens expanded, also
/// when they are computed again after a preemption.
enum class Phase : uint8_t {
  kDecode,
  kPromptChunk,  // more of the prompt follows (or its next token is known already): nothing is
                 // sampled
  kPromptEnd,    // the last row of the prompt is sampled
};

/// A request's running state, where the network has linear attention.
struct StateWork {
  const StateTables* tables = nullptr;  // null: the rows read none
  int32_t tokens = 0;     // that the state to start from holds, a multiple of kStateBlock
  bool restores = false;  // it lies in tables->restored, else in tables->state
};

/// One request's part of a step, as the plan asks for it.
struct RequestWork {
  int32_t slot = 0;  // request slot
  Phase phase = Phase::kDecode;
  int32_t context_length = 0;  // tokens whose KV is in the cache
  TokenRefs tokens;            // tokens known to be right, from position context_length on
  TokenRefs draft_tokens;      // guesses that follow them (kDecode only)
  bool samples = true;         // false: no row of this request is sampled
  /// By cache group; covers context_length + tokens + draft_tokens.
  std::span<const std::vector<int32_t>> block_tables;
  bool prompt_logits = false;  // prompts only: rows that are not sampled need logits too
  StateWork state = {};
};

/// One request in row order.
struct RequestRows {
  int32_t slot = 0;
  Phase phase = Phase::kDecode;
  int32_t first_row = 0;
  int32_t query_length = 0;
  int32_t context_length = 0;
  int32_t num_drafts = 0;  // the last num_drafts rows hold draft tokens
  int32_t first_logits_row = 0;
  int32_t num_logits_rows = 0;  // 0, or 1 + num_drafts: the last known token and each draft
  /// The first rows of a prompt chunk that need logits without being sampled (prompt_logprobs):
  /// all of them that are not sampled, or 0. They are not among the layout's logits_rows.
  int32_t num_prompt_logits_rows = 0;
  int32_t work_index = 0;                              // position of this request in the work list
  const std::vector<int32_t>* block_tables = nullptr;  // by cache group
  StateWork state;

  const int32_t* block_table(int32_t group) const { return block_tables[group].data(); }
  /// The row that holds `position`.
  int32_t RowOf(int32_t position) const { return first_row + position - context_length; }
};

/// Rows of a step: decode requests first, sorted by query length, then prompts in the order given.
class BatchLayout {
 public:
  explicit BatchLayout(std::vector<CacheGroupSpec> groups);
  /// Over one full-history group.
  explicit BatchLayout(int32_t tokens_per_block)
      : BatchLayout(FullHistoryCache(1, tokens_per_block).groups) {}

  /// Replaces the layout. The block tables of `work` must outlive it. Requests with no tokens are
  /// a bug; reuses memory, so a steady state allocates nothing.
  void Assign(std::span<const RequestWork> work);

  std::span<const CacheGroupSpec> groups() const { return groups_; }
  std::span<const RequestRows> requests() const { return requests_; }
  int32_t num_rows() const { return static_cast<int32_t>(tokens_.size()); }

  std::span<const TokenRef> tokens() const { return tokens_; }       // [rows]
  std::span<const int32_t> positions() const { return positions_; }  // [rows]
  /// [rows] the cache slots of a group that the rows write: page * tokens_per_block + offset.
  std::span<const int64_t> slot_mapping(int32_t group) const {
    return slot_mapping_[static_cast<size_t>(group)];
  }
  std::span<const int32_t> logits_rows() const { return logits_rows_; }  // rows that are sampled

 private:
  void Sort(std::span<const RequestWork> work);
  RequestRows PlaceRequest(const RequestWork& work, int32_t first_row,
                           int32_t first_logits_row) const;
  void FillRows(const RequestWork& work, const RequestRows& rows);
  void FillSlots(const RequestRows& rows, size_t group);

  std::vector<CacheGroupSpec> groups_;
  std::vector<std::pair<size_t, size_t>> order_;  // of rows: query length, index in the work list
  std::vector<RequestRows> requests_;
  std::vector<TokenRef> tokens_;
  std::vector<int32_t> positions_;
  std::vector<std::vector<int64_t>> slot_mapping_;  // by group
  std::vector<int32_t> logits_rows_;
};

}  // namespace outrider
