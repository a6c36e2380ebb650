// A draft model: what runs rows for a drafter, as a Network does for the target. Which rows run
// when is the strategy's to say (outrider/draft/). Stateless between calls but for the KV cache,
// where its layers follow the target's.
//
// What the kinds of draft models answer:
//
//               MTP modules              EAGLE-3                     DSpark
//   taps        none: the target's       the outputs of three        the outputs of three
//               output                   layers                      layers
//   ReadTarget  the rows as they are     fc of the taps              the taps as they are
//   modules     one layer each           1: one layer                1: its stages
//   Forward     hands on its output      hands on its output, before main_proj of the taps, then
//               (normed in DeepSeek-V3)  the last norm or behind it  the rows of a block, which
//                                                                    see each other, from masks
//   Draw        the target's head or     a head of its own, whose    the target's head and a bias
//               one of its own           tokens a map turns into     by the token before; gives
//                                        the target's                confidences (BlockDraftModel)
//   strategy    repeated or chain        repeated                    block
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "outrider/attention/attention_plan.h"
#include "outrider/networks/network.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// Drafts to be drawn: draft i from hidden.row(rows[i]).
struct DraftDraws {
  int32_t m = 0;  // the module that made `hidden`
  Tensor hidden;  // [rows, width]
  std::span<const int32_t> rows;
  std::span<const TokenRef> tokens_before;  // of the target's vocabulary
  std::span<const DrawRequest> requests;    // positions and distributions are the target's
};

class DraftModel {
 public:
  virtual ~DraftModel() = default;
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  const Device& device() const { return device_; }
  Context MakeContext(DType operand_dtype = DType::kF32) {
    return {device_, *arena_, operand_dtype};
  }

  /// How passes divide their rows: to be copied, and assigned their layouts.
  const AttentionPlan& attention() const { return attention_; }

  /// The target's layers whose outputs it reads, rising (LayerTap). Empty: it reads what
  /// Network::Forward gives.
  virtual std::span<const int32_t> taps() const { return {}; }

  /// Numbers of a row that its modules write, and read of each other.
  virtual int32_t width() const = 0;

  /// Numbers of a row that module 0 reads, as ReadTarget gives them.
  virtual int32_t input_width() const { return width(); }

  /// Tokens of the target.
  virtual int32_t vocab_size() const = 0;

  virtual int32_t num_modules() const = 0;

  /// Its first layer in the KvCache; the others follow. All are in one cache group.
  virtual int32_t first_cache_layer() const = 0;

  /// What module 0 reads of the rows of a step, [rows, input_width], until the next call or in the
  /// memory of `target`. target [rows, the target's width]: its output, or with taps
  /// [rows, taps * the target's width], side by side. Row-invariant, as all operations.
  virtual Tensor ReadTarget(Tensor target) = 0;

  virtual void Forward(const ModulePass& pass, KvCache& cache) = 0;

  /// tokens[i] = draft i: a token of the target's vocabulary.
  virtual void Draw(const DraftDraws& draws, std::span<TokenRef> tokens) = 0;

  /// Seconds spent in the functions above so far, where the target's network does not count them.
  virtual double busy_seconds() const { return 0; }

  /// Its passes so far, where the target's network does not count them.
  virtual ReplayCounts replay_counts() const { return {}; }

  /// As Network::FitWorkSpace.
  void FitWorkSpace() { arena_->Fit(); }

  /// Copies rows of its device.
  void CopyRows(Tensor from, Tensor to, const RowCopies& copies) {
    device_.ops.CopyRows(MakeContext(), from, to, copies);
  }
  /// As Ops::ShareRows.
  void ShareRows(Tensor x, std::span<const RankRun> runs) {
    device_.ops.ShareRows(MakeContext(), x, runs);
  }

 protected:
  DraftModel(Device device, AttentionPlan attention)
      : device_(device), attention_(std::move(attention)), arena_(device.ops.MakeArena()) {}

 private:
  Device device_;
  AttentionPlan attention_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace outrider
