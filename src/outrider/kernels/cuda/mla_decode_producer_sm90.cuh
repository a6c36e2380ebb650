// The producer warpgroup of the MLA decode kernel: hands out items, copies queries and keys into
// shared memory, converts an e4m3 cache to bf16 on the way. A copy is issued as soon as its buffer
// is free.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"

namespace outrider::cuda {

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
        // 18 chunks in three batches, two of which are on their way at a time.
        constexpr int kBatch = 6;
        uint4 raw[2][kBatch];
        auto load = [&](int batch) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            raw[batch % 2][i] = __ldcs(&source[2 * (batch * kBatch + i) + thread % 2]);
          }
        };
        auto store = [&](int batch) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const int chunk = 2 * (batch * kBatch + i) + thread % 2;  // 16 columns
            const int group = chunk / 4;                              // 64 columns
            uint8_t* base = group < 8 ? destination + group / 4 * kHalfBytes +
                                            (row / 8 * 4 + group % 4) * kGroupBytes
                                      : destination + 2 * kHalfBytes + row / 8 * kGroupBytes;
            base += row % 8 * 128;
            const uint4 from = raw[batch % 2][i];
            const uint32_t words[4] = {from.x, from.y, from.z, from.w};
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
        };
        load(0);
        load(1);
        // Ask L2 for the next tile's row: 576 bytes are five lines, three for one thread, two for
        // the other.
        if (tile + 1 < tiles) {
          const int ahead = (tile + 1) * boxes + (row >> box_shift);
          const int ahead_page =
              __shfl_sync(~0u, ahead / 32 == tile * boxes / 32 ? pages : pages_ahead, ahead % 32);
          const uint8_t* ahead_row =
              args.cache + ((static_cast<size_t>(ahead_page) << args.page_shift) +
                            ((key + kMlaTileKeys) & page_mask)) *
                               kMlaKeyDim;
          for (int line = thread % 2; line < 5; line += 2) PrefetchL2(ahead_row + line * 128);
        }
        for (int part = 0; part < 3; ++part) BarrierWait(&shared.kv_empty[stage][part], parity);
        store(0);
        load(2);
        store(1);
        store(2);
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

}  // namespace outrider::cuda
