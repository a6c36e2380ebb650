// The end of a split in the swap-AB MLA decode body: fold, partial results, outputs.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_consumer.cuh"

namespace outrider::cuda {

template <int kRows>
__device__ __forceinline__ void SwapAbConsumer<kRows>::FinishSplit(SwapAbRing* ring, int index,
                                                                   bool alone, bool emits,
                                                                   int emitted) {
  float m[kPerThread];
  float sum[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    sum[i] = Sum(i);
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], mask);
    if (lane_ < 4) Sum(i) = sum[i];
    const float reference = Reference(i);
    m[i] = reference == -INFINITY ? -INFINITY : reference * shared_.row_scale[Row(i)];
  }
  NamedSync(kConsumerBarrier + group_, 128);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const float* parts = &shared_.lane_sum[i][group_ * 128 + lane_ % 4];
    sum[i] = (parts[0] + parts[32]) + (parts[64] + parts[96]);
  }
  float4* running = &shared_.running[0][threadIdx.x % 128];
  if (!alone) {
    BarrierWait(&shared_.turn[group_], ring->parities >> SwapAbRing::kTurn);
    ring->parities ^= 1u << SwapAbRing::kTurn;
    float a[kPerThread], b[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const float2 before = shared_.running_stats[(index + 1) % 2][Row(i)];
      FoldWeights(before.x, m[i], &m[i], &a[i], &b[i]);
      sum[i] = Fold(before.y, sum[i], a[i], b[i]);
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float4 before = running[(block * (kRows / 8) + j) * 128];
        float* o = &output_[block][j * 4];
        o[0] = Fold(before.x, o[0], a[2 * j], b[2 * j]);
        o[1] = Fold(before.y, o[1], a[2 * j + 1], b[2 * j + 1]);
        o[2] = Fold(before.z, o[2], a[2 * j], b[2 * j]);
        o[3] = Fold(before.w, o[3], a[2 * j + 1], b[2 * j + 1]);
      }
    }
  }
  if (emits && item_.leaves_partials()) {
    WritePartial(m, sum, emitted);
    return;
  }
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float* o = &output_[block][j * 4];
      running[(block * (kRows / 8) + j) * 128] = make_float4(o[0], o[1], o[2], o[3]);
    }
  }
  if (warp_ == 0 && lane_ < 4) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      shared_.running_stats[index % 2][Row(i)] = make_float2(m[i], sum[i]);
    }
  }
  if (emits) {
    WriteOutput(index);
  } else {
    BarrierArriveWarp(&shared_.turn[group_ ^ 1]);
  }
}

/// Both consumers may be doing this at a time, so it goes out from registers.
template <int kRows>
__device__ __forceinline__ void SwapAbConsumer<kRows>::WritePartial(const float (&m)[kPerThread],
                                                                    const float (&sum)[kPerThread],
                                                                    int emitted) {
  const int rows = item_.num_rows();
  const int units = (rows + kMlaUnitRows - 1) / kMlaUnitRows;
  const size_t first_row =
      static_cast<size_t>(item_.unshared_unit() + emitted * units) * kMlaUnitRows;
  float* out =
      args_.workspace.partial_outputs + first_row * kMlaValueDim + warp_ * 16 + lane_ / 4 * 2;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int row = Row(i);
    if (row >= rows) continue;
    if (warp_ == 0 && lane_ < 4) {
      args_.workspace.partial_stats[first_row + row] = make_float2(m[i], sum[i]);
    }
    const int at = i / 2 * 4 + i % 2;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      __stcg(reinterpret_cast<float2*>(out + row * kMlaValueDim + block * 64),
             make_float2(output_[block][at], output_[block][at + 2]));
    }
  }
}

/// From shared memory, in a loop: code that runs once is slow to fetch.
template <int kRows>
__device__ __forceinline__ void SwapAbConsumer<kRows>::WriteOutput(int index) {
  const int rows = item_.num_rows();
  const int thread = threadIdx.x % 128;
  NamedSync(kConsumerBarrier + group_, 128);
  if (thread < rows) {
    const float2 stats = shared_.running_stats[index % 2][thread];
    const int global_row = item_.first_row + thread;
    float lse;
    shared_.top[group_][thread][0] =
        FinishRow(stats.x, stats.y, args_.value_scale, args_.sink, global_row % args_.heads, &lse);
    args_.lse[global_row] = lse;
  }
  NamedSync(kConsumerBarrier + group_, 128);
  __nv_bfloat16* out = args_.output + static_cast<size_t>(item_.first_row) * kMlaValueDim +
                       warp_ * 16 + lane_ / 4 * 2;
#pragma unroll 4
  for (int at = 0; at < kRows; ++at) {
    const float4 o = shared_.running[at][thread];
    const int row = at % (kRows / 8) * 8 + lane_ % 4 * 2;
    __nv_bfloat16* to = out + row * kMlaValueDim + at / (kRows / 8) * 64;
    if (row < rows) {
      *reinterpret_cast<uint32_t*>(to) = OutputPair(o.x, o.z, shared_.top[group_][row][0]);
    }
    if (row + 1 < rows) {
      *reinterpret_cast<uint32_t*>(to + kMlaValueDim) =
          OutputPair(o.y, o.w, shared_.top[group_][row + 1][0]);
    }
  }
}

template <int kRows>
__device__ __forceinline__ void ConsumeSwapAb(const MlaKernelArguments& args,
                                              const __nv_bfloat16* queries,
                                              MlaSwapAbShared<kRows>& shared) {
  SwapAbRing ring;
  uint32_t filled = 0;  // times that queries were loaded
  for (uint32_t item_count = 0;; ++item_count) {
    const MlaItem item = TakeSwapAbItem(shared, item_count);
    if (item.request < 0) break;
    const int rows = item.num_rows();
    if (item.key_begin >= item.key_end) {
      for (int at = threadIdx.x; at < rows * kMlaValueDim / 8; at += 128 * kSwapAbConsumers) {
        uint4* out = reinterpret_cast<uint4*>(args.output) +
                     static_cast<size_t>(item.first_row) * (kMlaValueDim / 8);
        out[at] = make_uint4(0, 0, 0, 0);
      }
      if (threadIdx.x < rows) args.lse[item.first_row + threadIdx.x] = -INFINITY;
      continue;
    }
    ProxyFence();
    NamedSync(kConsumersBarrier, 128 * kSwapAbConsumers);  // the item before is done
    LoadQueries<kRows>(args, queries, shared, item, filled++ & 1);
    ProxyFence();
    NamedSync(kConsumersBarrier, 128 * kSwapAbConsumers);
    SwapAbConsumer<kRows>(args, shared, item).Run(&ring);
  }
}

}  // namespace outrider::cuda
