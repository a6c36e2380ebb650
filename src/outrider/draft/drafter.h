// A drafter guesses the next tokens of each request after every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/matrix_view.h"
#include "outrider/draft/draft_length_policy.h"
#include "outrider/networks/draft_model.h"
#include "outrider/ops/ticket.h"
#include "outrider/sampling/sampling_params.h"

namespace outrider {

/// Which rows the first pass of a drafter with modules runs. Both give equal drafts and equal
/// state.
enum class DraftForm : uint8_t {
  kCompacted,  // only the rows that verification accepted: the least work
  kPadded,     // all rows of the step: shapes are known before verification, as a GPU graph needs
};

/// Which of the target's hidden rows a drafter with modules keeps (TargetHiddenRows).
enum class KeptRows : uint8_t {
  kAll,   // those of every cache block: modules may stop, and catch up later
  kLast,  // the last few of each slot: all modules run after every step
};

/// Which positions of the cache a drafter touches beside the rows of a step.
struct DrafterReach {
  /// Beyond the frontier: Propose writes them.
  int32_t lookahead = 0;
  /// Before the first new row: Propose may run them again, and they read their windows.
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
  int32_t frontier = 0;    // last position whose token is known and whose hidden row exists
  int32_t first_row = 0;   // row of first_position in the step's hidden rows
  int32_t num_rows = 0;    // rows of the request in the step, rejected drafts included
  int32_t num_drafts = 0;  // wanted, at most `depth` of Propose; 0: none
  std::span<const std::vector<int32_t>> block_tables = {};  // by cache group
  /// Null: drafts are the most likely tokens. Else they are drawn as the target draws, from logits
  /// that these parameters cut: with the target's own noise, so that both agree often; or, with
  /// draft_probs, with noise of their own, as rejection sampling needs it, and the distributions
  /// that they were drawn from are written there, [num_drafts, vocab]. temperature > 0.
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

  /// Begins Propose before the host knows which drafts of a step were right; the device knows it
  /// (VerifyPlaces). Requests are as if all of their drafts were right, with the tokens that their
  /// rows drew (SlotPlaces::drawn), and num_drafts is an upper bound. Wait ends it, before anything
  /// else is asked. None: nothing was done.
  virtual std::optional<Ticket> Launch(std::span<const DraftRequest> /*requests*/,
                                       int32_t /*depth*/, Tensor /*target*/) {
    return std::nullopt;
  }

  /// Guesses as Propose: for the requests of Launch, or some of them in their order, as the host
  /// knows them now.
  virtual void Wait(Ticket /*ticket*/, std::span<const DraftRequest> /*requests*/,
                    MatrixView<TokenRef> /*drafts*/) {
    OUTRIDER_CHECK(false, "nothing was launched");
  }

  /// Guesses what follows each request's last known token.
  /// drafts [requests, k]: row i gets the num_drafts drafts of request i, or fewer and none.
  /// Until the host reads them they may be on the device (tokens_on_device.h).
  /// target: of the rows of the step, the target's output [rows, hidden], or with taps the outputs
  /// of these layers side by side, [rows, taps * hidden]. Since a slot's Reset, each of its
  /// positions must be in exactly one call, in order.
  /// depth: a chain runs its first `depth` modules; a module that is repeated runs if depth > 0.
  /// Modules that do not run fall behind. They catch up when they run again, and the entries of a
  /// module that has run are those of a recomputation from scratch. With KeptRows::kLast modules
  /// cannot fall behind: all of them run, whatever `depth` is.
  virtual void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
                       MatrixView<TokenRef> drafts) = 0;

  /// Seconds spent in a draft model so far, where the target's network does not count them.
  virtual double busy_seconds() const { return 0; }

  /// Passes of a draft model so far, where the target's network does not count them.
  virtual ReplayCounts replay_counts() const { return {}; }

  /// What steps take, once it is known (MeasureStepTimes): a drafter may leave out drafts that do
  /// not pay.
  virtual void SetStepTimes(const StepTimes& /*times*/) {}

  /// A slot has a new request, or the same one again after a preemption. Its blocks below position
  /// `computed` come from the prefix cache, whole. They hold the target's entries, and those of the
  /// modules that have finished them (TargetHiddenRows).
  virtual void Reset(int32_t slot, int32_t computed) = 0;

  // What it keeps of a page of the cache beside the cache, for pages whose bytes leave the device
  // and come back to another page (HostCache).

  /// Bytes of a page; 0: nothing.
  virtual int64_t page_bytes() const { return 0; }
  /// `to`, `from`: of page_bytes() bytes, in the host's memory.
  virtual void ReadPage(int32_t /*page*/, std::span<std::byte> /*to*/) const {}
  virtual void WritePage(int32_t /*page*/, std::span<const std::byte> /*from*/) {}
};

}  // namespace outrider
