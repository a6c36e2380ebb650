// The two output warpgroups of the MLA decode kernel: O = O * alpha + P V for 256 columns each, the
// fold at a split's end and the writing of results.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

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

}  // namespace outrider::cuda
