// The kernel of grouped-query attention, without its launch: a warp copies keys and values ahead
// (gqa_block.cuh), a warpgroup per tile of 64 rows computes S = Q K^T, probabilities, O += P V.
//
// A row is a (token, query head) pair of one key head. Scores and outputs stay in registers; the
// probabilities are the first operand of the second product from there.
#pragma once

#include "outrider/kernels/cuda/gqa/gqa_results.cuh"
#include "outrider/kernels/cuda/hopper/wgmma_m64n128.cuh"
#include "outrider/kernels/cuda/hopper/widen_codes.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_tile.cuh"

namespace outrider::cuda {

inline constexpr int kGqaGroupBarrier = 1;  // and the next: of a warpgroup
inline constexpr int kGqaWideBarrier = 3;   // of all consumers

/// Copies the queries of a tile to shared memory.
__device__ __forceinline__ void LoadGqaQueries(const GqaKernelArguments& args, const GqaTile& tile,
                                               uint8_t* place) {
  for (int i = threadIdx.x % 128; i < tile.rows * 16; i += 128) {
    const int row = i / 16;
    const int chunk = i % 16;
    const uint4 values = __ldcg(reinterpret_cast<const uint4*>(
        args.q + tile.Token(row) * args.q_stride +
        static_cast<int64_t>(tile.Head(row)) * kGqaHeadDim + chunk * 8));
    *reinterpret_cast<uint4*>(place + chunk / 8 * kGqaHalfBytes + row * 128 +
                              ((chunk % 8) ^ (row % 8)) * 16) = values;
  }
}

/// Widens a tile of codes. Thread `thread` of `threads`; eight lanes take half of two rows, chosen
/// so that they meet in no bank.
__device__ __forceinline__ void WidenGqaTile(const uint8_t* codes, uint8_t* wide, int thread,
                                             int threads) {
  const int lane = thread % 8;
  for (int i = thread / 8; i < kGqaTileKeys; i += threads / 8) {
    const int even_row = i / 2 * 2;
    const int row = lane / 4 == 0 ? even_row : even_row ^ 5;
    const int half = i % 2;
    const int chunk = half * 4 + lane % 4;
    const uint4 values =
        *reinterpret_cast<const uint4*>(codes + row * 128 + (chunk ^ (row % 8)) * 16);
    const uint2 a = WidenFourCodes(values.x);
    const uint2 b = WidenFourCodes(values.y);
    const uint2 c = WidenFourCodes(values.z);
    const uint2 d = WidenFourCodes(values.w);
    uint8_t* const to = wide + half * kGqaHalfBytes + row * 128;
    const int place = lane % 4 * 2;
    *reinterpret_cast<uint4*>(to + (place ^ (row % 8)) * 16) = make_uint4(a.x, a.y, b.x, b.y);
    *reinterpret_cast<uint4*>(to + ((place + 1) ^ (row % 8)) * 16) = make_uint4(c.x, c.y, d.x, d.y);
  }
}

/// Clears the values of keys [begin, end) of a tile.
__device__ __forceinline__ void ClearGqaValues(uint8_t* values, int begin, int end) {
  for (int i = begin * 16 + static_cast<int>(threadIdx.x % 128); i < end * 16; i += 128) {
    *reinterpret_cast<uint4*>(values + i % 16 / 8 * kGqaHalfBytes + i / 16 * 128 + i % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
}

/// Clears in a request's last tile, of keys from key0 on, what may be anything, as 0 * NaN must not
/// happen: values past the request's end, and before its first visible key, where the copy that
/// brings the end stands in if a window is shorter than a copy (LoadGqaItems).
__device__ __forceinline__ void ClearUnseenGqaValues(const GqaKernelArguments& args,
                                                     const GqaItem& item, int key0,
                                                     uint8_t* values) {
  ClearGqaValues(values, 0, FirstKey(args.window, item.position) - key0);
  ClearGqaValues(values, item.key_end - key0, kGqaTileKeys);
}

/// Positions of a tile's tokens, and the keys that they see. Computed where it is asked for:
/// registers are short.
struct GqaPositions {
  int first;
  int last;  // below `first`: no tokens

  __device__ __forceinline__ GqaPositions(const GqaKernelArguments& args, const GqaItem& item,
                                          int group) {
    const int token = group * args.tile_tokens;
    first = item.position + token;
    last = first + min(args.tile_tokens, item.tokens - token) - 1;
  }
  /// Whether some row sees some of the 64 keys from key0 on.
  __device__ __forceinline__ bool SeeAny(const GqaKernelArguments& args, int key0) const {
    return first <= last && key0 <= last && key0 + kGqaTileKeys > FirstKey(args.window, first);
  }
  /// Whether all rows see all of them.
  __device__ __forceinline__ bool SeeAll(const GqaKernelArguments& args, int key0) const {
    return key0 + kGqaTileKeys <= first + 1 && key0 >= FirstKey(args.window, last);
  }
};

/// Takes the keys that its two rows, row0 and row0 + 8, do not see out of a thread's scores.
__device__ __forceinline__ void HideGqaKeys(const GqaKernelArguments& args,
                                            const GqaPositions& positions, int row0, int key0,
                                            float (&scores)[32]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int position = min(positions.first + (row0 + 8 * h) / args.row_heads, positions.last);
    const int low = FirstKey(args.window, position) - key0 - static_cast<int>(threadIdx.x % 4) * 2;
    const int high = position + 1 - key0 - static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int key = j / 2 * 8 + j % 2;
      if (key < low || key >= high) scores[j / 2 * 4 + 2 * h + j % 2] = -INFINITY;
    }
  }
}

/// The whole row's sum of a thread's part; four lanes share a row.
__device__ __forceinline__ float GqaRowSum(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
}

/// A tile's results so far in registers, and what a tile of keys adds to them.
struct GqaAccumulator {
  float output[64];
  float reference[2];
  float sum[2];  // of this thread's columns
  bool empty;    // no tile yet

  __device__ __forceinline__ void Begin() {
    empty = true;
    reference[0] = reference[1] = -INFINITY;
    sum[0] = sum[1] = 0.0F;
  }

  /// Probabilities of a tile from its scores; the outputs so far follow the references.
  __device__ __forceinline__ void AddScores(const float (&scores)[32], float scale,
                                            uint32_t (&packed)[16]) {
    float top[2];
    RowMaxima(scores, top);
    float alpha[2];
    float negative[2];
    float part[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      reference[h] = MoveReference(reference[h], __fmul_rn(top[h], scale), &alpha[h]);
      negative[h] = reference[h] == -INFINITY ? 0.0F : -reference[h];
    }
    Probabilities(scores, scale, negative, packed, part);
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = __fmaf_rn(sum[h], alpha[h], part[h]);
    if (!empty && __any_sync(~0u, alpha[0] != 1.0F || alpha[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 64; ++i) output[i] = __fmul_rn(output[i], alpha[i / 2 % 2]);
    }
  }

  __device__ __forceinline__ void MultiplyValues(const uint32_t (&packed)[16], uint32_t values) {
    PinRegisters(output);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaM64N128_RS_MN(output, packed + 4 * step,
                         MakeDescriptor(values + step * 2048, kGqaHalfBytes, 1024),
                         !empty || step != 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    PinRegisters(output);
    empty = false;
  }

  __device__ __forceinline__ void RowStates(GqaRowState (&state)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) state[h] = {reference[h], GqaRowSum(sum[h])};
  }
};

/// One warpgroup, `group` of Body::kGroups.
template <typename Body>
__device__ __forceinline__ void AttendGqaItems(const GqaKernelArguments& args,
                                               typename Body::Shared& shared, int group) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  const int row0 = warp * 16 + thread % 32 / 4;  // and row0 + 8
  uint8_t* const queries = shared.q[group];
  uint32_t tile_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const int slot = item_count % kGqaItemSlots;
    BarrierWait(&shared.item_full[slot], item_count / kGqaItemSlots & 1);
    const GqaItem& item = shared.item[slot];  // stays there: registers are short
    if (item.request < 0) break;
    LoadGqaQueries(args, GqaTile(args, item, group), queries);
    ProxyFence();
    NamedSync(kGqaGroupBarrier + group, 128);

    GqaAccumulator now;
    now.Begin();
    float folded[Body::kSplits ? 64 : 1];
    GqaRowState state[2];
    bool first_split = true;
    int partial = item.partial;
    int split_end = Body::kSplits ? NextGqaSplit(item.key_begin) : item.key_end;
    for (int key0 = item.key_begin; key0 < item.key_end; key0 += kGqaTileKeys, ++tile_count) {
      const int stage = tile_count % Body::kStages;
      const uint32_t parity = tile_count / Body::kStages & 1;
      uint8_t* keys = shared.kv[stage][0];
      uint8_t* values = shared.kv[stage][1];
      if constexpr (Body::kCodes) {
        const int wide = tile_count % Body::kWideTiles;
        // With one place for widened tiles all have to be done with the one before.
        if constexpr (Body::kWideTiles == 1) NamedSync(kGqaWideBarrier, Body::kConsumers);
        for (int part = 0; part < 2; ++part) {
          BarrierWait(&shared.full[stage][part], parity);
          WidenGqaTile(shared.kv[stage][part], shared.wide[wide][part],
                       static_cast<int>(threadIdx.x), Body::kConsumers);
        }
        keys = shared.wide[wide][0];
        values = shared.wide[wide][1];
        ProxyFence();
        BarrierArriveWarp(&shared.empty[stage]);
        NamedSync(kGqaWideBarrier, Body::kConsumers);
      }
      const GqaPositions positions(args, item, group);
      if (positions.SeeAny(args, key0)) {
        float scores[32];
        if constexpr (!Body::kCodes) BarrierWait(&shared.full[stage][0], parity);
        PinRegisters(scores);
        WgmmaFence();
        const uint64_t a = MakeDescriptor(SharedAddress(queries), 16, 1024);
        const uint64_t b = MakeDescriptor(SharedAddress(keys), 16, 1024);
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          const uint32_t at = step / 4 * kGqaHalfBytes + step % 4 * 32;
          WgmmaM64N64_SS_KK(scores, Advance(a, at), Advance(b, at), step != 0);
        }
        WgmmaCommit();
        WgmmaWait<0>();
        PinRegisters(scores);
        if (!positions.SeeAll(args, key0)) HideGqaKeys(args, positions, row0, key0, scores);
        uint32_t packed[16];
        now.AddScores(scores, args.score_scale, packed);
        if constexpr (!Body::kCodes) BarrierWait(&shared.full[stage][1], parity);
        if (key0 + kGqaTileKeys > item.key_end) {
          ClearUnseenGqaValues(args, item, key0, values);
          ProxyFence();
          NamedSync(kGqaGroupBarrier + group, 128);
        }
        now.MultiplyValues(packed, SharedAddress(values));
      } else if constexpr (!Body::kCodes) {
        BarrierWait(&shared.full[stage][1], parity);
        BarrierWait(&shared.full[stage][0], parity);
      }
      if constexpr (!Body::kCodes) BarrierArriveWarp(&shared.empty[stage]);

      if constexpr (Body::kSplits) {
        if (key0 + kGqaTileKeys < split_end && key0 + kGqaTileKeys < item.key_end) continue;
        split_end = NextGqaSplit(key0 + kGqaTileKeys);
        GqaRowState split[2];
        now.RowStates(split);
        if (item.cut >= 0 && item.partial > 0) {
          if (now.empty) {
#pragma unroll
            for (float& value : now.output) value = 0.0F;
          }
          LeavePartial(args.workspace, item, GqaTile(args, item, group), partial++, row0, split,
                       now.output);
        } else if (first_split) {
#pragma unroll
          for (int i = 0; i < 64; ++i) folded[i] = now.output[i];
          state[0] = split[0];
          state[1] = split[1];
          first_split = false;
        } else if (!now.empty) {
          float keep[2];
          float add[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) state[h] = FoldGqaRow(state[h], split[h], &keep[h], &add[h]);
#pragma unroll
          for (int i = 0; i < 64; ++i) {
            folded[i] = FoldGqaColumn(folded[i], now.output[i], keep[i / 2 % 2], add[i / 2 % 2]);
          }
        }
        now.Begin();
      }
    }
    const GqaTile tile(args, item, group);
    if constexpr (!Body::kSplits) {
      now.RowStates(state);
      WriteGqaOutputs<kGqaGroupBarrier>(args, tile, queries, group, row0, state, now.output);
    } else {
      if (item.cut < 0) {
        WriteGqaOutputs<kGqaGroupBarrier>(args, tile, queries, group, row0, state, folded);
      } else {
        if (item.partial == 0) {
          LeavePartial(args.workspace, item, tile, 0, row0, state, folded);
        }
        __threadfence();
        NamedSync(kGqaGroupBarrier + group, 128);
        if (thread == 0) {
          int* const arrived =
              args.workspace.arrived + (item.cut * args.kv_heads + item.head) * 2 + group;
          const bool last = atomicAdd(arrived, 1) + 1 == item.pieces;
          if (last) *arrived = 0;
          shared.last_piece[group] = last ? 1 : 0;
        }
        NamedSync(kGqaGroupBarrier + group, 128);
        if (shared.last_piece[group] != 0) {
          __threadfence();
          MergeGqaTile(args, item, tile);
        }
      }
    }
    BarrierArriveWarp(&shared.item_empty[slot]);
    NamedSync(kGqaGroupBarrier + group, 128);  // the queries' place is read until here
  }
}

template <typename Body>
__device__ __forceinline__ void RunGqa(const GqaKernelArguments& args, const CUtensorMap* map,
                                       typename Body::Shared& shared) {
  if (threadIdx.x == 0) InitGqaBarriers<Body>(shared);
  if (threadIdx.x == Body::kConsumers) PrefetchTensorMap(map);
  // Rows past a tile's are computed, too.
  if (threadIdx.x < Body::kConsumers) {
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared.q) / 16); i += Body::kConsumers) {
      reinterpret_cast<uint4*>(shared.q)[i] = make_uint4(0, 0, 0, 0);
    }
  }
  __syncthreads();
  WaitForPriorGrid();
  LaunchDependents();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == Body::kGroups) {
    LowerRegisters<40>();
    if (threadIdx.x < Body::kConsumers + 32) LoadGqaItems<Body>(args, map, shared);
  } else {
    RaiseRegisters<Body::kRegisters>();
    AttendGqaItems<Body>(args, shared, group);
  }
}

}  // namespace outrider::cuda
