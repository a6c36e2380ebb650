// MLA decode on Hopper: 64 rows against tiles of 64 keys, four warpgroups per block with a role
// each, one block per multiprocessor, items pulled from a device-side list.
//
// Rows are (token, head) pairs of one request, so a window of any length fills tiles without
// padding between tokens. The output of 64 rows, 512 float32 columns each, takes half of the
// register file, so one tile of rows is resident.
//   producer  fetches items, queries and keys; for an e4m3 cache it also converts to bf16 (exact;
//             the tensor's scale goes into the softmax scale and the output).
//   scores    S = Q K^T over all 576 dimensions, references (maxima), probabilities P to shared
//             memory, sums; everything that is one number per row.
//   outputs   two warpgroups with 256 columns each: O = O * alpha_t + P_t V_t.
// While scores turns S of a tile into P, outputs multiplies the tile before. Every role takes tiles
// in order and waits only for what it needs, so neither a late key nor a late P holds up the other.
//
// The arithmetic is that of a single sequence over tiles, with the reference m_t of each row; a
// tile whose keys a row does not see leaves the row's bits alone. The reference moves only when the
// maximum has grown by more than 2^8 since (each row decides for itself); alpha is exactly 1
// otherwise and the rescaling is skipped.
//
// At a split's end (MlaSplits) O, the reference and the sum are folded into a running result in
// global memory, private to the block and small enough to stay in L2, and O starts again. An item
// that covers only later splits of a long request leaves its result for the combine kernel.
//
// Keys arrive through tensor maps as {64 columns, 8 rows, column groups, row groups}, so shared
// memory holds [row group][column group][8 rows x 128 bytes, swizzled] and both strides of the
// wgmma descriptors are uniform whatever the page size. A stage has three parts with barriers of
// their own: columns 0-255 and 256-511 (each freed by the warpgroup whose half of V it is) and
// 512-575; a producer warp each, since there is room for two stages only and a late copy is felt at
// once.
#pragma once

#include "outrider/kernels/cuda/mla_decode_layout.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

struct MlaKernelArguments {
  MlaWorkspace workspace;
  const int* block_table;
  int block_table_stride;
  const uint8_t* cache;  // e4m3
  int page_shift;        // log2 of the page size
  int heads;
  float score_scale;  // softmax_scale * cache_scale * log2(e)
  float value_scale;
  const float* sink;
  const uint32_t* visible;
  __nv_bfloat16* output;
  float* lse;
  MlaSplits splits;
};

struct MlaTensorMaps {
  CUtensorMap q;          // box 64 columns, 8 rows, 9 column groups, 1 row group
  CUtensorMap kv_half;    // box 64, 8, 4, min(page, 64) / 8
  CUtensorMap kv_rotary;  // box 64, 8, 1, min(page, 64) / 8
};

inline constexpr int kOutputThreads = 256;    // warpgroups 0 and 1
inline constexpr int kScoreThreads = 128;     // warpgroup 2
inline constexpr int kProducerThreads = 128;  // warpgroup 3
inline constexpr int kMlaThreads = kOutputThreads + kScoreThreads + kProducerThreads;
inline constexpr int kStages = 2;
inline constexpr uint32_t kGroupBytes = 1024;  // 8 rows of 64 columns
inline constexpr uint32_t kQBytes = 64 * kMlaKeyDim * 2;
inline constexpr uint32_t kHalfBytes = 64 * 256 * 2;
inline constexpr uint32_t kRotaryBytes = 64 * 64 * 2;
inline constexpr uint32_t kStageBytes = 2 * kHalfBytes + kRotaryBytes;

struct MlaShared {
  alignas(1024) uint8_t q[kQBytes];  // [8 row groups][9][1024]
  alignas(
      1024) uint8_t kv[kStages][kStageBytes];  // halves [8 row groups][4][1024], rotary [8][1024]
  alignas(1024) uint8_t p[64 * 64 * 2];        // [8 row groups][1024]
  float alpha[kMlaTileRows];
  float fold[2][2][kMlaTileRows];  // by split parity: weights of the running result and the split
  float factor[2][kMlaTileRows];   // by split parity: accumulated row to output
  int next_index;
  MlaItem item[2];
  uint64_t kv_full[kStages][3];
  uint64_t kv_empty[kStages][3];
  uint64_t p_full[2];  // keys 0-31 and 32-63 of the tile
  uint64_t p_empty;
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t item_full[2];
  uint64_t item_empty[2];
};

inline constexpr int kProducerBarrier = 1;

// ---------------------------------------------------------------------------------------------
// Producer

/// Two e4m3 in the high bytes of each half of `high_bytes` to bf16, exactly (NaN becomes 480).
__device__ __forceinline__ uint32_t E4m3ToBf16(uint32_t high_bytes) {
  const uint32_t shifted = (high_bytes & 0x80008000u) | ((high_bytes >> 4) & 0x07F007F0u);
  const __nv_bfloat162 scale =
      __nv_bfloat162(__ushort_as_bfloat16(0x7B80), __ushort_as_bfloat16(0x7B80));
  const __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&shifted);
  const __nv_bfloat162 result = __hmul2(value, scale);  // * 2^120
  return *reinterpret_cast<const uint32_t*>(&result);
}

template <bool kE4m3>
__device__ __forceinline__ void Produce(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                        MlaShared& shared) {
  const int thread = threadIdx.x - kOutputThreads - kScoreThreads;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int box_shift = min(args.page_shift, 6);
  const int boxes = kMlaTileKeys >> box_shift;
  const int page_mask = (1 << args.page_shift) - 1;
  const int num_items = args.workspace.counters->num_items;
  uint32_t tile_count = 0;
  uint32_t item_count = 0;
  int index = blockIdx.x;
  while (true) {
    const int slot = item_count & 1;
    // The list has room for indices past its end.
    MlaItem item = args.workspace.items[index];
    if (index >= num_items) item.request = -1;
    if (thread == 0) {
      BarrierWait(&shared.item_empty[slot], ((item_count >> 1) & 1) ^ 1);
      shared.item[slot] = item;
      BarrierArrive(&shared.item_full[slot]);
    }
    if (item.request < 0) break;
    int next = 0;
    if (thread == 0) next = gridDim.x + atomicAdd(&args.workspace.counters->next_item, 1);
    // Queries, 8 rows per copy; rows past the tile keep what was there and are never stored.
    if (thread == 0) {
      const int groups = (item.rows & 255) / 8;
      BarrierWait(&shared.q_empty, (item_count & 1) ^ 1);
      BarrierArriveExpect(&shared.q_full, groups * 9 * kGroupBytes);
      for (int i = 0; i < groups; ++i) {
        TensorLoad4d(shared.q + i * 9 * kGroupBytes, &maps.q, &shared.q_full, kEvictNormal, 0, 0, 0,
                     item.first_row / 8 + i);
      }
    }
    const int* table =
        args.block_table + static_cast<size_t>(item.request) * args.block_table_stride;
    const int last_page = max(0, (item.seq_len - 1) >> args.page_shift);
    const int tiles = (item.key_end - item.key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    // Block table entries, 32 boxes at a time, one batch ahead.
    auto entry = [&](int box) {
      const int key = item.key_begin + (box << box_shift);
      return __ldg(&table[min(key >> args.page_shift, last_page)]);
    };
    int pages = 0;
    int pages_ahead = tiles > 0 ? entry(lane) : 0;
    for (int tile = 0; tile < tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      const uint32_t parity = ((tile_count / kStages) & 1) ^ 1;
      if (tile * boxes % 32 == 0) {
        pages = pages_ahead;
        pages_ahead = entry(tile * boxes + 32 + lane);
      }
      uint8_t* destination = shared.kv[stage];
      if constexpr (!kE4m3) {
        const uint32_t box_groups = 8 / boxes;
        // The first row group of box `number` of this item.
        auto row_group_of = [&](int number, int entries) {
          const int page = __shfl_sync(~0u, entries, number % 32);
          const int key = item.key_begin + (number << box_shift);
          return ((page << args.page_shift) + (key & page_mask)) / 8;
        };
        int row_groups[4];
#pragma unroll
        for (int box = 0; box < 4; ++box) {
          if (box < boxes) row_groups[box] = row_group_of(tile * boxes + box, pages);
        }
        if (lane == 0 && warp < 3) {
          BarrierWait(&shared.kv_empty[stage][warp], parity);
          BarrierArriveExpect(&shared.kv_full[stage][warp], warp < 2 ? kHalfBytes : kRotaryBytes);
          const CUtensorMap* map = warp < 2 ? &maps.kv_half : &maps.kv_rotary;
          const uint32_t box_bytes = box_groups * (warp < 2 ? 4 : 1) * kGroupBytes;
#pragma unroll
          for (int box = 0; box < 4; ++box) {
            if (box < boxes) {
              TensorLoad4d(destination + warp * kHalfBytes + box * box_bytes, map,
                           &shared.kv_full[stage][warp], kEvictFirst, 0, 0, 4 * warp,
                           row_groups[box]);
            }
          }
        }
        __syncwarp();
      } else {
        // 64 rows x 36 chunks of 16 bytes; thread t takes row t / 2, every other chunk.
        const int row = thread / 2;
        const int key = item.key_begin + tile * kMlaTileKeys + row;
        const int page = __shfl_sync(~0u, pages, (tile * boxes + (row >> box_shift)) % 32);
        const uint4* source = reinterpret_cast<const uint4*>(
            args.cache +
            ((static_cast<size_t>(page) << args.page_shift) + (key & page_mask)) * kMlaKeyDim);
        constexpr int kChunks = kMlaKeyDim / 16 / 2;
        uint4 raw[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) raw[i] = __ldcs(&source[2 * i + thread % 2]);
        for (int part = 0; part < 3; ++part) BarrierWait(&shared.kv_empty[stage][part], parity);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          const int chunk = 2 * i + thread % 2;  // 16 columns
          const int group = chunk / 4;           // 64 columns
          uint8_t* base;
          if (group < 8) {
            base = destination + (group / 4) * kHalfBytes + (row / 8 * 4 + group % 4) * kGroupBytes;
          } else {
            base = destination + 2 * kHalfBytes + row / 8 * kGroupBytes;
          }
          base += row % 8 * 128;
          const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
          uint32_t out[8];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            out[2 * w] = E4m3ToBf16(__byte_perm(words[w], 0, 0x1404));
            out[2 * w + 1] = E4m3ToBf16(__byte_perm(words[w], 0, 0x3424));
          }
          const int column = chunk % 4 * 2;
          *reinterpret_cast<uint4*>(base + ((column ^ (row % 8)) * 16)) =
              make_uint4(out[0], out[1], out[2], out[3]);
          *reinterpret_cast<uint4*>(base + (((column + 1) ^ (row % 8)) * 16)) =
              make_uint4(out[4], out[5], out[6], out[7]);
        }
        ProxyFence();
        for (int part = 0; part < 3; ++part) BarrierArrive(&shared.kv_full[stage][part]);
      }
    }
    ++item_count;
    if (thread == 0) shared.next_index = next;
    NamedSync(kProducerBarrier, kProducerThreads);
    index = shared.next_index;
    NamedSync(kProducerBarrier, kProducerThreads);
  }
}

// ---------------------------------------------------------------------------------------------
// Consumers

/// The tiles of an item and where its splits end; scores and outputs walk it alike.
struct SplitWalk {
  int tiles;
  int split_end;
  bool first_in_split = true;
  bool first_split = true;  // nothing has been folded yet
  int emitted = 0;          // partial results left so far

  __device__ SplitWalk(const MlaItem& item, const MlaSplits& splits) {
    tiles = (item.key_end - item.key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    split_end =
        splits.base == 0 ? item.key_end : min(item.key_end, NextSplit(splits, item.key_begin));
  }
  __device__ bool Ends(const MlaItem& item, int tile) const {
    return item.key_begin + (tile + 1) * kMlaTileKeys >= split_end;
  }
  __device__ bool Last(const MlaItem& item) const { return split_end >= item.key_end; }
  /// Whether the split's end gives a result: always for an item that begins later than its request.
  __device__ bool Emits(const MlaItem& item) const { return Last(item) || item.key_begin > 0; }
  __device__ void Advance(const MlaItem& item, const MlaSplits& splits) {
    first_split = Emits(item);
    emitted += first_split;
    first_in_split = true;
    if (!Last(item)) split_end = min(item.key_end, NextSplit(splits, split_end));
  }
  /// Where row `row` of the result goes among the partial results.
  __device__ size_t PartialRow(const MlaItem& item, int rows, int row) const {
    const int units = (rows + kMlaUnitRows - 1) / kMlaUnitRows;
    return static_cast<size_t>(item.partial_unit + emitted * units) * kMlaUnitRows + row;
  }
};

__device__ __forceinline__ MlaItem TakeItem(MlaShared& shared, uint32_t item_count) {
  const int slot = item_count & 1;
  BarrierWait(&shared.item_full[slot], (item_count >> 1) & 1);
  const MlaItem item = shared.item[slot];
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(&shared.item_empty[slot]);
  return item;
}

__device__ __forceinline__ void MultiplyScores(MlaShared& shared, int stage, uint32_t parity,
                                               float (&scores)[32]) {
  const uint32_t q = SharedAddress(shared.q);
  const uint32_t kv = SharedAddress(shared.kv[stage]);
  PinRegisters(scores);
  WgmmaFence();
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    BarrierWait(&shared.kv_full[stage][part], parity);
#pragma unroll
    for (int step = 0; step < (part < 2 ? 16 : 4); ++step) {
      const int group = part * 4 + step / 4;
      const uint64_t a =
          MakeDescriptor(q + group * kGroupBytes + step % 4 * 32, 16, 9 * kGroupBytes);
      const uint64_t b =
          part < 2 ? MakeDescriptor(kv + part * kHalfBytes + step / 4 * kGroupBytes + step % 4 * 32,
                                    16, 4 * kGroupBytes)
                   : MakeDescriptor(kv + 2 * kHalfBytes + step * 32, 16, kGroupBytes);
      WgmmaM64N64_SS_KK(scores, a, b, part != 0 || step != 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(scores);
}

/// Values past the end of a request may be anything, and 0 * NaN must not happen.
__device__ __forceinline__ void ClearRows(uint8_t* kv, int begin, int thread) {
  for (int at = begin * 64 + thread; at < 64 * 64; at += kScoreThreads) {
    const int row = at / 64;
    const int chunk = at % 64;
    *reinterpret_cast<uint4*>(kv + chunk / 32 * kHalfBytes + row / 8 * 4 * kGroupBytes +
                              chunk % 32 / 8 * kGroupBytes + row % 8 * 128 + chunk % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
}

__device__ __forceinline__ void ComputeScores(const MlaKernelArguments& args, MlaShared& shared) {
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row0 = warp * 16 + lane / 4;  // and row0 + 8
  // stmatrix: lane l gives the address of row l % 8 of matrix l / 8 (rows +8, then columns +8).
  const int store_row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const uint32_t store_base = SharedAddress(shared.p) + store_row * 128;
  const int store_chunk = lane / 16;

  float scores[32];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const MlaItem item = TakeItem(shared, item_count);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.rows & 255;
    const int row_in_request = item.rows >> 8;
    int limit[2];            // keys before this one may be visible
    uint32_t visible[2];     // mask over keys from `context`
    float reference[2];      // of the current split, unscaled
    float sum[2];            // of this thread's columns
    float run_reference[2];  // of the splits folded so far, scaled (log2)
    float run_sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row0 + 8 * i, rows - 1);
      const int token = (row_in_request + row) / args.heads;
      limit[i] = args.visible != nullptr ? item.seq_len : item.context + token + 1;
      visible[i] = args.visible != nullptr ? args.visible[(item.first_row + row) / args.heads] : 0;
      reference[i] = -INFINITY;
      sum[i] = 0.0f;
      run_reference[i] = -INFINITY;
      run_sum[i] = 0.0f;
    }
    // Keys before this one are visible to every row of the tile.
    const int all_visible =
        args.visible != nullptr ? item.context : item.context + row_in_request / args.heads + 1;
    BarrierWait(&shared.q_full, item_count & 1);
    if (walk.tiles == 0) {
      if (lane == 0) BarrierArrive(&shared.q_empty);
      for (int row = thread; row < rows; row += kScoreThreads) {
        args.lse[item.first_row + row] = -INFINITY;
      }
      continue;
    }

    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      MultiplyScores(shared, stage, (tile_count / kStages) & 1, scores);
      if (lane == 0) {
        BarrierArrive(&shared.kv_empty[stage][2]);
        if (tile + 1 == walk.tiles) BarrierArrive(&shared.q_empty);
      }

      const int key0 = item.key_begin + tile * kMlaTileKeys;
      if (key0 + kMlaTileKeys > all_visible) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          const int i = j / 2 % 2;
          const int key = key0 + j / 4 * 8 + lane % 4 * 2 + j % 2;
          bool seen = key < limit[i];
          if (args.visible != nullptr) {
            const int offset = key - item.context;
            seen = seen && (offset < 0 || (offset < 32 && (visible[i] >> offset & 1)));
          }
          if (!seen) scores[j] = -INFINITY;
        }
        if (key0 + kMlaTileKeys > item.seq_len) {
          ClearRows(shared.kv[stage], max(0, item.seq_len - key0), thread);
        }
      }

      float alpha[2];
      float negative[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = scores[2 * i];
#pragma unroll
        for (int j = 0; j < 32; j += 4) {
          top = fmaxf(top, fmaxf(scores[j + 2 * i], scores[j + 2 * i + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float before = reference[i];
        const bool grow = (top - before) * args.score_scale > 8.0f;
        reference[i] = grow ? top : before;
        alpha[i] = grow ? Exp2((before - top) * args.score_scale) : 1.0f;
        negative[i] = reference[i] == -INFINITY ? 0.0f : -reference[i] * args.score_scale;
      }
      // Hand over once the outputs have taken the tile before; the first half at once, so that they
      // can start while the second is computed.
      BarrierWait(&shared.p_empty, (tile_count & 1) ^ 1);
      if (lane % 4 == 0) {
        shared.alpha[row0] = alpha[0];
        shared.alpha[row0 + 8] = alpha[1];
      }
      float part[2][2] = {};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t packed[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int i = k % 2;
          const int j = step * 8 + k / 2 * 4 + 2 * i;
          const float x = Exp2(__fmaf_rn(scores[j], args.score_scale, negative[i]));
          const float y = Exp2(__fmaf_rn(scores[j + 1], args.score_scale, negative[i]));
          part[i][0] += x;
          part[i][1] += y;
          packed[k] = PackBf16(x, y);
        }
        StoreMatrix4(store_base + (((2 * step + store_chunk) ^ (store_row % 8)) * 16), packed[0],
                     packed[1], packed[2], packed[3]);
        if (step == 1) {
          ProxyFence();
          __syncwarp();
          if (lane == 0) BarrierArrive(&shared.p_full[0]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] = sum[i] * alpha[i] + (part[i][0] + part[i][1]);
      if (walk.Ends(item, tile)) {
        const int buffer = split_count++ & 1;
        const bool emits = walk.Emits(item);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          float l = sum[i];
          l += __shfl_xor_sync(~0u, l, 1);
          l += __shfl_xor_sync(~0u, l, 2);
          float m = reference[i] == -INFINITY ? -INFINITY : reference[i] * args.score_scale;
          if (!walk.first_split) {
            float a, b;
            FoldWeights(run_reference[i], m, &m, &a, &b);
            l = Fold(run_sum[i], l, a, b);
            if (lane % 4 == 0) {
              shared.fold[buffer][0][row] = a;
              shared.fold[buffer][1][row] = b;
            }
          }
          run_reference[i] = m;
          run_sum[i] = l;
          reference[i] = -INFINITY;
          sum[i] = 0.0f;
          if (emits && lane % 4 == 0 && row < rows) {
            if (item.partial_unit >= 0) {
              args.workspace.partial_stats[walk.PartialRow(item, rows, row)] = make_float2(m, l);
            } else {
              const int at = item.first_row + row;
              float lse;
              shared.factor[buffer][row] =
                  FinishRow(m, l, args.value_scale, args.sink, at % args.heads, &lse);
              args.lse[at] = lse;
            }
          }
        }
        walk.Advance(item, args.splits);
      }
      ProxyFence();
      __syncwarp();
      if (lane == 0) BarrierArrive(&shared.p_full[1]);
    }
  }
}

__device__ __forceinline__ void AccumulateOutputs(const MlaKernelArguments& args,
                                                  MlaShared& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int lane = threadIdx.x % 32;
  const int row0 = threadIdx.x % 128 / 32 * 16 + lane / 4;  // and row0 + 8
  const int column = group * 256 + lane % 4 * 2;
  const uint32_t p = SharedAddress(shared.p);
  float4* running = reinterpret_cast<float4*>(args.workspace.running) +
                    static_cast<size_t>(blockIdx.x) * (64 * kMlaValueDim / 4) + threadIdx.x;
  // Of a tile of 16 rows the first warp of either warpgroup holds everything; its running result
  // has room in shared memory, where the queries of rows 16 to 63 would be.
  float4* running16 = reinterpret_cast<float4*>(shared.q + 2 * 9 * kGroupBytes) + group * 32 + lane;
  // Two halves of 128 columns: at 512 threads the compiler refuses wider products.
  float output[2][64];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const MlaItem item = TakeItem(shared, item_count);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.rows & 255;
    const bool warp_rows = row0 - lane / 4 < rows;  // this warp has rows of the item
    const bool in_shared = rows <= 16;
    // The first warp has all rows of a small tile. Waiting for the queries keeps its arrivals for
    // successive items apart.
    const bool first_warp = threadIdx.x % 128 < 32;
    if (first_warp) BarrierWait(&shared.q_full, item_count & 1);
    if (walk.tiles == 0) {
      for (int row = threadIdx.x / 32; row < rows; row += kOutputThreads / 32) {
        uint4* out = reinterpret_cast<uint4*>(
            args.output + (static_cast<size_t>(item.first_row) + row) * kMlaValueDim);
        out[lane] = make_uint4(0, 0, 0, 0);
        out[lane + 32] = make_uint4(0, 0, 0, 0);
      }
      if (first_warp && lane == 0) BarrierArrive(&shared.q_empty);
      continue;
    }
    // Queries may be overwritten once the running result beside them is no longer needed.
    const bool holds_q = in_shared && first_warp && !walk.Last(item);
    if (first_warp && !holds_q && lane == 0) BarrierArrive(&shared.q_empty);
    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      BarrierWait(&shared.p_full[0], tile_count & 1);
      const float alpha0 = shared.alpha[row0];
      const float alpha1 = shared.alpha[row0 + 8];
      if (!walk.first_in_split && __any_sync(~0u, alpha0 != 1.0f || alpha1 != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) output[i / 64][i % 64] *= i & 2 ? alpha1 : alpha0;
      }
      const uint32_t values = SharedAddress(shared.kv[stage]) + group * kHalfBytes;
      PinRegisters(output[0]);
      PinRegisters(output[1]);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          WgmmaCommit();
          BarrierWait(&shared.p_full[1], tile_count & 1);
          WgmmaFence();
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          WgmmaM64N128_SS_MN(output[half], MakeDescriptor(p + step * 32, 16, kGroupBytes),
                             MakeDescriptor(values + (step * 2 * 4 + half * 2) * kGroupBytes,
                                            kGroupBytes, 4 * kGroupBytes),
                             !walk.first_in_split || step != 0);
        }
      }
      WgmmaCommit();
      WgmmaWait<0>();
      PinRegisters(output[0]);
      PinRegisters(output[1]);
      if (lane == 0) {
        BarrierArrive(&shared.kv_empty[stage][group]);
        BarrierArrive(&shared.p_empty);
      }
      walk.first_in_split = false;
      if (!walk.Ends(item, tile)) continue;

      const int buffer = split_count++ & 1;
      const bool last = walk.Emits(item);
      const bool item_ends = walk.Last(item);
      if (warp_rows) {
        float a0 = 1.0f, a1 = 1.0f, b0 = 1.0f, b1 = 1.0f;
        if (!walk.first_split) {
          a0 = shared.fold[buffer][0][row0];
          a1 = shared.fold[buffer][0][row0 + 8];
          b0 = shared.fold[buffer][1][row0];
          b1 = shared.fold[buffer][1][row0 + 8];
        }
        const bool add = !walk.first_split && !last && !__any_sync(~0u, a0 != 1.0f || a1 != 1.0f);
        if (in_shared) {
          if (!walk.first_split) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
              const float4 before = running16[i * 64];
              float* o = &output[i / 16][4 * i % 64];
              o[0] = Fold(before.x, o[0], a0, b0);
              o[1] = Fold(before.y, o[1], a0, b0);
              o[2] = Fold(before.z, o[2], a1, b1);
              o[3] = Fold(before.w, o[3], a1, b1);
            }
          }
          if (!last) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
              running16[i * 64] =
                  make_float4(output[i / 16][4 * i % 64], output[i / 16][4 * i % 64 + 1],
                              output[i / 16][4 * i % 64 + 2], output[i / 16][4 * i % 64 + 3]);
            }
          }
        } else if (add) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            AddToGlobal(&running[i * kOutputThreads], __fmul_rn(output[i / 16][4 * i % 64], b0),
                        __fmul_rn(output[i / 16][4 * i % 64 + 1], b0),
                        __fmul_rn(output[i / 16][4 * i % 64 + 2], b1),
                        __fmul_rn(output[i / 16][4 * i % 64 + 3], b1));
          }
        } else if (!walk.first_split) {
          constexpr int kBatch = 8;
#pragma unroll
          for (int first = 0; first < 32; first += kBatch) {
            float4 before[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
              before[i] = LoadGlobal(&running[(first + i) * kOutputThreads]);
            }
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
              const int i = first + k;
              float* o = &output[i / 16][4 * i % 64];
              o[0] = Fold(before[k].x, o[0], a0, b0);
              o[1] = Fold(before[k].y, o[1], a0, b0);
              o[2] = Fold(before[k].z, o[2], a1, b1);
              o[3] = Fold(before[k].w, o[3], a1, b1);
            }
          }
        }
        if (!in_shared && !last && !add) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            __stcg(&running[i * kOutputThreads],
                   make_float4(output[i / 16][4 * i % 64], output[i / 16][4 * i % 64 + 1],
                               output[i / 16][4 * i % 64 + 2], output[i / 16][4 * i % 64 + 3]));
          }
        }
      }
      if (holds_q && item_ends) {
        ProxyFence();
        __syncwarp();
        if (lane == 0) BarrierArrive(&shared.q_empty);
      }
      if (last && item.partial_unit >= 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          if (row >= rows) continue;
          const size_t at = walk.PartialRow(item, rows, row);
          float* out = args.workspace.partial_outputs + at * kMlaValueDim + column;
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            __stcg(reinterpret_cast<float2*>(out + 8 * j),
                   make_float2(output[j / 16][4 * j % 64 + 2 * i],
                               output[j / 16][4 * j % 64 + 2 * i + 1]));
          }
        }
      } else if (last) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          if (row >= rows) continue;
          const float factor = shared.factor[buffer][row];
          __nv_bfloat16* out =
              args.output + (static_cast<size_t>(item.first_row) + row) * kMlaValueDim + column;
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            *reinterpret_cast<uint32_t*>(out + 8 * j) = OutputPair(
                output[j / 16][4 * j % 64 + 2 * i], output[j / 16][4 * j % 64 + 2 * i + 1], factor);
          }
        }
      }
      walk.Advance(item, args.splits);
    }
  }
}

template <bool kE4m3>
__global__ void __launch_bounds__(kMlaThreads, 1)
    DecodeMlaSm90(const __grid_constant__ MlaKernelArguments args,
                  const __grid_constant__ MlaTensorMaps maps) {
  // Without static shared memory the dynamic part begins at a multiple of 1024, which the swizzle
  // needs; there are no bytes left to align it by hand.
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  MlaShared& shared = *reinterpret_cast<MlaShared*>(shared_bytes);
  if (threadIdx.x == 0 && (SharedAddress(shared_bytes) & 1023) != 0) __trap();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < 3; ++part) {
        BarrierInit(&shared.kv_full[stage][part], kE4m3 ? kProducerThreads : 1);
      }
      for (int part = 0; part < 3; ++part) BarrierInit(&shared.kv_empty[stage][part], 4);
    }
    for (int half = 0; half < 2; ++half) BarrierInit(&shared.p_full[half], 4);
    BarrierInit(&shared.p_empty, 8);
    BarrierInit(&shared.q_full, 1);
    BarrierInit(&shared.q_empty, 4 + 2);  // scores; the first warp of either output warpgroup
    for (int slot = 0; slot < 2; ++slot) {
      BarrierInit(&shared.item_full[slot], 1);
      BarrierInit(&shared.item_empty[slot], 12);
    }
    BarrierInitFence();
    PrefetchTensorMap(&maps.q);
    PrefetchTensorMap(&maps.kv_half);
    PrefetchTensorMap(&maps.kv_rotary);
  }
  __syncthreads();
  WaitForPriorGrid();
  LaunchDependents();
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 3) {
    LowerRegisters<kE4m3 ? 88 : 40>();
    Produce<kE4m3>(args, maps, shared);
  } else if (role == 2) {
    LowerRegisters<104>();
    ComputeScores(args, shared);
  } else {
    RaiseRegisters<kE4m3 ? 160 : 184>();
    AccumulateOutputs(args, shared);
  }
}

}  // namespace outrider::cuda
