// Grouped-query attention for Hopper over a paged cache of keys and values per head: any mix of
// query lengths in one launch, over everything or over a window. Heads are 128 wide.
//
// For query token i of a request with query length n and sequence length L (new tokens counted), at
// position p = L - n + i, and query head h, which reads key head g = h / (heads / kv_heads):
//   s_j = softmax_scale * <q_ih, k_jg>   for keys j <= p; with a window w those with j > p - w
//   out_ih = sigmoid(gate_ih) * sum_j softmax(s)_j * v_jg      (without gates: factor 1)
//
// Row invariance: the bits of a row depend on its query, its visible keys and its gate alone. Keys
// are processed in tiles of 64 from key 0, each row with a reference of its own; a tile that a row
// does not see changes nothing. Over everything, keys are folded in splits that begin at fixed
// positions (kGqaSplits), in order of position, whichever block computes them. One exception: an
// infinity or NaN that a later token of the same request, or one before the window whose block is
// still there, wrote into the cache reaches the row (0 * NaN).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

inline constexpr int kGqaHeadDim = 128;
inline constexpr int kGqaTileRows = 64;  // rows (token, query head of one key head) of a tile
inline constexpr int kGqaTileKeys = 64;
inline constexpr int kMostGqaRequests = 16384;

/// Which body runs; bits are the same.
enum class GqaBody {
  kFewRows,   // a tile per block, two blocks on each multiprocessor: short queries
  kManyRows,  // two neighbouring tiles per block share keys: prompts
};

struct GqaShape {
  int heads = 0;     // a multiple of kv_heads
  int kv_heads = 0;  // heads / kv_heads up to 64
  int window = 0;    // keys that a row sees, its own included; 0: all
};

/// What the workspace must be able to hold; fixed for the life of captured graphs.
struct GqaLimits {
  int max_tokens = 0;    // query tokens of one call, all requests together
  int max_requests = 0;  // up to kMostGqaRequests
  GqaShape shape;
};

/// The requests of a call, in arrays on the device.
struct GqaRequests {
  int count = 0;
  int num_tokens = 0;  // rows of q; at least query_start_loc[count]
  // int32 [count + 1], from 0; a request may have no rows (padding of a captured graph)
  const int32_t* query_start_loc = nullptr;
  // int32 [count]: keys of each request, the step's own tokens included
  const int32_t* seq_lens = nullptr;
  // int32 [count, block_table_stride]: blocks; those before every window and those past the end are
  // not read
  const int32_t* block_tables = nullptr;
  int block_table_stride = 0;
};

struct GqaParams {
  GqaShape shape;
  GqaBody body = GqaBody::kFewRows;
  GqaRequests requests;
  const void* q = nullptr;  // bf16 [num_tokens, heads, 128], 16-byte aligned rows
  int64_t q_stride = 0;     // elements from a token to the next, a multiple of 8
  // [blocks][block_size][2][kv_heads][128]: keys, then values; 16-byte aligned
  const void* cache = nullptr;
  DType cache_dtype = DType::kBF16;  // or kF8E4M3: the numbers as they are, without scales
  int64_t block_stride = 0;          // bytes from a block to the next, a multiple of 16
  int num_blocks = 0;
  int block_size = 0;           // a multiple of 8
  float softmax_scale = 1.0F;   // > 0
  const void* gates = nullptr;  // optional bf16 [num_tokens, heads], before the sigmoid
  int64_t gate_stride = 0;
  void* output = nullptr;  // bf16 [num_tokens, heads, 128], 16-byte aligned rows
  int64_t output_stride = 0;
};

/// Bytes of the workspace that PlanGqaAttention fills and GqaAttention uses. One serves all layers
/// of one shape in a step, one after another in one stream. It must be zeroed once.
size_t GqaWorkspaceBytes(const GqaLimits& limits);

/// Builds the list of work on the device, once per step and shape, from shape, body and requests.
/// No host synchronisation, fixed launch shapes: safe to capture. Throws Error for shapes outside
/// the ranges above or beyond `limits`; otherwise returns what the launch returned.
cudaError_t PlanGqaAttention(const GqaParams& params, const GqaLimits& limits, void* workspace,
                             cudaStream_t stream);

/// Runs the planned step for one layer. Shape, body and requests are the plan's.
cudaError_t GqaAttention(const GqaParams& params, const GqaLimits& limits, void* workspace,
                         cudaStream_t stream);

}  // namespace outrider::cuda
