// Draws tokens from rows of logits of many requests on the device: lays out what the kernels read,
// makes logits a tile of rows at a time, and leaves tokens at their places or results for the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/kernels/cuda/sampling/verify_drafts.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/staged_arrays.h"
#include "outrider/ops/logits_tile.h"
#include "outrider/ops/step_sampler.h"

namespace outrider::cuda {

/// The rows of logits of one request.
struct DrawnRows {
  RequestSampling sampling = {};
  int32_t first_row = 0;  // of HeadRows::rows
  int32_t num_rows = 1;
  int64_t position = 0;  // of the token that the first row predicts
  std::span<const TokenRef> drafts = {};
  MatrixView<const uint32_t> masks = {};
  LogitsProcessors* processors = nullptr;
  std::span<const TokenCounts::Entry> counts = {};
  int32_t given_token = -1;  // negative: one is drawn
  int32_t place = -1;        // of a draft
  VerifyPlaces kept = {};    // of a request whose drafts are verified
  int32_t given_count = -1;  // of its drafts that are accepted; negative: those that are drawn
};

class RowDrawer {
 public:
  /// Where results of rows are in the memory for them: all are numbers of four bytes.
  struct ResultLayout {
    size_t num_rows = 0;
    size_t num_requests = 0;
    size_t num_top = 0;  // columns of the most likely tokens
    bool logprobs = false;

    // Tokens, accepted drafts by request, log-probabilities, ranks, most likely tokens, theirs.
    size_t accepted() const { return num_rows; }
    size_t of_logprobs(size_t columns) const {
      return num_rows + num_requests + columns * num_rows;
    }
    size_t bytes() const { return of_logprobs(logprobs ? 2 + 2 * num_top : 0) * 4; }
  };

  /// What Launch began.
  struct Drawing {
    ResultLayout layout;
    Ticket ticket = 0;  // of CudaOps; of a layout with rows
  };

  /// What was drawn, on the host.
  struct HostResults {
    std::span<const int32_t> tokens;    // [rows]
    std::span<const int32_t> accepted;  // [requests]
    LogprobRows logprobs;
  };

  /// Which of the ranks that share a model draw: the first one, while the others make their parts
  /// of its logits; or all, each with a call of its own.
  enum class Drawers { kFirst, kAll };

  RowDrawer(const CudaOps& ops, LogprobsMode logprobs_mode, int64_t tile_bytes = kLogitsTileBytes)
      : ops_(ops), logprobs_mode_(logprobs_mode), tile_bytes_(tile_bytes), arrays_(ops.stream()) {}

  /// Draws for requests with one row each, among the first num_tokens tokens, on all ranks; ids as
  /// DrawResults has them.
  void DrawToPlaces(const Context& context, const HeadRows& rows, int32_t num_tokens,
                    std::span<const DrawnRows> requests, const int32_t* ids);
  /// Results for the host, of which all or none have a given token. Drafts are verified.
  Drawing Launch(const Context& context, const HeadRows& rows, int32_t num_tokens,
                 std::span<const DrawnRows> requests, Drawers drawers);
  bool Ready(const Drawing& drawing) const;
  /// In the order of Launch. The results are valid until the second Launch from then on.
  HostResults Wait(const Drawing& drawing);

 private:
  struct Kind {
    Drawers drawers = Drawers::kFirst;
    bool by_place = false;            // one row each, whose tokens go to their places
    int32_t* num_accepted = nullptr;  // by request, on the device: drafts are verified
  };

  void Draw(const Context& context, const HeadRows& rows, int32_t num_tokens,
            std::span<const DrawnRows> requests, DrawResults results, Kind kind);
  void DrawTile(const Context& context, const HeadRows& rows, int32_t num_tokens,
                std::span<const DrawnRows> requests, DrawResults results, Kind kind);
  /// Whether ranks can draw the tile from the parts of the vocabulary that they have.
  bool CanShare(const Context& context, int64_t head_rows, int32_t num_tokens) const;
  /// DrawTokens from this rank's part, and of what comes of all parts.
  void DrawByShares(const Context& context, const HeadRows& rows, const int32_t* head_rows,
                    DrawParams params, const DrawResults& results) const;
  /// Adds the lists of drawn.processors to those of the tile.
  void AddProcessors(const DrawnRows& drawn, RequestSampling& sampling);

  const CudaOps& ops_;
  LogprobsMode logprobs_mode_;
  int64_t tile_bytes_;
  StagedArrays arrays_;
  size_t num_top_ = 0;  // columns of the most likely tokens
  // What a tile needs; kept to reuse memory.
  std::vector<RequestSampling> sampling_;
  std::vector<int32_t> logit_requests_;
  std::vector<int32_t> logit_positions_;
  std::vector<int32_t> logit_starts_;
  std::vector<int32_t> head_rows_;
  std::vector<int32_t> output_rows_;
  std::vector<int32_t> first_mask_;
  std::vector<uint32_t> masks_;
  std::vector<TokenRef> token_ids_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> bias_tokens_;
  std::vector<float> bias_values_;
  std::vector<int32_t> count_tokens_;
  std::vector<uint32_t> counts_;
  std::vector<int32_t> given_tokens_;
  std::vector<int32_t> places_;
  std::vector<VerifiedRequest> verified_;
};

}  // namespace outrider::cuda
