// The pass over the state of one head of one request, a block of 128 threads. The state is in
// registers: a thread has 16 key channels of 8 value channels. Rows come through shared memory, a
// block of 16 tokens at a time, copied while the one before is computed. Longer than most files:
// the steps of one pass share its registers.
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "outrider/kernels/cuda/kda/kda_finish_row.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kKdaThreads = 128;
inline constexpr int kKdaWarps = kKdaThreads / 32;
static_assert(kKdaThreads == kKdaDim && kStateBlock == 16);

/// Rows of a block of tokens.
using KdaTile = float[kStateBlock][kKdaDim];

struct KdaShared {
  // Of two blocks of tokens in turn.
  alignas(16) KdaTile q[2];                              // then q P
  alignas(16) KdaTile k[2];                              // then k P
  alignas(16) KdaTile decay[2];                          // then, of a whole block, K_15
  alignas(16) KdaTile value[2];                          // v, then u
  alignas(16) KdaTile of_key;                            // S^T (k P)
  alignas(16) KdaTile of_query;                          // S^T (q P)
  alignas(16) float product[kKdaDim];                    // P_15
  float write[kStateBlock];                              // b
  float parts[kStateBlock][kKdaWarps][2 * kStateBlock];  // of the sums below, by warp
  alignas(16) float keys[kStateBlock][kStateBlock];      // k_t . K_tj
  alignas(16) float queries[kStateBlock][kStateBlock];   // q_t . K_tj
  KdaLengths lengths;
};

__device__ __forceinline__ void CopySixteenBytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Sums of kCount values over the lanes that differ in the bits of kCount / 2 .. kLeast, all in one
/// order: x[0 .. kLeast) of a lane become the sums of the values that these bits of it number.
template <int kCount, int kMask, int kLeast>
__device__ __forceinline__ void ScatterSums(float* x, int lane) {
  if constexpr (kCount > kLeast) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane & kMask) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = upper ? x[i] : x[i + kHalf];
      const float kept = upper ? x[i + kHalf] : x[i];
      x[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, sent, kMask));
    }
    ScatterSums<kHalf, kMask / 2, kLeast>(x, lane);
  }
}

/// One head of one request.
class KdaTask {
 public:
  __device__ __forceinline__ KdaTask(const KdaAttentionParams& params, KdaShared& shared,
                                     int number, int head, const KdaChannel& channel)
      : params_(params),
        shared_(shared),
        number_(number),
        request_(params.rows.step.requests[number]),
        head_(head),
        channel_(channel),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        end_(request_.context + request_.num_rows),
        state_end_((end_ - request_.num_drafts) / kStateBlock * kStateBlock),
        piece_(params.rows.memory.first_head + head),
        kept_(RowPiece(params.rows.memory,
                       params.rows.step.row_pages + int64_t{number} * params.rows.step.row_stride,
                       piece_)) {}

  __device__ __forceinline__ void Run() {
    CopyRows(request_.state_tokens, 0);
    LoadState();
    if (thread_ / 32 == kKdaWarps - 1)
      PrefetchForBlock(number_ * params_.rows.heads + head_ + kAhead);
    int stage = 0;
    for (int start = request_.state_tokens; start < end_; start += kStateBlock, stage ^= 1) {
      if (HasFewRows()) Finish(stage, start);
      WaitForCopies();
      __syncthreads();  // the rows are there, and the other stage is free
      if (start + kStateBlock < end_) CopyRows(start + kStateBlock, stage ^ 1);
      const int rows = min(kStateBlock, end_ - start);
      const int first = max(0, request_.context - start);  // of the rows that run
      const int end_of_block = start + kStateBlock;
      const bool ends = end_of_block <= end_ && (end_of_block < end_ || end_of_block == state_end_);
      Decay(stage, start, first, rows, ends);
      __syncthreads();
      if (first < rows) {
        AddParts(first, rows);
        ReadState(stage, first, rows);
        __syncthreads();
        FinishRows(stage, start, first, rows);
        __syncthreads();
      }
      if (ends) {
        EndBlock(stage);
        KeepState(end_of_block);
      }
    }
  }

 private:
  /// Blocks from one to the one whose numbers it brings into L2: about as many as run at a time.
  static constexpr int kAhead = 2 * 132;

  /// Brings the state and the finished kept rows that a block begins with into L2; by a warp.
  /// block: its number, heads first.
  __device__ __forceinline__ void PrefetchForBlock(int block) const {
    const KdaStep& step = params_.rows.step;
    const int number = block / params_.rows.heads;
    if (number >= step.num_requests) return;
    const KdaRequest request = step.requests[number];
    if (request.num_rows == 0 || request.state_tokens == 0) return;
    const int piece = params_.rows.memory.first_head + block % params_.rows.heads;
    const int32_t* const pages = (request.restores != 0 ? step.restored_pages : step.state_pages) +
                                 int64_t{number} * step.state_stride;
    constexpr int kPart = kKdaDim * kKdaDim / 32;  // of a lane
    PrefetchIntoL2(StatePiece(params_.rows.memory, pages, piece) + lane_ * kPart,
                   kPart * static_cast<int>(sizeof(float)));
    const int position = request.state_tokens + lane_;
    if (position >= request.context) return;
    const float* const kept =
        RowPiece(params_.rows.memory, step.row_pages + int64_t{number} * step.row_stride, piece);
    PrefetchIntoL2(KeptRow(kept, position) + 3 * kKdaDim,
                   3 * kKdaDim * static_cast<int>(sizeof(float)));
  }

  __device__ __forceinline__ bool HasFewRows() const { return request_.num_rows <= kKdaFewRows; }

  /// Finishes and keeps the rows that run of the block of tokens from `start` on. A thread writes
  /// what it alone reads until all threads meet.
  __device__ __forceinline__ void Finish(int stage, int start) {
    const int first = max(request_.context, start);
    const int end = min(end_, start + kStateBlock);
    if (first >= end) return;
    const KdaRowSource source = SourceOf(params_.rows, request_, number_, head_);
    KdaWindow window;
    window.Begin(source, first);
#pragma unroll 1
    for (int position = first; position < end; ++position) {
      const int t = position - start;
      window.Take(source, position);
      const int64_t at = RowOf(position) * params_.rows.decay_stride + source.column;
      shared_.decay[stage][t][thread_] =
          DecayFactor(params_.rows, params_.rows.decay[at], channel_);
      if (end_ - position <= kKeptStateRows) {
        float* const kept = KeptRow(kept_, position) + thread_;
#pragma unroll
        for (int part = 0; part < 3; ++part) kept[part * kKdaDim] = window.x[part][kKdaConv - 1];
      }
      const KdaFinishedRow row = FinishRow(window, channel_, shared_.lengths);
      shared_.q[stage][t][thread_] = row.q;
      shared_.k[stage][t][thread_] = row.k;
      shared_.value[stage][t][thread_] = row.v;
      window.Shift();
    }
  }

  /// Begins to copy the rows of the block of tokens from `start` on; not those that Finish makes.
  __device__ __forceinline__ void CopyRows(int start, int stage) {
    const int column = lane_ * 4;
    for (int t = thread_ / 32; t < kStateBlock && start + t < end_; t += kKdaWarps) {
      const int position = start + t;
      if (position < request_.context) {
        const float* const row = KeptRow(kept_, position) + 3 * kKdaDim + column;
        CopySixteenBytes(&shared_.k[stage][t][column], row);
        CopySixteenBytes(&shared_.decay[stage][t][column], row + kKdaDim);
        CopySixteenBytes(&shared_.value[stage][t][column], row + 2 * kKdaDim);
        continue;
      }
      if (HasFewRows()) continue;
      const int64_t row = RowOf(position);
      const int64_t at = row * params_.rows.heads * kKdaDim + head_ * kKdaDim + column;
      CopySixteenBytes(&shared_.q[stage][t][column], params_.rows.q_out + at);
      CopySixteenBytes(&shared_.k[stage][t][column], params_.rows.k_out + at);
      CopySixteenBytes(&shared_.value[stage][t][column], params_.rows.v_out + at);
      CopySixteenBytes(
          &shared_.decay[stage][t][column],
          params_.rows.decay + row * params_.rows.decay_stride + head_ * kKdaDim + column);
    }
    CommitCopies();
  }

  __device__ __forceinline__ int64_t RowOf(int position) const {
    return request_.first_row + (position - request_.context);
  }
  __device__ __forceinline__ const int32_t* OwnPages() const {
    return params_.rows.step.state_pages + int64_t{number_} * params_.rows.step.state_stride;
  }

  // A thread's key channels are 32 i + 4 (lane % 8) + 0..3, its value channels ValueChannel() +
  // 0..3 and 16 further on.
  __device__ __forceinline__ int KeyChannel(int i) const { return 32 * i + 4 * (lane_ % 8); }
  __device__ __forceinline__ int ValueChannel() const {
    return thread_ / 32 * 32 + 4 * (lane_ / 8);
  }

  __device__ __forceinline__ void LoadState() {
    if (request_.state_tokens == 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
#pragma unroll
        for (int c = 0; c < 8; ++c) state_[i][c] = 0.0F;
      }
      return;
    }
    const bool restores = request_.restores != 0;
    const int32_t* const pages = restores ? params_.rows.step.restored_pages +
                                                int64_t{number_} * params_.rows.step.state_stride
                                          : OwnPages();
    const float* const from = StatePiece(params_.rows.memory, pages, piece_);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float* const row = from + (KeyChannel(i / 4) + i % 4) * kKdaDim + ValueChannel();
      const float4 low = LoadFour(row);
      const float4 high = LoadFour(row + 16);
      state_[i][0] = low.x, state_[i][1] = low.y, state_[i][2] = low.z, state_[i][3] = low.w;
      state_[i][4] = high.x, state_[i][5] = high.y, state_[i][6] = high.z, state_[i][7] = high.w;
    }
    if (!restores) return;
    if (state_end_ == request_.state_tokens) StoreState(OwnPages());
    // Rows before the state, as kept rows, but where a row of the step takes the place.
    for (int i = 0; i < kKdaConv - 1; ++i) {
      const int position = request_.context - (kKdaConv - 1) + i;
      if (end_ - position > kKeptStateRows) continue;
      for (int part = 0; part < 3; ++part) {
        KeptRow(kept_, position)[part * kKdaDim + thread_] =
            from[kKdaDim * kKdaDim + (i * 3 + part) * kKdaDim + thread_];
      }
    }
  }

  __device__ __forceinline__ float* StoreState(const int32_t* pages) const {
    float* const to = StatePiece(params_.rows.memory, pages, piece_);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float* const row = to + (KeyChannel(i / 4) + i % 4) * kKdaDim + ValueChannel();
      StoreFour(row, make_float4(state_[i][0], state_[i][1], state_[i][2], state_[i][3]));
      StoreFour(row + 16, make_float4(state_[i][4], state_[i][5], state_[i][6], state_[i][7]));
    }
    return to;
  }

  /// A thread takes one channel of all rows: products of decays, and the parts of the sums over
  /// channels. Rows that run are kept.
  __device__ __forceinline__ void Decay(int stage, int start, int first, int rows, bool ends) {
    float keys[kStateBlock];  // K_tj of the row t that is at hand
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) keys[j] = 0.0F;
    float product = 1.0F;
    const bool writes = thread_ >= first && thread_ < rows;
    float write = 0.0F;
    if (writes) write = params_.write[RowOf(start + thread_) * params_.write_stride + head_];
#pragma unroll 1
    for (int t = 0; t < rows; ++t) {
      const float decay = shared_.decay[stage][t][thread_];
      const float k = shared_.k[stage][t][thread_];
      product = __fmul_rn(product, decay);
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) keys[j] = j == t ? k : __fmul_rn(keys[j], decay);
      if (t < first) continue;  // all threads alike
      const float q = shared_.q[stage][t][thread_];
      shared_.k[stage][t][thread_] = __fmul_rn(k, product);
      shared_.q[stage][t][thread_] = __fmul_rn(q, product);
      KeepRow(start + t, k, decay);
      float x[2 * kStateBlock];
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) {
        x[j] = __fmul_rn(k, keys[j]);
        x[kStateBlock + j] = __fmul_rn(q, keys[j]);
      }
      ScatterSums<2 * kStateBlock, 16, 1>(x, lane_);
      shared_.parts[t][thread_ / 32][lane_] = x[0];
    }
    if (writes) shared_.write[thread_] = Sigmoid(write);
    if (!ends) return;
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) shared_.decay[stage][j][thread_] = keys[j];
    shared_.product[thread_] = product;
  }

  __device__ __forceinline__ void KeepRow(int position, float k, float decay) const {
    if (end_ - position > kKeptStateRows) return;  // written over in this step
    float* const kept = KeptRow(kept_, position) + thread_;
    if (!HasFewRows()) {
      const int64_t at = RowOf(position) * params_.rows.stride + head_ * kKdaDim + thread_;
      kept[0] = params_.rows.q[at];
      kept[kKdaDim] = params_.rows.k[at];
      kept[2 * kKdaDim] = params_.rows.v[at];
    }
    kept[3 * kKdaDim] = k;
    kept[4 * kKdaDim] = decay;
  }

  __device__ __forceinline__ void AddParts(int first, int rows) const {
    for (int i = first * 2 * kStateBlock + thread_; i < rows * 2 * kStateBlock; i += kKdaThreads) {
      const int t = i / (2 * kStateBlock);
      const int j = i % (2 * kStateBlock);
      const float sum = __fadd_rn(__fadd_rn(shared_.parts[t][0][j], shared_.parts[t][1][j]),
                                  __fadd_rn(shared_.parts[t][2][j], shared_.parts[t][3][j]));
      if (j < kStateBlock) {
        shared_.keys[t][j] = sum;
      } else {
        shared_.queries[t][j - kStateBlock] = sum;
      }
    }
  }

  /// The products of rows with the state.
  __device__ __forceinline__ void ReadState(int stage, int first, int rows) {
#pragma unroll 1
    for (int t = first; t < rows; ++t) {
      float x[16];  // of 8 value channels: with the key, then with the query
#pragma unroll
      for (int c = 0; c < 16; ++c) x[c] = 0.0F;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 k = LoadFour(&shared_.k[stage][t][KeyChannel(i)]);
        const float4 q = LoadFour(&shared_.q[stage][t][KeyChannel(i)]);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          x[c] = Dot(k, i, c, x[c]);
          x[8 + c] = Dot(q, i, c, x[8 + c]);
        }
      }
      // Over the 8 lanes of these value channels: each has two sums in the end.
      ScatterSums<16, 4, 2>(x, lane_);
      const int channel = ValueChannel() + 16 * (lane_ / 2 % 2) + 2 * (lane_ % 2);
      KdaTile& to = (lane_ & 4) != 0 ? shared_.of_query : shared_.of_key;
      *reinterpret_cast<float2*>(&to[t][channel]) = make_float2(x[0], x[1]);
    }
  }

  __device__ __forceinline__ float Dot(const float4& x, int i, int c, float sum) const {
    sum = __fmaf_rn(x.x, state_[4 * i][c], sum);
    sum = __fmaf_rn(x.y, state_[4 * i + 1][c], sum);
    sum = __fmaf_rn(x.z, state_[4 * i + 2][c], sum);
    return __fmaf_rn(x.w, state_[4 * i + 3][c], sum);
  }

  /// A thread takes one value channel: what rows add, and their outputs.
  __device__ __forceinline__ void FinishRows(int stage, int start, int first, int rows) {
    float u[kStateBlock];
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) {
      u[j] = j < first ? shared_.value[stage][j][thread_] : 0.0F;
    }
#pragma unroll 1
    for (int t = first; t < rows; ++t) {
      const int64_t row = RowOf(start + t);
      float sum = shared_.of_key[t][thread_];
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) {
        if (j < t) sum = __fmaf_rn(shared_.keys[t][j], u[j], sum);
      }
      const float own =
          __fmul_rn(shared_.write[t], __fsub_rn(shared_.value[stage][t][thread_], sum));
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) u[j] = j == t ? own : u[j];
      float out = shared_.of_query[t][thread_];
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) {
        if (j <= t) out = __fmaf_rn(shared_.queries[t][j], u[j], out);
      }
      shared_.value[stage][t][thread_] = own;
      params_.out[row * params_.out_stride + head_ * kKdaDim + thread_] = out;
      if (end_ - (start + t) <= kKeptStateRows) {
        KeptRow(kept_, start + t)[5 * kKdaDim + thread_] = own;
      }
    }
  }

  /// The state of the next block of tokens.
  __device__ __forceinline__ void EndBlock(int stage) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 product = LoadFour(&shared_.product[KeyChannel(i)]);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        state_[4 * i][c] = __fmul_rn(product.x, state_[4 * i][c]);
        state_[4 * i + 1][c] = __fmul_rn(product.y, state_[4 * i + 1][c]);
        state_[4 * i + 2][c] = __fmul_rn(product.z, state_[4 * i + 2][c]);
        state_[4 * i + 3][c] = __fmul_rn(product.w, state_[4 * i + 3][c]);
      }
    }
#pragma unroll 1
    for (int j = 0; j < kStateBlock; ++j) {
      const float4 low = LoadFour(&shared_.value[stage][j][ValueChannel()]);
      const float4 high = LoadFour(&shared_.value[stage][j][ValueChannel() + 16]);
      const float u[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 key = LoadFour(&shared_.decay[stage][j][KeyChannel(i)]);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          state_[4 * i][c] = __fmaf_rn(key.x, u[c], state_[4 * i][c]);
          state_[4 * i + 1][c] = __fmaf_rn(key.y, u[c], state_[4 * i + 1][c]);
          state_[4 * i + 2][c] = __fmaf_rn(key.z, u[c], state_[4 * i + 2][c]);
          state_[4 * i + 3][c] = __fmaf_rn(key.w, u[c], state_[4 * i + 3][c]);
        }
      }
    }
  }

  /// Stores the state behind the first `tokens` tokens where the step leaves it: as the request's
  /// own, and as the checkpoints that stand there.
  __device__ __forceinline__ void KeepState(int tokens) const {
    if (tokens == state_end_) StoreState(OwnPages());
    if (tokens <= request_.context) return;
    for (int i = request_.first_checkpoint; i < request_.end_checkpoint; ++i) {
      if (params_.rows.step.checkpoint_tokens[i] != tokens) continue;
      float* const before = StoreState(params_.rows.step.checkpoint_pages +
                                       int64_t{i} * params_.rows.step.state_stride) +
                            kKdaDim * kKdaDim;
      for (int row = 0; row < kKdaConv - 1; ++row) {
        const int position = tokens - (kKdaConv - 1) + row;
        for (int part = 0; part < 3; ++part) {
          before[(row * 3 + part) * kKdaDim + thread_] = Before(part, position);
        }
      }
    }
  }

  /// Query, key or value (part 0, 1, 2) before the convolution.
  __device__ __forceinline__ float Before(int part, int position) const {
    if (position < request_.context) return KeptRow(kept_, position)[part * kKdaDim + thread_];
    const float* const x = part == 0 ? params_.rows.q : part == 1 ? params_.rows.k : params_.rows.v;
    return x[RowOf(position) * params_.rows.stride + head_ * kKdaDim + thread_];
  }

  const KdaAttentionParams& params_;
  KdaShared& shared_;
  int number_;
  KdaRequest request_;
  int head_;
  const KdaChannel& channel_;
  int thread_;
  int lane_;
  int end_;        // position behind the last row
  int state_end_;  // tokens of the state that the step leaves
  int piece_;
  float* kept_;
  float state_[16][8];  // by key and value channel
};

}  // namespace outrider::cuda
