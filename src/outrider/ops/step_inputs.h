// The rows of a step as operations read them: tokens, positions, the cache entries that rows write,
// the keys that they see, and which attention runs them. A device has its own kind, in its own
// memory. Inputs are assigned once per step or drafting pass; all layers read them.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/attention/attention_plan.h"
#include "outrider/base/error.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/batch/rows_of_rank.h"
#include "outrider/ops/row_memory.h"

namespace outrider {

/// Whether a device may add rows to a step.
enum class RowCount {
  kExact,
  /// The device may round the number of rows up. Steps of nearly equal sizes then have one shape,
  /// and a recording of one step can be repeated for the next (ops/replayer.h). Added rows read
  /// token 0 and write no cache entries. Their results are not read.
  kRounded,
};

/// Rows [first, first + count).
struct RowRange {
  int32_t first = 0;
  int32_t count = 0;
};

class StepInputs;

/// The rows of a step whose attention this rank runs. Ranks have such rows where each keeps the
/// cache of its own requests (AttentionPlan::cache_place).
struct OwnRows {
  /// Of the own rows, over the rank's own pages; may have no rows. A step that a device has rounded
  /// has rounded own rows, too: they are moved by Ops::TakeOwnRows and ShareOwnRows alone.
  const StepInputs& inputs;
  const RowCopies& in;            // from the rows of the step to the own rows
  const RowCopies& out;           // from the own rows to the rows of the step
  std::span<const RankRun> runs;  // all rows of the step, by the rank that has them
};

/// Has no rows until Assign. Numbers of rows are upper bounds, as the host knows them. A device may
/// have the true numbers in its memory; its operations then skip the rows behind them.
class StepInputs {
 public:
  virtual ~StepInputs() = default;
  StepInputs(const StepInputs&) = delete;
  StepInputs& operator=(const StepInputs&) = delete;

  /// Replaces the rows by those of `layout`, from which `plan` was made. Both must stay as they are
  /// while the inputs are read. Reuses memory, so a steady state allocates nothing.
  ///
  /// With places, rows run where only the device knows how far requests have got: row r at its
  /// position in the layout minus the number that the device keeps at places[r] (negative: no
  /// shift). Rows that may shift come first; they are decode requests', each with one place for all
  /// of its rows. Only devices that keep tokens (tokens_on_device.h) take places.
  void Assign(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
              std::span<const int32_t> places = {}) {
    AssignRows(layout, plan, count, places);
  }

  /// Gives the rows other tokens, for a drafter's next pass. Row r gets the token that row
  /// sources[r] had or, where sources[r] is negative, tokens[-1 - sources[r]]. sources [rows of the
  /// layout].
  virtual void ShiftTokens(std::span<const int32_t> sources, TokenRefs tokens) = 0;

  /// Null: attention of all rows runs here.
  virtual const OwnRows* own() const { return nullptr; }
  /// The rows whose attention runs here.
  const StepInputs& attended() const { return own() == nullptr ? *this : own()->inputs; }

  int32_t num_rows() const { return num_rows_; }
  /// Of the layers that read these inputs. kAbsorbed and kExpanded: MlaOps::DecodeAttention runs
  /// decode_rows(), MlaOps::PromptAttention the others. kPerHead: PerHeadOps::PerHeadAttention runs
  /// all. kListed: SparseOps or CompressedOps run all.
  RowPaths paths() const { return paths_; }
  RowRange decode_rows() const { return decode_rows_; }
  /// Whether there are rows for MlaOps::PromptAttention.
  bool has_expanded_rows() const { return has_expanded_rows_; }

 protected:
  StepInputs() = default;

  /// See Assign.
  virtual void AssignRows(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                          std::span<const int32_t> places) = 0;

  /// Sets num_rows, paths, decode_rows and has_expanded_rows.
  void AssignBounds(const BatchLayout& layout, const AttentionPlan& plan) {
    num_rows_ = layout.num_rows();
    paths_ = plan.paths();
    decode_rows_ = {plan.first_decode_row(), plan.num_decode_rows()};
    has_expanded_rows_ = !plan.prompts().empty() || !plan.left_over().empty();
  }

  /// Sets the number of rows, added ones included. There are no prompt rows.
  void RoundRowsTo(int32_t rows) {
    num_rows_ = rows;
    if (paths_.ByRole()) decode_rows_.count = rows;
  }

 private:
  int32_t num_rows_ = 0;
  RowPaths paths_;
  RowRange decode_rows_;
  bool has_expanded_rows_ = false;
};

}  // namespace outrider
