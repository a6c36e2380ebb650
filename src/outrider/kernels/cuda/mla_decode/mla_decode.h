// MLA decode attention (absorbed form) for Hopper: any mix of query lengths in one launch, over a
// paged latent cache. Plain CUDA runtime types; nothing here needs a framework.
//
// For query token i of a request with query length n and sequence length L (new tokens counted),
// and head h, with cache row c_j = [latent 512 | rotary 64] of the request's key j:
//   s_j = softmax_scale * <q_ih, c_j>     for the visible keys j: j <= L - n + i, or the token's
//   mask O_ih = sum_j softmax(s)_j * c_j[0:512],   LSE_ih = ln sum_j exp(s_j)
// With a sink, O_ih is multiplied by 1 / (1 + exp(sink_h - LSE_ih)); LSE stays without it.
//
// Row invariance: the bits of a row depend on its query, its visible keys and the head count alone,
// never on the batch, the query length or the number of multiprocessors. Keys are folded in splits
// that begin at fixed absolute positions (MlaSplits), in order of position. One exception: an
// infinity or NaN that a later token of the same request wrote into the cache reaches the earlier
// rows of a window (0 * NaN). bf16: results pass through float16, so latent values must be below
// 32752 in magnitude.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace outrider::cuda {

inline constexpr int kMlaKeyDim = 576;    // latent 512, then rotary 64
inline constexpr int kMlaValueDim = 512;  // the latent part
inline constexpr int kMlaTileRows = 64;   // rows (token, head) that one block holds at a time
inline constexpr int kMlaTileKeys = 64;

enum class MlaCacheType { kBf16, kE4m3 };

/// Where splits begin: every `base` keys up to `end0`, every 2 * base up to `end1`, every 4 * base
/// beyond. Part of a row's arithmetic: a model keeps one choice for ever. `base` is 128 times a
/// power of two, `end0` a multiple of `base`, `end1 - end0` of 2 * base.
struct MlaSplits {
  int base;
  int end0;
  int end1;
};

/// The splits for a head count.
MlaSplits DefaultMlaSplits(int heads);

/// Lets `streams` streams run attention on a GPU at the same time. Blocks of one kernel wait for
/// each other's results, so each stream takes its part of the multiprocessors. For ranks that share
/// a GPU, which only tests do. Results do not depend on it.
void ShareMlaBlocks(int streams);

inline constexpr int kMaxMlaRequests = 16384;

/// What buffers must be able to hold; fixed for the life of captured graphs.
struct MlaDecodeLimits {
  int max_tokens;    // query tokens of one step, all requests together
  int max_requests;  // up to kMaxMlaRequests
  int max_seq_len;   // <= 1 << 20
  int heads;         // 1 .. 128
};

struct MlaDecodeParams {
  int num_requests = 0;
  int num_tokens = 0;  // rows of q; at least query_start_loc[num_requests]
  int heads = 0;
  // bf16 [num_tokens, heads, 576], 16-byte aligned
  const void* q = nullptr;
  // int32 [num_requests + 1], on the device; query lengths up to 32 with masks, any without; 0: the
  // request has no rows (padding of a captured graph)
  const int* query_start_loc = nullptr;
  // int32 [num_requests], on the device: keys of each request, the step's own tokens included
  const int* seq_lens = nullptr;
  // int32 [num_requests, block_table_stride], on the device; entries past a request's length unused
  const int* block_table = nullptr;
  int block_table_stride = 0;
  // bf16 or e4m3, 16-byte aligned: page p has page_size entries of 576 from byte p * page_stride on
  const void* cache = nullptr;
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float cache_scale = 1.0f;     // e4m3 only: value = cache_scale * e4m3, for keys and values alike
  int num_blocks = 0;           // pages, up to 67,108,863
  int page_size = 64;           // 16, 32, 64 or 256
  int64_t page_stride = 0;      // bytes, a multiple of 16, at least a page's; 0: a page's
  float softmax_scale = 1.0f;   // > 0
  const float* sink = nullptr;  // optional [heads]
  // optional [num_tokens]: bit j of a token's mask says whether it sees key L - n + j; keys before
  // L - n are always seen. Replaces the causal rule.
  const uint32_t* visible = nullptr;
  void* output = nullptr;  // bf16 [num_tokens, heads, 512], 16-byte aligned
  float* lse = nullptr;    // [num_tokens, heads], natural logarithm; -inf for a row without keys
  // MlaDecode: an MlaDecode of the same plan has run since it was made. Then items, block tables
  // and keys of earlier steps are read before the kernel in front of it has ended. (MlaDecode lets
  // no kernel start before the plan is complete. A plan lets the next kernel start when its blocks
  // have ended, which does not say that what they wrote can be read.)
  bool plan_settled = false;
  // Every request has one token, as the rows of listed attention: plans of many take less time.
  bool one_token_each = false;
  MlaSplits splits = {0, 0, 0};  // base 0: DefaultMlaSplits(heads)
  // Cuts requests by the batch's load at any tile and folds nothing within a block: results depend
  // on the batch. For comparison.
  bool relaxed = false;
};

/// Bytes of the workspace that MlaDecodePlan fills and MlaDecode uses. One workspace serves all
/// layers of a step, one after another in one stream. It must be zeroed once after allocation.
size_t MlaDecodeWorkspaceBytes(const MlaDecodeLimits& limits);

/// Builds the step's work list on the device from query_start_loc and seq_lens. Once per step, when
/// block tables and the keys of earlier steps have been written in the same stream (plan_settled).
/// No host synchronisation, fixed launch shapes: safe to capture. Returns cudaErrorInvalidValue for
/// parameters outside the documented ranges or beyond `limits`.
cudaError_t MlaDecodePlan(const MlaDecodeParams& params, const MlaDecodeLimits& limits,
                          void* workspace, cudaStream_t stream);

/// Runs the planned step for one layer. Same return codes. The blocks of the bf16 kernel, one per
/// multiprocessor, wait for each other's results: do not confine the stream to a part of the
/// device. num_requests, num_tokens, heads, cache_type, splits and relaxed must be those that the
/// plan was made with.
cudaError_t MlaDecode(const MlaDecodeParams& params, const MlaDecodeLimits& limits, void* workspace,
                      cudaStream_t stream);

}  // namespace outrider::cuda
