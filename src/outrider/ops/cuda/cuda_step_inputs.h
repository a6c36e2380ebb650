// The GPU's StepInputs: arrays in its memory, copied there once per step. With RowCount::kRounded
// their places depend only on the number of rows, so that a recorded step can be repeated.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/rows/move_rows.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/ops/cuda/staged_arrays.h"
#include "outrider/ops/cuda/state_inputs.h"
#include "outrider/ops/cuda/step_results.h"
#include "outrider/ops/host_tokens.h"
#include "outrider/ops/replayer.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {
template <typename Inputs>
class OwnPart;
}

namespace outrider::cuda {

/// Requests whose rows follow each other, as kernels for any query lengths read them.
struct DecodeRequests {
  int count = 0;  // those without rows included, which rounded steps end with
  int first_row = 0;
  int num_rows = 0;
  int max_seq_len = 0;  // of a window's group that of this step alone: no part of a RunKey
  // On the device.
  const int32_t* query_start_loc = nullptr;  // [count + 1], from the first row on
  const int32_t* seq_lens = nullptr;         // [count]
  const int32_t* block_tables = nullptr;     // [count, block_table_stride]
  int block_table_stride = 0;
  // Block b stands in column b & block_table_mask. CacheInputs::all: tables of windows are rings
  // with room for the blocks that rows read or write, however long their requests are.
  int block_table_mask = -1;
};

/// Pieces of prompts that one call of attention runs, whose rows follow each other.
struct PromptGroup {
  int count = 0;
  int first_row = 0;
  int num_rows = 0;
  int num_keys = 0;     // of all, their own rows included
  int max_queries = 0;  // of a prompt
  int max_keys = 0;
  // On the device.
  const int32_t* query_start_loc = nullptr;  // [count + 1], from the first row on
  const int32_t* key_start_loc = nullptr;    // [count + 1]
  const int32_t* block_tables = nullptr;     // [count, block_table_stride]
  int block_table_stride = 0;
};

/// What the layers of a cache group read. Blocks are numbered as the pool's pages: layers whose
/// entries differ in width share them, as kernels are told how far a layer's blocks are apart.
struct CacheInputs {
  const int64_t* slots = nullptr;  // [rows] on the device; negative: the row writes nothing
  // By path; without requests where no layer takes it.
  DecodeRequests all;                // listed: all rows
  DecodeRequests decode;             // absorbed, per head: generated rows
  DecodeRequests per_head_prompts;   // per head: the other rows
  std::vector<PromptGroup> prompts;  // expanded
};

/// Where rows are in a rounded step whose requests are divided among ranks. Every rank has as many
/// places for its own rows, so that such a step has one shape for all; numbers of rows are arrays
/// in the device's memory. Places that are no row's have the number of a row.
struct OwnPlaces {
  int32_t count = 0;              // of each rank; 0: the step is not rounded, or not divided
  const int32_t* rows = nullptr;  // [count] the row of the step in each place of this rank
  const int32_t* side_by_side = nullptr;  // [rows of the step] see RowsOfRank::side_by_side
};

/// How many rows a step of `rows` has with RowCount::kRounded: at most an eighth more.
int32_t RoundedRows(int32_t rows);

class CudaStepInputs : public StepInputs {
 public:
  /// kept: numbers by place, which Assign is told.
  CudaStepInputs(cudaStream_t stream, const StepResults& kept);
  ~CudaStepInputs() override;

  void ShiftTokens(std::span<const int32_t> sources, TokenRefs tokens) override;
  const OwnRows* own() const override;

  const int32_t* token_ids() const { return token_ids_; }  // [rows] on the device, of TokenRefs
  const int32_t* positions() const { return positions_; }  // [rows] on the device
  /// [1] on the device: rows but for those that were added. Null where none were.
  const int32_t* true_rows() const { return rounded_ ? true_rows_ : nullptr; }
  /// What the layers of a cache's group read.
  const CacheInputs& Of(const LayerCache& cache) const {
    return groups_.at(static_cast<size_t>(cache.group)).inputs;
  }
  /// What the rows do to running states; without requests where the network keeps none.
  const KdaStep& states() const { return states_.step(); }
  const OwnPlaces& own_places() const { return own_places_; }
  /// Another number after every Assign, of all objects.
  uint64_t serial() const { return serial_; }

  /// Whether runs over these inputs may be recorded.
  bool rounded() const { return rounded_; }
  /// Adds all that operations read of these inputs on the host.
  void AddTo(RunKey& key) const;

 protected:
  void AssignRows(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                  std::span<const int32_t> places) override;

 private:
  /// Where arrays of requests begin.
  struct RequestArrays {
    size_t query_starts;
    size_t lengths;  // of decode requests: keys; of prompts: where their keys start
    size_t tables;
  };
  struct Group {
    int32_t block_size = 0;  // tokens: blocks of layers with fewer entries have as many
    CacheInputs inputs;
    size_t slots_at = 0;
    RequestArrays all_at = {};
    RequestArrays decode_at = {};
    RequestArrays per_head_prompts_at = {};
    std::vector<RequestArrays> prompts_at;
  };
  struct OwnPlacesAt {
    size_t rows = 0;
    size_t side_by_side = 0;
  };

  /// Divides the rows among ranks and assigns the own ones.
  void AssignOwn();
  /// Adds the arrays of own_places_, if there are any.
  OwnPlacesAt AddOwnPlaces();
  /// Copies the rows, and what is read of them in every group.
  void Copy();
  void AddGroup(size_t index);
  /// Adds what is read of these requests of a group. ring: columns of their tables if they are
  /// rings; 0: they are not. last: no array whose place matters comes behind.
  RequestArrays AddRequests(size_t index, std::span<const RequestRows> requests, int32_t ring,
                            bool last, DecodeRequests& made);
  /// Columns of a ring for the blocks that a request's rows read or write; 0: the group's tables
  /// have all blocks.
  int32_t RingColumns(size_t index, std::span<const RequestRows> requests) const;
  void Place(const RequestArrays& at, DecodeRequests& requests) const;
  /// Whether layers read CacheInputs::decode.
  bool HasDecodes() const { return paths().ByRole() || paths().Has(RowPath::kPerHead); }
  /// Requests whose rows are generated; they come first. Looks at all of them.
  std::span<const RequestRows> Generated() const;
  /// Adds a group of the first of `prompts`, and returns how many they are.
  size_t AddPrompts(size_t index, std::span<const RequestRows> prompts);
  /// Where the arrays of a group are on the device.
  void Place(Group& group) const;
  /// Notes which rows move, and by what.
  void AssignMoves(std::span<const int32_t> places);
  /// Moves rows on the device, whose places and requests are there.
  void Move(size_t places_at, size_t requests_at) const;
  /// Moves rows with the arrays of the requests of a group; params has the rest.
  void Move(MoveRowsParams& params, const RequestArrays& at, const DecodeRequests& requests) const;

  cudaStream_t stream_;
  const StepResults& kept_;
  const uint64_t number_;  // of the object, that no other has or had
  uint64_t serial_ = 0;
  bool rounded_ = false;
  const BatchLayout* layout_ = nullptr;
  const AttentionPlan* plan_ = nullptr;
  std::unique_ptr<OwnPart<CudaStepInputs>> part_;  // null: attention of all rows runs here
  OwnPlaces own_places_;
  int32_t places_ = 0;  // that these rows are rounded to, of a part; 0: as RoundedRows says
  HostTokens tokens_;
  std::vector<int32_t> moved_places_;    // by row; empty: all rows lie where the layout says
  std::vector<int32_t> moved_requests_;  // by row; empty: row r is all of request r
  // Arrays of the rows, then those of the groups.
  StagedArrays arrays_;
  size_t tokens_at_ = 0;
  const int32_t* token_ids_ = nullptr;
  int32_t* positions_ = nullptr;
  const int32_t* true_rows_ = nullptr;
  StateInputs states_;
  std::vector<Group> groups_;
  // Kept to reuse memory.
  std::vector<int32_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> tables_;
};

/// Those that CudaOps::MakeStepInputs made.
inline const CudaStepInputs& Cast(const StepInputs& inputs) {
  return static_cast<const CudaStepInputs&>(inputs);
}

}  // namespace outrider::cuda
