// MLA decode on Hopper: 64 rows against tiles of 64 keys, two consumer warpgroups and one producer
// warpgroup per block, one block per multiprocessor, items pulled from a device-side list.
//
// Rows are (token, head) pairs of one request, so a window of any length fills tiles without
// padding between tokens. The output of 64 rows, 512 float32 columns each, takes half of the
// register file, so one tile is resident and its columns are halved between the consumers.
//
// A tile of keys goes through three phases. Its owner (warpgroup t mod 2) multiplies S = Q K^T over
// all 576 dimensions, keeps the row maxima and turns S into probabilities P; P goes to shared memory
// for the other warpgroup. Then both add P V to their halves of O, the owner reading P from its
// registers. While one warpgroup computes probabilities, the other's products keep the tensor cores
// busy. The arithmetic is that of a single sequence over tiles: O = O * alpha_t + P_t V_t with the
// reference (maximum) m_t handed from owner to owner, so a tile whose keys a row does not see leaves
// the row's bits alone. The reference moves only when the maximum has grown by more than 2^8 since
// (each row decides for itself); alpha is exactly 1 otherwise and the rescaling is skipped.
//
// At a split's end (MlaSplits) O, the reference and the sum are folded into a running result in
// global memory, private to the block and small enough to stay in L2, and O starts again. An item
// that covers only later splits of a long request leaves its result for the combine kernel.
//
// Keys arrive through tensor maps as {64 columns, 8 rows, column groups, row groups}, so shared
// memory holds [row group][column group][8 rows x 128 bytes, swizzled] and both strides of the wgmma
// descriptors are uniform whatever the page size. A stage has three parts with barriers of their
// own: columns 0-255 and 256-511 (each freed by the warpgroup whose half of V it is) and 512-575.
// An e4m3 cache is converted on the way by the producer warpgroup: e4m3 to bf16 is exact, and the
// scale of the tensor goes into the softmax scale and the output.
#pragma once

#include "outrider/kernels/cuda/mla_decode_layout.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

struct MlaKernelArguments {
  MlaWorkspace workspace;
  const int* block_table;
  int block_table_stride;
  const uint8_t* cache;  // e4m3
  int page_size;
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
  CUtensorMap q;         // box 64 columns, 8 rows, 9 column groups, 2 row groups
  CUtensorMap kv_half;   // box 64, 8, 4, min(page, 64) / 8
  CUtensorMap kv_rotary;  // box 64, 8, 1, min(page, 64) / 8
};

inline constexpr int kConsumerThreads = 256;
inline constexpr int kProducerThreads = 128;
inline constexpr int kMlaThreads = kConsumerThreads + kProducerThreads;
inline constexpr int kStages = 2;
inline constexpr uint32_t kGroupBytes = 1024;  // 8 rows of 64 columns
inline constexpr uint32_t kQBytes = 64 * kMlaKeyDim * 2;
inline constexpr uint32_t kHalfBytes = 64 * 256 * 2;
inline constexpr uint32_t kRotaryBytes = 64 * 64 * 2;
inline constexpr uint32_t kStageBytes = 2 * kHalfBytes + kRotaryBytes;

struct MlaShared {
  alignas(1024) uint8_t q[kQBytes];              // [8 row groups][9][1024]
  alignas(1024) uint8_t kv[kStages][kStageBytes];  // halves [8 row groups][4][1024], rotary [8][1024]
  alignas(1024) uint8_t p[64 * 64 * 2];          // [8 row groups][1024]
  float reference[kMlaTileRows];
  float alpha[kMlaTileRows];
  float sums[2][2][kMlaTileRows];  // by split parity and warpgroup
  MlaItem item[2];
  uint64_t kv_full[kStages][3];
  uint64_t kv_empty[kStages][2];
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t item_full[2];
  uint64_t item_empty[2];
};

// Named barriers: probabilities of even and odd tiles are ready; a split's end.
inline constexpr int kProbabilitiesReady = 1;
inline constexpr int kSplitEnd = 3;

// ---------------------------------------------------------------------------------------------
// Producer

/// Two e4m3 in the high bytes of each half of `high_bytes` to bf16, exactly (NaN becomes 480).
__device__ __forceinline__ uint32_t E4m3ToBf16(uint32_t high_bytes) {
  const uint32_t shifted = (high_bytes & 0x80008000u) | ((high_bytes >> 4) & 0x07F007F0u);
  const __nv_bfloat162 scale = __nv_bfloat162(__ushort_as_bfloat16(0x7B80), __ushort_as_bfloat16(0x7B80));
  const __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&shifted);
  const __nv_bfloat162 result = __hmul2(value, scale);  // * 2^120
  return *reinterpret_cast<const uint32_t*>(&result);
}

template <bool kE4m3>
__device__ __forceinline__ void Produce(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                        MlaShared& shared) {
  const int thread = threadIdx.x - kConsumerThreads;
  const int lane = thread % 32;
  if (!kE4m3 && thread >= 32) return;
  const int num_items = args.workspace.counters->num_items;
  const int keys_per_box = min(args.page_size, kMlaTileKeys);
  const int boxes = kMlaTileKeys / keys_per_box;
  uint32_t tile_count = 0;
  uint32_t item_count = 0;
  int index = blockIdx.x;
  while (true) {
    const int slot = item_count & 1;
    MlaItem item;
    if (index < num_items) {
      item = args.workspace.items[index];
    } else {
      item.request = -1;
    }
    // Hand the item over.
    if (kE4m3) NamedSync(4, kProducerThreads);
    if (thread == 0) {
      BarrierWait(&shared.item_empty[slot], ((item_count >> 1) & 1) ^ 1);
      shared.item[slot] = item;
      BarrierArrive(&shared.item_full[slot]);
    }
    __syncwarp();
    if (item.request < 0) break;
    int next = 0;
    if (lane == 0 && thread < 32) {
      next = gridDim.x + atomicAdd(&args.workspace.counters->next_item, 1);
    }
    // Queries, 16 rows per copy; rows past the tile keep what was there and are never stored.
    if (thread == 0) {
      const int groups = ((item.rows & 255) + 15) / 16;
      BarrierWait(&shared.q_empty, (item_count & 1) ^ 1);
      BarrierArriveExpect(&shared.q_full, groups * (16 * kMlaKeyDim * 2));
      for (int i = 0; i < groups; ++i) {
        TensorLoad4d(shared.q + i * 18 * kGroupBytes, &maps.q, &shared.q_full, kEvictNormal, 0, 0, 0,
                     item.first_row / 8 + 2 * i);
      }
    }
    const int* table =
        args.block_table + static_cast<size_t>(item.request) * args.block_table_stride;
    const int last_page = max(0, (item.seq_len - 1) / args.page_size);
    const int tiles = (item.key_end - item.key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    // Block table entries, 32 boxes at a time, one batch ahead.
    auto entry = [&](int box) {
      const int key = item.key_begin + box * keys_per_box;
      return __ldg(&table[min(key / args.page_size, last_page)]);
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
        const uint32_t box_groups = keys_per_box / 8;
        for (int part = 0; part < 3; ++part) {
          if (lane == 0) {
            if (part < 2) BarrierWait(&shared.kv_empty[stage][part], parity);
            BarrierArriveExpect(&shared.kv_full[stage][part], part < 2 ? kHalfBytes : kRotaryBytes);
          }
          for (int box = 0; box < boxes; ++box) {
            const int page = __shfl_sync(~0u, pages, (tile * boxes + box) % 32);
            const int key = item.key_begin + tile * kMlaTileKeys + box * keys_per_box;
            const int row_group = (page * args.page_size + key % args.page_size) / 8;
            if (lane == 0) {
              if (part < 2) {
                TensorLoad4d(destination + part * kHalfBytes + box * box_groups * 4 * kGroupBytes,
                             &maps.kv_half, &shared.kv_full[stage][part], kEvictFirst, 0, 0,
                             4 * part, row_group);
              } else {
                TensorLoad4d(destination + 2 * kHalfBytes + box * box_groups * kGroupBytes,
                             &maps.kv_rotary, &shared.kv_full[stage][part], kEvictFirst, 0, 0, 8,
                             row_group);
              }
            }
          }
        }
      } else {
        // 64 rows x 36 chunks of 16 bytes; thread t takes row t / 2, every other chunk.
        const int row = thread / 2;
        const int key = item.key_begin + tile * kMlaTileKeys + row;
        const int page = __shfl_sync(~0u, pages, (tile * boxes + row / keys_per_box) % 32);
        const uint4* source = reinterpret_cast<const uint4*>(
            args.cache +
            (static_cast<size_t>(page) * args.page_size + key % args.page_size) * kMlaKeyDim);
        constexpr int kChunks = kMlaKeyDim / 16 / 2;
        uint4 raw[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) raw[i] = __ldcs(&source[2 * i + thread % 2]);
        BarrierWait(&shared.kv_empty[stage][0], parity);
        BarrierWait(&shared.kv_empty[stage][1], parity);
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
    if (kE4m3) {
      // The next index travels through the item slot that only this warpgroup reads here.
      __shared__ int next_index;
      if (thread == 0) next_index = next;
      NamedSync(4, kProducerThreads);
      index = next_index;
    } else {
      index = __shfl_sync(~0u, next, 0);
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Consumers

/// What a consumer thread carries through an item. Rows: lane / 4 and lane / 4 + 8 of its warp's 16.
struct ConsumerState {
  float reference[2];      // of the current split, unscaled
  float sum[2];            // of this warpgroup's tiles of the split, this thread's columns
  float run_reference[2];  // of the splits folded so far, scaled (log2)
  float run_sum[2];
  int limit[2];            // keys before this one may be visible
  uint32_t visible[2];     // mask over keys from `context`
};

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
      const uint64_t a = MakeDescriptor(q + group * kGroupBytes + step % 4 * 32, 16, 9 * kGroupBytes);
      const uint64_t b =
          part < 2 ? MakeDescriptor(kv + part * kHalfBytes + step / 4 * kGroupBytes + step % 4 * 32,
                                    16, 4 * kGroupBytes)
                   : MakeDescriptor(kv + 2 * kHalfBytes + step * 32, 16, kGroupBytes);
      WgmmaM64N64_SS_KK(scores, a, b, part != 0 || step != 0);
    }
  }
  WgmmaCommit();
}

__device__ __forceinline__ uint64_t ValueDescriptor(const MlaShared& shared, int stage, int group,
                                                    int step) {
  return MakeDescriptor(
      SharedAddress(shared.kv[stage]) + group * kHalfBytes + step * 2 * 4 * kGroupBytes, kGroupBytes,
      4 * kGroupBytes);
}

__device__ __forceinline__ void Rescale(float (&output)[128], float alpha0, float alpha1) {
  if (__any_sync(~0u, alpha0 != 1.0f || alpha1 != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
      output[i] *= alpha0;
      output[i + 1] *= alpha0;
      output[i + 2] *= alpha1;
      output[i + 3] *= alpha1;
    }
  }
}

template <bool kScoresFirst>
__device__ __forceinline__ void Consume(const MlaKernelArguments& args, MlaShared& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row0 = warp * 16 + lane / 4;  // and row0 + 8
  const uint32_t p_address = SharedAddress(shared.p);
  // stmatrix: lane l gives the address of row l % 8 of matrix l / 8 (rows +8, then columns +8).
  const int store_row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const uint32_t store_base = p_address + store_row * 128;
  const int store_chunk = lane / 16;

  float output[128];
  float scores[32];
  ConsumerState state;
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  float4* running = reinterpret_cast<float4*>(args.workspace.running) +
                    static_cast<size_t>(blockIdx.x) * (64 * kMlaValueDim / 4) + threadIdx.x;

  for (uint32_t item_count = 0;; ++item_count) {
    const int slot = item_count & 1;
    BarrierWait(&shared.item_full[slot], (item_count >> 1) & 1);
    const MlaItem item = shared.item[slot];
    __syncwarp();
    if (lane == 0) BarrierArrive(&shared.item_empty[slot]);
    if (item.request < 0) break;
    const int tiles = (item.key_end - item.key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    const int rows = item.rows & 255;
    const int row_in_request = item.rows >> 8;
    const bool relaxed_end = args.splits.base == 0;
    int split_end = relaxed_end ? item.key_end : min(item.key_end, NextSplit(args.splits, item.key_begin));
    bool first_in_split = true;
    bool first_split = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row0 + 8 * i, rows - 1);
      const int token = (row_in_request + row) / args.heads;
      state.limit[i] = args.visible != nullptr ? item.seq_len : item.context + token + 1;
      state.visible[i] = 0;
      if (args.visible != nullptr) {
        state.visible[i] = args.visible[(item.first_row + row) / args.heads];
      }
      state.reference[i] = -INFINITY;
      state.sum[i] = 0.0f;
      state.run_reference[i] = -INFINITY;
      state.run_sum[i] = 0.0f;
    }
    // Keys before this one are visible to every row of the tile.
    const int all_visible = args.visible != nullptr
                                ? item.context
                                : item.context + row_in_request / args.heads + 1;
    BarrierWait(&shared.q_full, item_count & 1);

    auto stage_of = [&](int tile) { return static_cast<int>((tile_count + tile) % kStages); };
    auto parity_of = [&](int tile) { return ((tile_count + tile) / kStages) & 1; };
    auto release = [&](int tile) {
      if (lane == 0) BarrierArrive(&shared.kv_empty[stage_of(tile)][group]);
    };
    auto issue_scores = [&](int tile) { MultiplyScores(shared, stage_of(tile), parity_of(tile), scores); };

    // Folds at the end of the split that ends with `tile`, for a warpgroup whose products are done.
    auto end_split = [&](int tile) {
      const int end_key = item.key_begin + (tile + 1) * kMlaTileKeys;
      if (end_key < split_end) return;
      const int buffer = split_count & 1;
      ++split_count;
      float m[2], l[2], a[2], b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        l[i] = state.sum[i];
        l[i] += __shfl_xor_sync(~0u, l[i], 1);
        l[i] += __shfl_xor_sync(~0u, l[i], 2);
        if (lane % 4 == 0) shared.sums[buffer][group][row0 + 8 * i] = l[i];
      }
      NamedSync(kSplitEnd, kConsumerThreads);
      const bool last = split_end >= item.key_end;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        l[i] = shared.sums[buffer][0][row0 + 8 * i] + shared.sums[buffer][1][row0 + 8 * i];
        m[i] = state.reference[i] == -INFINITY ? -INFINITY : state.reference[i] * args.score_scale;
      }
      if (!first_split) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          FoldWeights(state.run_reference[i], m[i], &m[i], &a[i], &b[i]);
          l[i] = Fold(state.run_sum[i], l[i], a[i], b[i]);
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const float4 before = __ldcg(&running[i * kConsumerThreads]);
          output[4 * i] = Fold(before.x, output[4 * i], a[0], b[0]);
          output[4 * i + 1] = Fold(before.y, output[4 * i + 1], a[0], b[0]);
          output[4 * i + 2] = Fold(before.z, output[4 * i + 2], a[1], b[1]);
          output[4 * i + 3] = Fold(before.w, output[4 * i + 3], a[1], b[1]);
        }
      }
      if (!last) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          __stcg(&running[i * kConsumerThreads],
                 make_float4(output[4 * i], output[4 * i + 1], output[4 * i + 2], output[4 * i + 3]));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          state.run_reference[i] = m[i];
          state.run_sum[i] = l[i];
          state.reference[i] = -INFINITY;
          state.sum[i] = 0.0f;
        }
        first_split = false;
        first_in_split = true;
        split_end = min(item.key_end, NextSplit(args.splits, split_end));
        return;
      }
      const int column = group * 256 + lane % 4 * 2;
      if (item.partial_unit >= 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          if (row >= rows) continue;
          const size_t at = static_cast<size_t>(item.partial_unit) * kMlaUnitRows + row;
          float* out = args.workspace.partial_outputs + at * kMlaValueDim + column;
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            __stcg(reinterpret_cast<float2*>(out + 8 * j),
                   make_float2(output[4 * j + 2 * i], output[4 * j + 2 * i + 1]));
          }
          if (group == 0 && lane % 4 == 0) {
            args.workspace.partial_stats[at] = make_float2(m[i], l[i]);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          if (row >= rows) continue;
          const size_t at = static_cast<size_t>(item.first_row) + row;
          float lse;
          const float factor = FinishRow(m[i], l[i], args.value_scale, args.sink,
                                         static_cast<int>(at % args.heads), &lse);
          __nv_bfloat16* out = args.output + at * kMlaValueDim + column;
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            *reinterpret_cast<uint32_t*>(out + 8 * j) =
                OutputPair(output[4 * j + 2 * i], output[4 * j + 2 * i + 1], factor);
          }
          if (group == 0 && lane % 4 == 0) args.lse[at] = lse;
        }
      }
    };

    if (tiles == 0) {  // no key at all: a row of zeros
      if (lane == 0) BarrierArrive(&shared.q_empty);
#pragma unroll
      for (int i = 0; i < 128; ++i) output[i] = 0.0f;
      end_split(0);
      continue;
    }

    // The other warpgroup's tile: take its reference and probabilities, add its values.
    auto add_remote = [&](int tile) {
      NamedSync(kProbabilitiesReady + (tile & 1), kConsumerThreads);
      const float alpha0 = shared.alpha[row0];
      const float alpha1 = shared.alpha[row0 + 8];
      state.reference[0] = shared.reference[row0];
      state.reference[1] = shared.reference[row0 + 8];
      state.sum[0] *= alpha0;
      state.sum[1] *= alpha1;
      if (!first_in_split) Rescale(output, alpha0, alpha1);
      PinRegisters(output);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        WgmmaM64N256_SS_MN(output, MakeDescriptor(p_address + step * 32, 16, kGroupBytes),
                           ValueDescriptor(shared, stage_of(tile), group, step),
                           !first_in_split || step != 0);
      }
      WgmmaCommit();
      first_in_split = false;
    };

    if (group < tiles) {
      issue_scores(group);
      if constexpr (!kScoresFirst) WgmmaWait<0>();
    }
    bool q_released = false;
    for (int tile = group; tile < tiles; tile += 2) {
      if (tile > 0) {
        add_remote(tile - 1);
        if constexpr (kScoresFirst) {
          WgmmaWait<1>();
        } else {
          WgmmaWait<0>();
          PinRegisters(output);
          release(tile - 1);
          end_split(tile - 1);
          if (tile != group) {
            issue_scores(tile);
            WgmmaWait<0>();
          }
        }
      } else if constexpr (kScoresFirst) {
        WgmmaWait<0>();
      }
      PinRegisters(scores);
      if (tile + 2 >= tiles) {
        q_released = true;
        if (lane == 0) BarrierArrive(&shared.q_empty);
      }
      // A new split starts with this tile when the one before ended the last.
      if constexpr (kScoresFirst) {
        if (tile > 0 && item.key_begin + tile * kMlaTileKeys >= split_end) {
          WgmmaWait<0>();
          PinRegisters(output);
          release(tile - 1);
          end_split(tile - 1);
        }
      }

      const int key0 = item.key_begin + tile * kMlaTileKeys;
      if (key0 + kMlaTileKeys > all_visible) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          const int i = j / 2 % 2;
          const int key = key0 + j / 4 * 8 + lane % 4 * 2 + j % 2;
          bool seen = key < state.limit[i];
          if (args.visible != nullptr) {
            const int offset = key - item.context;
            seen = seen && (offset < 0 || (offset < 32 && (state.visible[i] >> offset & 1)));
          }
          if (!seen) scores[j] = -INFINITY;
        }
        if (key0 + kMlaTileKeys > item.seq_len) {
          // Values past the end may be anything; 0 * NaN must not happen.
          uint8_t* kv = shared.kv[stage_of(tile)];
          const int begin = max(0, item.seq_len - key0);
          for (int at = begin * 64 + thread; at < 64 * 64; at += 128) {
            const int row = at / 64;
            const int chunk = at % 64;
            *reinterpret_cast<uint4*>(kv + chunk / 32 * kHalfBytes + row / 8 * 4 * kGroupBytes +
                                      chunk % 32 / 8 * kGroupBytes + row % 8 * 128 +
                                      chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
          }
          ProxyFence();
        }
      }
      // References, probabilities, sums.
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
        const float before = state.reference[i];
        const bool grow = (top - before) * args.score_scale > 8.0f;
        const float reference = grow ? top : before;
        alpha[i] = grow ? Exp2((before - top) * args.score_scale) : 1.0f;
        negative[i] = reference == -INFINITY ? 0.0f : -reference * args.score_scale;
        state.reference[i] = reference;
      }
      uint32_t probabilities[4][4];
      float part[2][2] = {};
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = Exp2(__fmaf_rn(scores[j + 2 * i], args.score_scale, negative[i]));
          const float y = Exp2(__fmaf_rn(scores[j + 2 * i + 1], args.score_scale, negative[i]));
          part[i][0] += x;
          part[i][1] += y;
          probabilities[j / 8][j / 4 % 2 * 2 + i] = PackBf16(x, y);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) state.sum[i] = state.sum[i] * alpha[i] + (part[i][0] + part[i][1]);

      if constexpr (kScoresFirst) {
        if (tile > 0 && !first_in_split) {
          WgmmaWait<0>();
          PinRegisters(output);
          release(tile - 1);
        }
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        StoreMatrix4(store_base + (((2 * step + store_chunk) ^ (store_row % 8)) * 16),
                     probabilities[step][0], probabilities[step][1], probabilities[step][2],
                     probabilities[step][3]);
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          shared.reference[row0 + 8 * i] = state.reference[i];
          shared.alpha[row0 + 8 * i] = alpha[i];
        }
      }
      ProxyFence();
      NamedArrive(kProbabilitiesReady + (tile & 1), kConsumerThreads);
      if (!first_in_split) Rescale(output, alpha[0], alpha[1]);
      PinRegisters(output);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        WgmmaM64N256_RS_MN(output, probabilities[step],
                           ValueDescriptor(shared, stage_of(tile), group, step),
                           !first_in_split || step != 0);
      }
      WgmmaCommit();
      first_in_split = false;
      WgmmaWait<0>();
      PinRegisters(output);
      release(tile);
      if constexpr (kScoresFirst) {
        if (tile + 2 < tiles) issue_scores(tile + 2);
        // The products of the next tile run while this split is folded. A split that another tile
        // of this warpgroup's partner ends is folded there.
      }
      end_split(tile);
    }
    if (!q_released && lane == 0) BarrierArrive(&shared.q_empty);
    // The last tile, when it is the other warpgroup's.
    if ((tiles - 1) % 2 != group) {
      add_remote(tiles - 1);
      WgmmaWait<0>();
      PinRegisters(output);
      release(tiles - 1);
      end_split(tiles - 1);
    }
    tile_count += tiles;
  }
}

template <bool kE4m3, bool kScoresFirst>
__global__ void __launch_bounds__(kMlaThreads, 1)
    DecodeMlaSm90(const __grid_constant__ MlaKernelArguments args,
                  const __grid_constant__ MlaTensorMaps maps) {
  extern __shared__ uint8_t shared_bytes[];
  MlaShared& shared = *reinterpret_cast<MlaShared*>(
      shared_bytes + (1024 - (SharedAddress(shared_bytes) & 1023)) % 1024);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < 3; ++part) {
        BarrierInit(&shared.kv_full[stage][part], kE4m3 ? kProducerThreads : 1);
      }
      for (int part = 0; part < 2; ++part) BarrierInit(&shared.kv_empty[stage][part], 4);
    }
    BarrierInit(&shared.q_full, 1);
    BarrierInit(&shared.q_empty, 8);
    for (int slot = 0; slot < 2; ++slot) {
      BarrierInit(&shared.item_full[slot], 1);
      BarrierInit(&shared.item_empty[slot], 8);
    }
    BarrierInitFence();
    PrefetchTensorMap(&maps.q);
    PrefetchTensorMap(&maps.kv_half);
    PrefetchTensorMap(&maps.kv_rotary);
  }
  __syncthreads();
  LaunchDependents();
  if (threadIdx.x >= kConsumerThreads) {
    LowerRegisters<kE4m3 ? 104 : 40>();
    Produce<kE4m3>(args, maps, shared);
  } else {
    RaiseRegisters<kE4m3 ? 200 : 232>();
    Consume<kScoresFirst>(args, shared);
  }
}

}  // namespace outrider::cuda
