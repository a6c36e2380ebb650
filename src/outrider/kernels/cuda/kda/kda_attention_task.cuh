// The pass over the state of one head of one request, by a block of 128 threads or, where rows are
// many, two. The state is in registers (kda_state.cuh). Rows come through shared memory, a block of
// 16 tokens at a time, copied while the one before is computed. Longer than most files: its parts
// share one block's registers and shared memory.
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/hopper/cluster.cuh"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "outrider/kernels/cuda/kda/kda_state.cuh"

namespace outrider::cuda {

/// One head of one request: kManyRows if it has more than kKdaFewRows. The bits are the same; code
/// for few is short, as a step fetches it anew. Of many rows a block has half of the head's value
/// channels, its part; both parts are one cluster.
template <bool kManyRows>
class KdaTask {
 public:
  static constexpr int kParts = kManyRows ? 2 : 1;

  /// channel: of the block's head.
  __device__ __forceinline__ KdaTask(const KdaAttentionParams& params, KdaShared& shared,
                                     const KdaChannel& channel)
      : params_(params), shared_(shared), channel_(channel) {}

  __device__ __forceinline__ void Run() {
    {
      const KdaBlock block = OwnBlock();
      CopyRows(block, block.request.state_tokens, 0);
      LoadState(block);
      if (Thread() == 0) shared_.block = block;
    }
    __syncthreads();
    if (!kManyRows && Thread() / 32 == kKdaWarps - 1) {
      PrefetchForBlock(Number() * params_.rows.heads + Head() + kAhead);
    }
    int stage = 0;
    for (int start = Own().state_tokens; start < End(); start += kStateBlock, stage ^= 1) {
      if constexpr (!kManyRows) Finish(stage, start);
      WaitForCopies();
      __syncthreads();  // the rows are there, and the other stage is free
      // Rows are kept once both parts have copied the kept rows that they begin with.
      if (kParts > 1 && start <= Own().context && Own().context < start + kStateBlock) {
        ClusterArrive();
        ClusterWait();
      }
      if (start + kStateBlock < End()) CopyRows(shared_.block, start + kStateBlock, stage ^ 1);
      const int rows = min(kStateBlock, End() - start);
      const int first = max(0, Own().context - start);  // of the rows that run
      const int end_of_block = start + kStateBlock;
      const bool ends =
          end_of_block <= End() && (end_of_block < End() || end_of_block == StateEnd());
      const bool whole = kManyRows && IsWhole(Own(), start);
      if (!whole || !KeepsNoRow(Own(), start)) {
        Decay(stage, start, first, rows, ends, whole);
        __syncthreads();
      }
      if (first < rows) {
        if (!whole) AddParts(shared_.parts, first, rows, Thread(), shared_.of_rows[stage]);
        state_.Read(shared_, stage, first, rows);
        // From here to the next block of tokens, a warp writes what it alone reads: of its value
        // channels. Sums of rows are of all warps.
        if (whole) {
          __syncwarp();
          if constexpr (kManyRows) FinishWholeRows(stage, start);
        } else {
          __syncthreads();
          FinishRows(stage, start, first, rows);
        }
        __syncwarp();
      }
      if (ends) {
        state_.Advance(shared_, stage);
        KeepState(end_of_block);
      }
      // Weights are read again: registers hold none of them while rows run.
      channel_ =
          !kManyRows && end_of_block < End() ? LoadChannel(params_.rows, Head()) : KdaChannel{};
    }
  }

 private:
  static constexpr int kTiles = 2 / kParts;
  static constexpr int kValues = KdaState<kTiles>::kValues;  // of the part
  static constexpr int kWarpValues = kValues / kKdaWarps;

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
    PrefetchIntoL2(StatePiece(params_.rows.memory, pages, piece) + Lane() * kPart,
                   kPart * static_cast<int>(sizeof(float)));
    const int position = request.state_tokens + Lane();
    if (position >= request.context) return;
    const float* const kept =
        RowPiece(params_.rows.memory, step.row_pages + int64_t{number} * step.row_stride, piece);
    PrefetchIntoL2(KeptRow(kept, position) + 3 * kKdaDim,
                   3 * kKdaDim * static_cast<int>(sizeof(float)));
  }

  __device__ __forceinline__ KdaBlock OwnBlock() const {
    const KdaStep& step = params_.rows.step;
    const KdaRequest request = step.requests[Number()];
    const float* const kept = RowPiece(
        params_.rows.memory, step.row_pages + int64_t{Number()} * step.row_stride, Piece());
    const int end = request.context + request.num_rows;
    return {request, end, (end - request.num_drafts) / kStateBlock * kStateBlock, kept - Memory()};
  }

  /// Finishes and keeps the rows that run of the block of tokens from `start` on. A thread writes
  /// what it alone reads until all threads meet.
  __device__ __forceinline__ void Finish(int stage, int start) {
    const int first = max(Own().context, start);
    const int end = min(End(), start + kStateBlock);
    if (first >= end) return;
    const KdaRowSource source = SourceOf(params_.rows, Own(), Number(), Head());
    KdaWindow window;
    window.Begin(source, first);
#pragma unroll 1
    for (int position = first; position < end; ++position) {
      const int t = position - start;
      window.Take(source, position);
      const int64_t at = RowOf(position) * params_.rows.decay_stride + source.column;
      shared_.decay[stage][t][Thread()] =
          DecayFactor(params_.rows, params_.rows.decay[at], channel_);
      if (End() - position <= kKeptStateRows) {
        float* const kept = Kept(position) + Thread();
#pragma unroll
        for (int part = 0; part < 3; ++part) kept[part * kKdaDim] = window.x[part][kKdaConv - 1];
      }
      const KdaFinishedRow row = FinishRow(window, channel_, shared_.lengths);
      shared_.q[stage][t][Thread()] = row.q;
      shared_.k[stage][t][Thread()] = row.k;
      shared_.value[stage][t][Thread()] = row.v;
      window.Shift();
    }
  }

  /// Begins to copy the rows of the block of tokens from `start` on; not those that Finish makes.
  __device__ __forceinline__ void CopyRows(const KdaBlock& block, int start, int stage) {
    for (int t = Thread() / 32; t < kStateBlock && start + t < block.request.context;
         t += kKdaWarps) {
      const float* const row = Kept(block, start + t) + 3 * kKdaDim + Lane() * 4;
      CopyRow(stage, t, row, row + kKdaDim, row + 2 * kKdaDim);
    }
    if constexpr (kManyRows) CopyFinishedRows(block, start, stage);
    CommitCopies();
  }

  /// Those that KdaRows finished, and what KdaTokenBlocksKernel computed of them.
  __device__ __forceinline__ void CopyFinishedRows(const KdaBlock& block, int start, int stage) {
    const int64_t row = RowOf(block, start);
    const int column = Head() * kKdaDim + Lane() * 4;
    const int64_t width = int64_t{params_.rows.heads} * kKdaDim;
    int t = Thread() / 32;
    int64_t at = (row + t) * width + column;
    const float* decay = params_.rows.decay + (row + t) * params_.rows.decay_stride + column;
#pragma unroll
    for (int n = 0; n < kStateBlock / kKdaWarps; ++n) {
      if (start + t >= block.request.context && start + t < block.end) {
        CopySixteenBytes(&shared_.q[stage][t][Lane() * 4], params_.rows.q_out + at);
        CopyRow(stage, t, params_.rows.k_out + at, decay, params_.rows.v_out + at);
      }
      t += kKdaWarps;
      at += kKdaWarps * width;
      decay += kKdaWarps * params_.rows.decay_stride;
    }
    if (!IsWhole(block.request, start)) return;
    const auto* const from = reinterpret_cast<const float4*>(
        params_.blocks + NumberOfWhole(row, params_.rows.heads, Head()));
    auto* const to = reinterpret_cast<float4*>(&shared_.of_rows[stage]);
    constexpr int kPieces = sizeof(KdaTokenBlock) / sizeof(float4);
    for (int i = Thread(); i < kPieces; i += kKdaThreads) CopySixteenBytes(to + i, from + i);
  }

  /// The lane's four key channels, and those of the values that are the part's.
  __device__ __forceinline__ void CopyRow(int stage, int t, const float* k, const float* decay,
                                          const float* value) {
    CopySixteenBytes(&shared_.k[stage][t][Lane() * 4], k);
    CopySixteenBytes(&shared_.decay[stage][t][Lane() * 4], decay);
    if (Lane() * 4 >= kValues) return;
    CopySixteenBytes(&shared_.value[stage][t][Lane() * 4], value + FirstValue());
  }

  static __device__ __forceinline__ int64_t RowOf(const KdaBlock& block, int position) {
    return block.request.first_row + (position - block.request.context);
  }
  __device__ __forceinline__ int64_t RowOf(int position) const {
    return RowOf(shared_.block, position);
  }
  __device__ __forceinline__ float* Kept(const KdaBlock& block, int position) const {
    return KeptRow(Memory() + block.kept, position);
  }
  __device__ __forceinline__ float* Kept(int position) const {
    return Kept(shared_.block, position);
  }
  __device__ __forceinline__ const int32_t* OwnPages() const {
    return params_.rows.step.state_pages + int64_t{Number()} * params_.rows.step.state_stride;
  }

  __device__ __forceinline__ void LoadState(const KdaBlock& block) {
    if (block.request.state_tokens == 0) {
      state_.Clear();
      return;
    }
    const bool restores = block.request.restores != 0;
    const int32_t* const pages = restores ? params_.rows.step.restored_pages +
                                                int64_t{Number()} * params_.rows.step.state_stride
                                          : OwnPages();
    const float* const from = StatePiece(params_.rows.memory, pages, Piece());
    state_.Load(from + FirstValue() * kKdaDim);
    if (!restores) return;
    if (block.state_end == block.request.state_tokens) StoreState(OwnPages());
    if (Part() != 0) return;
    // Rows before the state, as kept rows, but where a row of the step takes the place.
    for (int i = 0; i < kKdaConv - 1; ++i) {
      const int position = block.request.context - (kKdaConv - 1) + i;
      if (block.end - position > kKeptStateRows) continue;
      for (int part = 0; part < 3; ++part) {
        Kept(block, position)[part * kKdaDim + Thread()] =
            from[kKdaDim * kKdaDim + (i * 3 + part) * kKdaDim + Thread()];
      }
    }
  }

  __device__ __forceinline__ float* StoreState(const int32_t* pages) {
    float* const to = StatePiece(params_.rows.memory, pages, Piece());
    state_.Store(to + FirstValue() * kKdaDim);
    return to;
  }

  /// A thread takes one channel of all rows: products of decays, and the parts of the sums over
  /// channels; these not of a whole block. Rows that run are kept.
  __device__ __forceinline__ void Decay(int stage, int start, int first, int rows, bool ends,
                                        bool whole) {
    KdaDecays decays;
    const bool writes = !whole && Thread() >= first && Thread() < rows;
    float write = 0.0F;
    if (writes) write = params_.write[RowOf(start + Thread()) * params_.write_stride + Head()];
#pragma unroll 1
    for (int t = 0; t < rows; ++t) {
      const float decay = shared_.decay[stage][t][Thread()];
      const float k = shared_.k[stage][t][Thread()];
      decays.Take(t, k, decay);
      if (t < first) continue;  // all threads alike
      const float q = shared_.q[stage][t][Thread()];
      shared_.k[stage][t][Thread()] = __fmul_rn(k, decays.product);
      shared_.q[stage][t][Thread()] = __fmul_rn(q, decays.product);
      KeepRow(start + t, k, decay);
      if (!whole) shared_.parts[t][Thread() / 32][Lane()] = decays.Part(k, q, Lane());
    }
    if (writes) shared_.of_rows[stage].write[Thread()] = Sigmoid(write);
    if (!ends) return;
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) shared_.decay[stage][j][Thread()] = decays.keys[j];
    shared_.of_rows[stage].product[Thread()] = decays.product;
  }

  __device__ __forceinline__ void KeepRow(int position, float k, float decay) const {
    if (Part() != 0 || End() - position > kKeptStateRows) return;  // written over in this step
    float* const kept = Kept(position) + Thread();
    if constexpr (kManyRows) {
      const int64_t at = RowOf(position) * params_.rows.stride + Head() * kKdaDim + Thread();
      kept[0] = params_.rows.q[at];
      kept[kKdaDim] = params_.rows.k[at];
      kept[2 * kKdaDim] = params_.rows.v[at];
    }
    kept[3 * kKdaDim] = k;
    kept[4 * kKdaDim] = decay;
  }

  /// A lane takes a value channel of its warp's: what rows [first, rows) add, and their outputs.
  __device__ __forceinline__ void FinishRows(int stage, int start, int first, int rows) {
    if (Lane() >= kWarpValues) return;
    const int channel = Thread() / 32 * kWarpValues + Lane();
    const KdaTokenBlock& of_rows = shared_.of_rows[stage];
    float u[kStateBlock];
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) {
      u[j] = j < first ? shared_.value[stage][j][channel] : 0.0F;
    }
#pragma unroll 1
    for (int t = first; t < rows; ++t) {
      float sum = shared_.of_key[t][channel];
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) {
        if (j < t) sum = __fmaf_rn(of_rows.keys[t][j], u[j], sum);
      }
      const float own =
          __fmul_rn(of_rows.write[t], __fsub_rn(shared_.value[stage][t][channel], sum));
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) u[j] = j == t ? own : u[j];
      float out = shared_.of_query[t][channel];
#pragma unroll
      for (int j = 0; j < kStateBlock; ++j) {
        if (j <= t) out = __fmaf_rn(of_rows.queries[t][j], u[j], out);
      }
      shared_.value[stage][t][channel] = own;
      *Out(start + t, channel) = out;
      KeepAdded(start + t, channel, own);
    }
  }

  /// As FinishRows, of a whole block. Two lanes have a value channel, and every other output.
  __device__ __forceinline__ void FinishWholeRows(int stage, int start) {
    static_assert(kWarpValues == 16);
    const int half = Lane() / 16;
    const int channel = Thread() / 32 * 16 + Lane() % 16;
    const KdaTokenBlock& of_rows = shared_.of_rows[stage];
    float u[kStateBlock];
#pragma unroll
    for (int t = 0; t < kStateBlock; ++t) {
      float sum = shared_.of_key[t][channel];
#pragma unroll
      for (int j = 0; j < t; ++j) sum = __fmaf_rn(of_rows.keys[t][j], u[j], sum);
      u[t] = __fmul_rn(of_rows.write[t], __fsub_rn(shared_.value[stage][t][channel], sum));
    }
    __syncwarp();  // values have been read by both lanes
    float* out = Out(start + half, channel);
#pragma unroll
    for (int pair = 0; pair < kStateBlock; pair += 2) {
      const int t = pair + half;
      float sum = shared_.of_query[t][channel];
#pragma unroll
      for (int j = 0; j <= pair; ++j) sum = __fmaf_rn(of_rows.queries[t][j], u[j], sum);
      const float last = __fmaf_rn(of_rows.queries[t][pair + 1], u[pair + 1], sum);
      *out = half == 0 ? sum : last;
      out += 2 * params_.out_stride;
      const float own = half == 0 ? u[pair] : u[pair + 1];
      shared_.value[stage][t][channel] = own;
      KeepAdded(start + t, channel, own);
    }
  }

  __device__ __forceinline__ float* Out(int position, int channel) const {
    return params_.out + RowOf(position) * params_.out_stride + Head() * kKdaDim + FirstValue() +
           channel;
  }
  /// What a row adds, of a value channel of the part's.
  __device__ __forceinline__ void KeepAdded(int position, int channel, float u) const {
    if (End() - position > kKeptStateRows) return;
    Kept(position)[5 * kKdaDim + FirstValue() + channel] = u;
  }

  /// Stores the state behind the first `tokens` tokens where the step leaves it: as the request's
  /// own, and as the checkpoints that stand there.
  __device__ __forceinline__ void KeepState(int tokens) {
    if (tokens == StateEnd()) StoreState(OwnPages());
    if (tokens <= Own().context) return;
    for (int i = Own().first_checkpoint; i < Own().end_checkpoint; ++i) {
      if (params_.rows.step.checkpoint_tokens[i] != tokens) continue;
      float* const before = StoreState(params_.rows.step.checkpoint_pages +
                                       int64_t{i} * params_.rows.step.state_stride) +
                            kKdaDim * kKdaDim;
      if (Part() != 0) continue;
      for (int row = 0; row < kKdaConv - 1; ++row) {
        const int position = tokens - (kKdaConv - 1) + row;
        for (int part = 0; part < 3; ++part) {
          before[(row * 3 + part) * kKdaDim + Thread()] = Before(part, position);
        }
      }
    }
  }

  /// Query, key or value (part 0, 1, 2) before the convolution.
  __device__ __forceinline__ float Before(int part, int position) const {
    if (position < Own().context) return Kept(position)[part * kKdaDim + Thread()];
    const float* const x = part == 0 ? params_.rows.q : part == 1 ? params_.rows.k : params_.rows.v;
    return x[RowOf(position) * params_.rows.stride + Head() * kKdaDim + Thread()];
  }

  // Registers are few: what is read now and then lies in shared memory.
  __device__ __forceinline__ const KdaRequest& Own() const { return shared_.block.request; }
  __device__ __forceinline__ int End() const { return shared_.block.end; }
  __device__ __forceinline__ int StateEnd() const { return shared_.block.state_end; }
  __device__ __forceinline__ float* Memory() const {
    return reinterpret_cast<float*>(params_.rows.memory.data);
  }
  static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ int Lane() { return Thread() % 32; }
  static __device__ __forceinline__ int Head() { return static_cast<int>(FreshBlock() / kParts); }
  static __device__ __forceinline__ int Part() { return static_cast<int>(FreshBlock() % kParts); }
  /// Of the part's value channels.
  static __device__ __forceinline__ int FirstValue() { return Part() * kValues; }
  static __device__ __forceinline__ int Number() { return static_cast<int>(blockIdx.y); }
  __device__ __forceinline__ int Piece() const { return params_.rows.memory.first_head + Head(); }

  const KdaAttentionParams& params_;
  KdaShared& shared_;
  KdaChannel channel_;
  KdaState<kTiles> state_;
};

}  // namespace outrider::cuda
