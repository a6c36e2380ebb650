// Which kernel runs which rows of a step. Made once per step from the layout; every layer reads
// what its own path needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/attention/attention_backend.h"
#include "outrider/attention/row_path.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/batch/decode_split.h"
#include "outrider/kv/cache_form.h"
#include "outrider/parallel/share.h"

namespace outrider {

class AttentionPlan {
 public:
  /// `threshold`: rows that a decode request has at most, 1 + k. `paths`: of the layers that read
  /// the plan. Where some of them run all rows alike, the backend is kRagged. cache_place: which
  /// rank this is where each keeps the cache of its own requests and runs their attention; else the
  /// default.
  AttentionPlan(AttentionBackend backend, int32_t threshold, RowPaths paths = KvCacheForm::kLatent,
                const RankPlace& cache_place = {});

  /// Replaces the plan. `layout` must outlive it. Reuses memory.
  void Assign(const BatchLayout& layout);

  AttentionBackend backend() const { return backend_; }
  RowPaths paths() const { return paths_; }
  const RankPlace& cache_place() const { return cache_place_; }
  /// An empty plan for layouts that have this rank's rows only.
  AttentionPlan OfOwnRows() const { return {backend_, threshold_, paths_}; }
  /// An empty plan of the same steps for other layers.
  AttentionPlan Of(RowPaths paths) const { return {backend_, threshold_, paths, cache_place_}; }

  /// For layers in which all rows take one path (RowPaths::ForAll): every request, whatever its
  /// phase and length. Empty where there are no such layers.
  std::span<const RequestRows> one_path() const { return one_path_; }

  // For layers in which a row's path follows its role (RowPaths::ByRole). Empty where there are no
  // such layers.

  /// The calls' requests for the decode kernel: consecutive rows in rising order, from
  /// first_decode_row() on. A run is a decode request, or rows of one: the backends that keep
  /// exactness leave nothing over, so a request that is longer than their kernel takes (tokens that
  /// are computed again after a preemption) is cut.
  std::span<const RequestRows> decode_runs() const { return decode_runs_; }
  int32_t first_decode_row() const;
  int32_t num_decode_rows() const { return num_decode_rows_; }
  /// Rows per run of a uniform or single kernel's call; runs may be shorter only with kUniformPad.
  /// 0 for a ragged kernel, and without runs.
  int32_t query_length() const { return query_length_; }

  /// Decode requests for the expanded form.
  std::span<const RequestRows> left_over() const { return left_over_; }
  /// Prompt chunks, for the expanded form.
  std::span<const RequestRows> prompts() const { return prompts_; }

 private:
  AttentionBackend backend_;
  int32_t threshold_;
  RowPaths paths_;
  RankPlace cache_place_;
  int32_t num_decode_rows_ = 0;
  int32_t query_length_ = 0;
  std::vector<RequestRows> runs_;  // of all requests, before the split
  DecodeSplit split_;
  std::span<const RequestRows> one_path_;
  std::vector<RequestRows> decode_runs_;
  std::vector<RequestRows> left_over_;
  std::vector<RequestRows> prompts_;
};

}  // namespace outrider
