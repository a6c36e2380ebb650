// What operations read of the rows of a step: tokens, positions, the cache entries that rows write
// and the keys that they see, and which attention runs them. A device has its own kind, in its own
// memory. They are made once per step or drafting pass, and all layers read them.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/attention/attention_plan.h"
#include "outrider/base/error.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/batch/rows_of_rank.h"
#include "outrider/ops/row_memory.h"

namespace outrider {

/// Whether a device may count more rows than there are.
enum class RowCount {
  kExact,
  /// The device may round the number of rows up, so that steps of nearly as many rows are alike and
  /// it can repeat what it recorded of one (ops/replayer.h). The rows that are added read token 0
  /// and write nothing; of what is computed from them nothing is read.
  kRounded,
};

/// Rows [first, first + count).
struct RowRange {
  int32_t first = 0;
  int32_t count = 0;
};

class StepInputs;

/// The part of a step whose attention this rank runs, where each keeps the cache of its own
/// requests (AttentionPlan::cache_place).
struct OwnRows {
  const StepInputs& inputs;       // of these rows, over the rank's own pages; it may have none
  const RowCopies& in;            // from the rows of the step to these
  const RowCopies& out;           // and back
  std::span<const RankRun> runs;  // all rows of the step
};

/// Without rows until Assign. The numbers below are what the host knows: upper bounds. A device may
/// have the true ones in its memory; its operations then leave the rows behind them alone.
class StepInputs {
 public:
  virtual ~StepInputs() = default;
  StepInputs(const StepInputs&) = delete;
  StepInputs& operator=(const StepInputs&) = delete;

  /// Replaces the rows by those of `layout`, from which `plan` was made. Both must stay as they are
  /// while the inputs are read. Reuses memory, so a steady state allocates nothing.
  virtual void Assign(const BatchLayout& layout, const AttentionPlan& plan, RowCount count) = 0;

  /// Assigns rows before the host knows how far requests have got. Row r runs at its position in
  /// the layout minus the number that the device keeps at places[r] (negative: no shift). Rows that
  /// may shift come first; each is a decode request of one row. Only devices that keep tokens
  /// (tokens_on_device.h) have it.
  virtual void AssignMoved(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                           std::span<const int32_t> places);

  /// The next draft inputs: the same rows, each with another token. Row r gets the token that row
  /// sources[r] had or, where sources[r] is negative, tokens[-1 - sources[r]]. sources [rows of the
  /// layout].
  virtual void ShiftTokens(std::span<const int32_t> sources, TokenRefs tokens) = 0;

  /// Null: attention of all rows runs here.
  virtual const OwnRows* own() const { return nullptr; }
  /// The rows whose attention runs here.
  const StepInputs& attended() const { return own() == nullptr ? *this : own()->inputs; }

  int32_t num_rows() const { return num_rows_; }
  /// kAbsorbed and kExpanded: MlaOps::DecodeAttention runs decode_rows(), PromptAttention the
  /// others. kPerHead: PerHeadOps::PerHeadAttention runs all rows. kListed: those of SparseOps and
  /// CompressedOps.
  RowPaths paths() const { return paths_; }
  RowRange decode_rows() const { return decode_rows_; }
  /// Whether there are rows for Ops::PromptAttention.
  bool has_expanded_rows() const { return has_expanded_rows_; }

 protected:
  StepInputs() = default;

  /// Fills the numbers above.
  void AssignBounds(const BatchLayout& layout, const AttentionPlan& plan) {
    num_rows_ = layout.num_rows();
    paths_ = plan.paths();
    decode_rows_ = {plan.first_decode_row(), plan.num_decode_rows()};
    has_expanded_rows_ = !plan.prompts().empty() || !plan.left_over().empty();
  }

  /// There are no prompt rows; all count `rows`, the added ones included.
  void RoundRowsTo(int32_t rows) {
    num_rows_ = rows;
    if (!paths_.AreOne()) decode_rows_.count = rows;
  }

 private:
  int32_t num_rows_ = 0;
  RowPaths paths_ = KvCacheForm::kLatent;
  RowRange decode_rows_;
  bool has_expanded_rows_ = false;
};

inline void StepInputs::AssignMoved(const BatchLayout& /*layout*/, const AttentionPlan& /*plan*/,
                                    RowCount /*count*/, std::span<const int32_t> /*places*/) {
  OUTRIDER_CHECK(false, "a device that keeps no tokens");
}

}  // namespace outrider
