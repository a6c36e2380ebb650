// A block of the grouped-query attention kernel: its bodies, its shared memory, its arguments, and
// the warp that takes items from the list and copies their keys and values.
//
// Keys and values of a tile are [2 column halves][64 keys][128 bytes] each, swizzled as the tensor
// cores read them; e4m3 codes [64 keys][128 bytes] are widened to that by the consumers.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/gqa/gqa_layout.cuh"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"

namespace outrider::cuda {

inline constexpr int kGqaTileBytes = kGqaTileKeys * kGqaHeadDim * 2;  // of keys or of values
inline constexpr int kGqaHalfBytes = kGqaTileBytes / 2;
inline constexpr int kGqaItemSlots = 4;

/// kGroups warpgroups with a tile of rows each share keys; kCodes: the cache holds e4m3; kSplits:
/// keys are folded in splits.
template <int kGroupCount, bool kCodesFlag, bool kSplitsFlag>
struct GqaBlockForm {
  static constexpr int kGroups = kGroupCount;
  static constexpr bool kCodes = kCodesFlag;
  static constexpr bool kSplits = kSplitsFlag;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 128;     // of the last warpgroup one warp copies
  static constexpr int kBlocks = kGroups == 1 ? 2 : 1;  // per multiprocessor
  static constexpr int kRegisters = kGroups == 1 ? 216 : 232;                     // of a consumer
  static constexpr int kStageBytes = kCodes ? kGqaTileBytes / 2 : kGqaTileBytes;  // keys or values
  static constexpr int kStages = kGroups == 1 ? (kCodes ? 4 : 3) : 6;
  static constexpr int kWideTiles = kCodes ? kGroups : 0;

  struct alignas(1024) Shared {
    uint8_t q[kGroups][kGqaTileBytes];
    uint8_t kv[kStages][2][kStageBytes];
    uint8_t wide[kWideTiles > 0 ? kWideTiles : 1][2][kWideTiles > 0 ? kGqaTileBytes : 16];
    uint64_t full[kStages][2];  // keys, values
    uint64_t empty[kStages];
    uint64_t item_full[kGqaItemSlots];
    uint64_t item_empty[kGqaItemSlots];
    GqaItem item[kGqaItemSlots];
    int last_piece[kGroups];  // whether this block has left the last results of a tile
  };
};

struct GqaKernelArguments {
  GqaWorkspace workspace;
  const __nv_bfloat16* q;
  int64_t q_stride;
  const int32_t* block_tables;
  int block_table_stride;
  int block_size;
  int box_rows;  // keys that one copy brings: a power of two from 8 to 64
  int kv_heads;
  int row_heads;    // query heads per key head
  int tile_tokens;  // of a warpgroup
  int window;
  bool keys_again;    // other blocks are to read the same keys
  float score_scale;  // softmax_scale * log2(e)
  const __nv_bfloat16* gates;
  int64_t gate_stride;
  __nv_bfloat16* output;
  int64_t output_stride;
};

template <typename Body>
__device__ __forceinline__ void InitGqaBarriers(typename Body::Shared& shared) {
  for (int stage = 0; stage < Body::kStages; ++stage) {
    BarrierInit(&shared.full[stage][0], 1);
    BarrierInit(&shared.full[stage][1], 1);
    BarrierInit(&shared.empty[stage], Body::kConsumers / 32 * kWarpArrivals);
  }
  for (int slot = 0; slot < kGqaItemSlots; ++slot) {
    BarrierInit(&shared.item_full[slot], kWarpArrivals);
    BarrierInit(&shared.item_empty[slot], Body::kConsumers / 32 * kWarpArrivals);
  }
  BarrierInitFence();
}

/// First key that token 0 of an item sees.
__device__ __forceinline__ int FirstKey(int window, int position) {
  return window > 0 ? max(0, position - window + 1) : 0;
}

/// Takes items and copies their keys. All lanes of one warp.
template <typename Body>
__device__ __forceinline__ void LoadGqaItems(const GqaKernelArguments& args, const CUtensorMap* map,
                                             typename Body::Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int boxes = kGqaTileKeys / args.box_rows;
  const uint64_t policy = args.keys_again ? kEvictNormal : kEvictFirst;
  GqaCounters* const counters = args.workspace.counters;
  const int num_items = __ldcg(&counters->num_items);
  int index = static_cast<int>(blockIdx.x);
  uint32_t tile_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const int slot = item_count % kGqaItemSlots;
    constexpr int kWords = sizeof(GqaItem) / sizeof(int);
    int word = -1;
    if (index < num_items && lane < kWords) {
      word =
          lane + 1 < kWords
              ? __ldcg(reinterpret_cast<const int*>(args.workspace.items + index / args.kv_heads) +
                       lane)
              : index % args.kv_heads;
    }
    BarrierWait(&shared.item_empty[slot], (item_count / kGqaItemSlots & 1) ^ 1);
    if (lane < kWords) reinterpret_cast<int*>(&shared.item[slot])[lane] = word;
    BarrierArriveWarp(&shared.item_full[slot]);
    if (index >= num_items) break;
    int next = 0;
    if (lane == 0) next = static_cast<int>(gridDim.x) + atomicAdd(&counters->next_item, 1);

    const int request = __shfl_sync(~0u, word, 0);
    const int position = __shfl_sync(~0u, word, 3);
    const int key_begin = __shfl_sync(~0u, word, 4);
    const int key_end = __shfl_sync(~0u, word, 5);
    const int head = __shfl_sync(~0u, word, kWords - 1);
    const int32_t* const table =
        args.block_tables + static_cast<int64_t>(request) * args.block_table_stride;
    const int first_box = FirstKey(args.window, position) / args.box_rows * args.box_rows;
    const int last_box = (key_end - 1) / args.box_rows * args.box_rows;
    // A lane per box. Those of keys that no row sees bring another one's, whose numbers are finite
    // but for keys past the end (ClearUnseenGqaValues).
    const auto box_of = [&](int key0) {
      return min(max(key0 + lane * args.box_rows, first_box), last_box);
    };
    const auto page_of = [&](int key0) {
      return lane < boxes ? __ldcg(table + box_of(key0) / args.block_size) : 0;
    };
    int page = page_of(key_begin);
    for (int key0 = key_begin; key0 < key_end; key0 += kGqaTileKeys, ++tile_count) {
      const int next_page = key0 + kGqaTileKeys < key_end ? page_of(key0 + kGqaTileKeys) : 0;
      const int stage = tile_count % Body::kStages;
      BarrierWait(&shared.empty[stage], (tile_count / Body::kStages & 1) ^ 1);
      if (lane == 0) {
        BarrierArriveExpect(&shared.full[stage][0], Body::kStageBytes);
        BarrierArriveExpect(&shared.full[stage][1], Body::kStageBytes);
      }
      __syncwarp();
      if (lane < boxes) {
        const int row = box_of(key0) % args.block_size;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          uint8_t* const to = shared.kv[stage][part] + lane * args.box_rows * 128;
          uint64_t* const full = &shared.full[stage][part];
          const int column = part * args.kv_heads + head;
          if constexpr (Body::kCodes) {
            TensorLoad4d(to, map, full, policy, 0, row, column, page);
          } else {
            TensorLoad4d(to, map, full, policy, 0, row, 2 * column, page);
            TensorLoad4d(to + kGqaHalfBytes, map, full, policy, 0, row, 2 * column + 1, page);
          }
        }
      }
      __syncwarp();
      page = next_page;
    }
    index = __shfl_sync(~0u, next, 0);
  }
  // The last block to leave makes the list ready for the next layer.
  if (lane == 0) {
    if (atomicAdd(&counters->left_blocks, 1) + 1 == static_cast<int>(gridDim.x)) {
      counters->left_blocks = 0;
      counters->next_item = 0;
    }
  }
}

}  // namespace outrider::cuda
