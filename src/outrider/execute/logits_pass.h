// From a step's hidden rows to tokens: logits a tile of requests at a time, verified or scored.
// Where no request of a tile needs more than the likeliest token of its rows, none are stored.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/execute/request_slot.h"
#include "outrider/networks/network.h"
#include "outrider/sampling/verifier.h"

namespace outrider {

/// A step after the model's forward pass.
struct LogitsInput {
  const BatchLayout& layout;
  MatrixView<const float> hidden;  // [layout.num_rows(), hidden]
  std::span<const RequestWork> work;
  std::span<RequestSlot* const> slots;  // by the index of the work

  RequestSlot& slot(const RequestRows& rows) const {
    return *slots[static_cast<size_t>(rows.work_index)];
  }
};

class LogitsPass {
 public:
  LogitsPass(Network& model, ThreadPool& pool, const Verifier& verifier)
      : model_(model), pool_(pool), verifiers_(static_cast<size_t>(pool.size()), verifier) {}

  /// Replaces *verified[i], by the index of the work, for requests that have rows of logits.
  void Verify(const LogitsInput& input, std::span<VerifiedTokens* const> verified);

  /// Adds the log-probabilities of prompt tokens to the slots of requests that ask for them.
  void ScorePrompts(const LogitsInput& input);

 private:
  void VerifyTile(const LogitsInput& input, std::span<const RequestRows> requests,
                  bool needs_logits, std::span<VerifiedTokens* const> verified);
  bool NeedsLogits(const RequestSlot& slot) const;
  /// The masks of a tile's rows of logits; those of requests with a grammar are filled.
  MatrixView<const uint32_t> FillMasks(const LogitsInput& input,
                                       std::span<const RequestRows> requests, int32_t num_rows);
  void ScoreRows(const LogitsInput& input, const RequestRows& rows, RequestSlot& slot);

  Network& model_;
  ThreadPool& pool_;
  std::vector<Verifier> verifiers_;  // one per thread, all alike
  // Kept to reuse memory.
  std::vector<float> logits_;               // [tile rows, vocab]
  std::vector<int32_t> likeliest_;          // [tile rows], where no request needs logits
  std::vector<uint32_t> masks_;             // [tile rows, MaskWords(vocab)]
  std::vector<const RequestRows*> masked_;  // requests of the tile that have a grammar
  std::vector<int32_t> score_rows_;         // [tile rows]
};

}  // namespace outrider
