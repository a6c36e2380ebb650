// Draws tokens from rows of logits on the device: the same tokens as Verifier and Sampler
// (sampling/) draw from the same logits, bit for bit; and log-probabilities when asked for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

/// What is drawn where no token may follow.
inline constexpr int32_t kDrawDeadEnd = -1;    // all that is allowed is -infinity
inline constexpr int32_t kDrawOverflown = -2;  // NaN among the logits, or no largest finite one

inline constexpr int kMaxTopLogprobs = 128;

/// How a request's tokens are drawn: SamplingParams, and where its lists are.
struct alignas(16) RequestSampling {
  uint64_t seed = 0;
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  // Tokens that occurred, in DrawParams::count_tokens and counts: each once, in any order.
  // Penalties change these and the drafts before a row.
  int32_t first_count = 0;
  int32_t num_counts = 0;
  bool penalised = false;
  int32_t first_bias = 0;  // in DrawParams::bias_tokens and bias_values
  int32_t num_biases = 0;
  int32_t top_logprobs = -1;  // how many likeliest tokens' log-probabilities are wanted
                              // beside the drawn one's; negative: none at all
};

/// Bit 31 of an entry of DrawParams::counts: the token is in the prompt. The rest counts the
/// output's.
inline constexpr uint32_t kInPrompt = 0x80000000U;

/// What a part of the vocabulary comes to for a row.
struct alignas(32) DrawnShare {
  uint64_t winner;    // TokenKey of the value that wins (token_order.h)
  uint64_t largest;   // of the largest logit, or one above all where one overflows; of a part that
                      // has a token to draw: `winner`
  uint32_t drawable;  // the part has a token to draw
};

struct DrawParams {
  int max_rows = 0;                   // of logits
  const int32_t* num_rows = nullptr;  // optional [1] on the device: true number
  int vocab_size = 0;                 // 1 .. 400,000
  int first_token = 0;            // with DrawResults::shares: logits are of the tokens from this
                                  // one on, a multiple of 32
  const float* logits = nullptr;  // float32 [max_rows, vocab_size], 16-byte aligned rows
  int64_t logits_stride = 0;      // a multiple of 4
  // Rows of logits of a request follow each other; the first predicts the token behind what it has,
  // row j + 1 the one behind draft j: token_ids[logit_rows[its first row] + 1 + j].
  const int32_t* token_ids = nullptr;
  const int32_t* logit_rows = nullptr;       // [max_rows]
  const int32_t* logit_positions = nullptr;  // [max_rows]: of the token that it predicts
  // Optional [max_rows]: where in DrawResults::tokens a number is that is subtracted from the row's
  // position; negative: nowhere.
  const int32_t* moved_places = nullptr;
  const int32_t* logit_requests = nullptr;    // [max_rows]: its request
  const int32_t* logit_start_loc = nullptr;   // [requests + 1]: its first row
  const RequestSampling* sampling = nullptr;  // [requests]
  // Optional masks (token_mask.h) [any, (vocab_size + 31) / 32]: row j of a request's logits has
  // mask first_mask[request] + j, none where first_mask is negative.
  const uint32_t* masks = nullptr;
  const int32_t* first_mask = nullptr;  // [requests]
  const int32_t* bias_tokens = nullptr;
  const float* bias_values = nullptr;
  const int32_t* count_tokens = nullptr;
  const uint32_t* counts = nullptr;  // see kInPrompt
  /// Optional [max_rows]: these tokens' log-probabilities are wanted of the model's logits, and
  /// nothing is drawn.
  const int32_t* given_tokens = nullptr;
  // Log-probabilities after all (LogprobsMode::kProcessed) rather than of the model's logits.
  bool processed_logprobs = false;
  int max_top_logprobs = 0;  // columns of the results below
};

/// By row of logits.
struct DrawResults {
  /// Optional [max_rows]: is written in place of all below. Of requests that want the likeliest
  /// token or the winner of the race, and nothing else (DrawsByShares).
  DrawnShare* shares = nullptr;
  int32_t* tokens = nullptr;        // [max_rows]: a token or one of the two above
  const int32_t* places = nullptr;  // optional [max_rows]: row r's token is tokens[places[r]]
  const int32_t* ids = nullptr;     // optional [vocab_size]: ids[i] is written in place of token i
  // Needed where a request asks for log-probabilities; rows that do not ask stay as they were.
  float* logprobs = nullptr;      // [max_rows] of the drawn token
  int32_t* ranks = nullptr;       // [max_rows] of the drawn token, from 1
  int32_t* top_tokens = nullptr;  // [max_rows, max_top_logprobs]: most likely first
  float* top_logprobs = nullptr;  // [max_rows, max_top_logprobs]
};

/// One launch. What a row gets is a function of its logits and its request's fields alone. Throws
/// Error for sizes outside the ranges above; otherwise returns what the launch returned.
cudaError_t DrawTokens(const DrawParams& params, const DrawResults& results, cudaStream_t stream);

/// Whether a request's token can be drawn from parts of the vocabulary, one by one.
inline bool DrawsByShares(const RequestSampling& sampling) {
  const bool cuts = sampling.top_k > 0 || sampling.top_p < 1.0F || sampling.min_p > 0.0F;
  return !sampling.penalised && sampling.num_biases == 0 && sampling.top_logprobs < 0 &&
         (sampling.temperature == 0.0F || !cuts);
}

/// The token of the whole vocabulary, from those of its parts: `shares` [rows, parts], rows
/// `stride` apart. Of `results` tokens, places and ids are used.
cudaError_t ChooseAmongShares(const DrawnShare* shares, int rows, int parts, int64_t stride,
                              const DrawResults& results, cudaStream_t stream);

}  // namespace outrider::cuda
