// A drafter guesses the next tokens of each request after every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/draft/draft_length_policy.h"
#include "outrider/networks/draft_model.h"
#include "outrider/ops/ticket.h"
#include "outrider/sampling/sampling_params.h"

namespace outrider {

/// Which rows of a step a drafter's modules run first. Both forms give equal drafts and equal
/// state.
enum class DraftForm : uint8_t {
  kCompacted,  // only the rows that verification accepted: the least work
  kPadded,     // all rows of the step: shapes are known before verification, as a GPU graph needs
};

/// Which of the target's hidden rows a drafter with modules keeps (TargetHiddenRows).
enum class KeptRows : uint8_t {
  kAll,   // the rows of every cache block, so that modules may stop and catch up later
  kLast,  // the last few rows of each slot; all modules run after every step
};

/// Which positions of the cache a drafter touches beside the rows of a step.
struct DrafterReach {
  /// How many positions beyond the frontier Propose writes.
  int32_t lookahead = 0;
  /// How many positions before the first new row Propose may run again. They read their windows.
  int32_t rerun_tokens = 0;
  /// How many tokens after a position its cached entries depend on. Once these tokens are known,
  /// the entries are final, and requests with the same tokens can share them.
  int32_t tokens_ahead = 0;
};

/// One request after a step, as a drafter sees it. The step computed the target's hidden rows of
/// positions first_position .. frontier, and after them those of rejected drafts.
struct DraftRequest {
  int32_t slot = 0;
  TokenRefs tokens;  // all known tokens, those just sampled included
  int32_t prompt_length = 0;
  int32_t first_position = 0;
  int32_t frontier = 0;        // last position whose token is known and whose hidden row exists
  int32_t first_row = 0;       // row of first_position in the step's hidden rows
  int32_t num_rows = 0;        // rows of the request in the step, rejected drafts included
  int32_t num_drafts = 0;      // wanted, at most `depth` of Propose; 0: none
  bool always_drafts = false;  // a lookup that finds nothing gives the last token again
  std::span<const std::vector<int32_t>> block_tables = {};  // by cache group
  /// Null: drafts are the most likely tokens. Else they are drawn as the target draws (temperature
  /// > 0). Without draft_probs they are drawn with the target's noise, so that both often agree.
  /// With draft_probs they have noise of their own, as rejection sampling needs it, and the
  /// distributions that they were drawn from are written there, [num_drafts, vocab].
  const SamplingParams* sampling = nullptr;
  float* draft_probs = nullptr;
  uint64_t seed = 0;
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  /// The largest number of drafts per request, k.
  virtual int32_t max_drafts() const = 0;

  /// The target's layers whose outputs Propose reads (LayerTap), rising. Empty: the target's
  /// output.
  virtual std::span<const int32_t> taps() const { return {}; }

  virtual DrafterReach reach() const = 0;

  /// Whether each step must come to Propose. If not, it looks at the tokens alone, and a step
  /// behind which no drafts are wanted passes it by.
  virtual bool keeps_state() const { return true; }

  /// Begins Propose before the host knows which drafts of a step were right. The device knows it
  /// (VerifyPlaces). Requests are described as if all of their drafts were right, with the tokens
  /// that their rows drew (SlotPlaces::drawn); num_drafts is an upper bound. The next call must be
  /// Wait. Nothing: the drafter has not begun.
  virtual std::optional<Ticket> Launch(std::span<const DraftRequest> /*requests*/,
                                       int32_t /*depth*/, Tensor /*target*/) {
    return std::nullopt;
  }

  /// Whether Launch has all entries of the step's rows written, so that requests whose drafts
  /// nobody wants need not come to Wait or Propose.
  virtual bool launch_finishes_entries() const { return false; }

  /// Ends what Launch has begun, with the results of Propose. requests: those of Launch, or some of
  /// them in their order, as the host knows them now.
  virtual void Wait(Ticket ticket, std::span<const DraftRequest> requests,
                    MatrixView<TokenRef> drafts) = 0;

  /// Guesses what follows each request's last known token.
  ///
  /// drafts [requests, k]: row i gets up to num_drafts drafts of request i; a TokenRef() stands
  /// behind the last. They may be on the device until the host reads them (tokens_on_device.h).
  ///
  /// target: the target's output for the rows of the step, [rows, hidden]; with taps the outputs of
  /// those layers side by side, [rows, taps * hidden]. Since a slot's Reset, each of its positions
  /// must be in exactly one call, in order.
  ///
  /// depth: a chain runs its first `depth` modules; a repeated module runs if depth > 0. Modules
  /// that do not run fall behind and catch up when they run again. The entries of a module that has
  /// run equal those of a recomputation from scratch. With KeptRows::kLast all modules run,
  /// whatever `depth` is.
  virtual void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
                       MatrixView<TokenRef> drafts) = 0;

  /// Seconds spent in a draft model so far, where the target's network does not count them.
  virtual double busy_seconds() const { return 0; }

  /// Passes of a draft model so far, where the target's network does not count them.
  virtual ReplayCounts replay_counts() const { return {}; }

  /// Says how long steps take, once that is measured (MeasureStepTimes). A drafter may then leave
  /// out drafts that do not pay.
  virtual void SetStepTimes(const StepTimes& /*times*/) {}

  /// Says that a slot has a new request, or one that comes back after a preemption. Its blocks
  /// below position `computed` come from the prefix cache, whole. They hold the target's entries,
  /// and those of the modules that have finished them (TargetHiddenRows).
  virtual void Reset(int32_t slot, int32_t computed) = 0;

  // A drafter may keep rows for every page of the cache. They leave the device and come back with
  // the page's bytes (HostCache).

  /// Bytes that the drafter keeps for a page; 0: nothing.
  virtual int64_t page_bytes() const { return 0; }
  /// `to` and `from` have page_bytes() bytes, in the host's memory.
  virtual void ReadPage(int32_t /*page*/, std::span<std::byte> /*to*/) const {}
  virtual void WritePage(int32_t /*page*/, std::span<const std::byte> /*from*/) {}
};

}  // namespace outrider
