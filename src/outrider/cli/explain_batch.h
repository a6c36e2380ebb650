// What `outrider explain --batch` prints: the layout of a step, and which kernel takes which rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outrider/attention/attention_plan.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/options/batch_items.h"

namespace outrider::cli {

/// A described batch laid out and split as an engine would. A decode item of up to 1 + k rows has
/// one known token, the others are drafts; one of more rows has known tokens only, which are
/// computed again after a preemption.
class ExplainedBatch {
 public:
  ExplainedBatch(std::span<const BatchItem> items, AttentionBackend backend, KvCacheForm form,
                 RowPaths paths, int32_t k, int32_t block_size);
  ExplainedBatch(const ExplainedBatch&) = delete;
  ExplainedBatch& operator=(const ExplainedBatch&) = delete;

  /// Tables for people.
  std::string Text() const;
  /// One object, ending in a newline; its keys are in docs/cli.md.
  std::string Json() const;

 private:
  /// The item that rows belong to, as written.
  const std::string& ItemText(const RequestRows& rows) const {
    return items_[static_cast<size_t>(rows.work_index)].text;
  }
  std::string LayoutTable() const;
  std::string SplitTable() const;

  std::vector<BatchItem> items_;
  KvCacheForm form_;
  int32_t k_;
  BatchLayout layout_;
  std::vector<int32_t> tokens_;  // of all requests: what they are does not matter
  std::vector<int32_t> blocks_;  // likewise
  AttentionPlan plan_;
};

}  // namespace outrider::cli
