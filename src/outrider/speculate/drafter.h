// A drafter guesses the next tokens of each request after every step.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/base/matrix_view.h"

namespace outrider {

/// Ends a request's drafts before the wanted number of them.
inline constexpr int32_t kNoDraft = -1;

/// Which rows the first pass of an MTP drafter runs. Both give equal drafts and equal state.
enum class DraftForm : uint8_t {
  kCompacted,  // only rows that verification left right: the least work
  kPadded,     // all rows of the step, and windows of one length: shapes known before verification
};

/// How long an MTP drafter keeps the target's hidden rows.
enum class RowLife : uint8_t {
  kContent,  // with the cache block: any number of modules may be asked for at any time
  kRecent,   // a few of each slot: all modules are asked for every time
};

/// One request after a step, as a drafter sees it. The step computed the target's hidden rows of
/// positions first_position .. frontier, and of rejected drafts after them.
struct DraftRequest {
  int32_t slot = 0;
  std::span<const int32_t> tokens;  // all known tokens, those just sampled included
  int32_t prompt_length = 0;
  int32_t first_position = 0;
  int32_t frontier = 0;    // last position whose token is known and whose hidden row exists
  int32_t first_row = 0;   // row of first_position in the step's hidden rows
  int32_t num_rows = 0;    // rows of the request in the step, rejected drafts included
  int32_t num_drafts = 0;  // wanted, at most the modules that run; 0: none
  std::span<const int32_t> block_table;
  /// Where to draw drafts instead of taking the most likely tokens: the distributions that they
  /// were drawn from are left here, [num_drafts, vocab], softmax(logits / temperature). Null: most
  /// likely.
  float* draft_probs = nullptr;
  float temperature = 0;  // > 0 with draft_probs
  uint64_t seed = 0;
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  /// The largest number of drafts per request, k.
  virtual int32_t max_drafts() const = 0;

  /// Positions beyond the frontier that Propose writes to the cache.
  virtual int32_t lookahead() const = 0;

  /// drafts.row(i)[0 .. num_drafts) of request i follow its last known token, up to the first
  /// kNoDraft; drafts [requests, k].
  /// hidden [rows, hidden]: the target's output of the step. Every row of a request must be shown
  /// exactly once, in order, since its Reset.
  /// Runs the first `depth` modules of a chain, or one that is repeated if depth > 0. The others
  /// put these rows off, until they are asked for again: entries are those of a recomputation once
  /// a module has run. With RowLife::kRecent, `depth` is max_drafts().
  virtual void Propose(std::span<const DraftRequest> requests, int32_t depth,
                       MatrixView<const float> hidden, MatrixView<int32_t> drafts) = 0;

  /// How many tokens after a position its cached entries depend on: they are final, and can be
  /// shared with requests that continue alike, once these are known.
  virtual int32_t tokens_ahead() const = 0;

  /// A slot has a new occupant (or the same one again, after a preemption). The target's entries
  /// below position `computed`, whole blocks, are in the cache, and those of the modules that were
  /// through with these blocks.
  virtual void Reset(int32_t slot, int32_t computed) = 0;
};

}  // namespace outrider
