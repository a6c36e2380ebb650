// A cluster of eight blocks per row of logits. The row lies in their shared memory, so that it is
// read once whatever is asked of it: processors change it there, one pass finds the largest logit,
// cuts find the token at which they end (DrawRow::FindBound), and one pass runs the race
// (gumbel_noise.h). A token that cannot win any more with the largest noise there is costs no
// random number, and one whose own noise is too small for it no logarithm.
#include <algorithm>

#include "outrider/base/gumbel_noise.h"
#include "outrider/kernels/cuda/draw.h"
#include "outrider/kernels/cuda/draw_row.cuh"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"

namespace outrider::cuda {
namespace {

constexpr int kMaxVocab = 400'000;
constexpr uint32_t kMinusInfinityKey = 0x007FFFFF;  // OrderKey(-infinity)
constexpr uint32_t kInfinityKey = 0xFF800000;

int SliceOf(int vocab_size) {
  return ((vocab_size + kDrawBlocks - 1) / kDrawBlocks + 31) / 32 * 32;
}

/// The float of an OrderKey.
__device__ __forceinline__ float OfOrderKey(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFF : ~key);
}
__device__ __forceinline__ bool IsFiniteKey(uint64_t token_key) {
  const auto key = static_cast<uint32_t>(token_key >> 32);
  return key > kMinusInfinityKey && key < kInfinityKey;
}

/// Which row this is.
struct DrawnRow {
  int row;
  int request;
  int index;  // among its request's rows: so many drafts come before it
  int64_t position;
  const float* logits;
  const uint32_t* mask;  // or null
};

__device__ __forceinline__ void LoadRow(DrawRow& row, const DrawnRow& drawn, bool masked) {
  const float* from = drawn.logits + row.first();
  const uint32_t* mask = masked ? drawn.mask + row.first() / 32 : nullptr;
  const int count = row.count();
#pragma unroll 5
  for (int i = static_cast<int>(threadIdx.x) * 4; i < count; i += kDrawThreads * 4) {
    float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (i + 4 <= count) {
      four = *reinterpret_cast<const float4*>(from + i);
    } else {
      four.x = from[i];
      if (i + 1 < count) four.y = from[i + 1];
      if (i + 2 < count) four.z = from[i + 2];
    }
    if (masked) {
      const uint32_t bits = mask[i / 32] >> i % 32;
      if ((bits & 1) == 0) four.x = -INFINITY;
      if ((bits & 2) == 0) four.y = -INFINITY;
      if ((bits & 4) == 0) four.z = -INFINITY;
      if ((bits & 8) == 0) four.w = -INFINITY;
    }
    *reinterpret_cast<float4*>(&row.at(i)) = four;
  }
  __syncthreads();
}

/// What LogitsProcessors does after masks.
__device__ __forceinline__ void ApplyBiases(const DrawParams& params, const SlotSampling& slot,
                                            DrawRow& row) {
  for (int i = static_cast<int>(threadIdx.x); i < slot.num_biases; i += kDrawThreads) {
    const int at = params.bias_tokens[slot.first_bias + i] - row.first();
    if (at < 0 || at >= row.count()) continue;
    float& value = row.at(at);
    value = RoundedAdd(value, params.bias_values[slot.first_bias + i]);
  }
  __syncthreads();
}

__device__ __forceinline__ void ApplyPenalties(const DrawParams& params, const SlotSampling& slot,
                                               const DrawnRow& drawn, DrawRow& row) {
  const uint32_t* counts =
      params.token_counts + static_cast<int64_t>(slot.counts_row) * params.vocab_size;
  const int32_t* drafts = params.token_ids + params.logit_rows[drawn.row - drawn.index] + 1;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < row.count(); i += kDrawThreads) {
    const int token = row.first() + i;
    const uint32_t entry = counts[token];
    uint32_t count = entry & ~kInPrompt;
    for (int j = 0; j < drawn.index; ++j) count += drafts[j] == token ? 1 : 0;
    if ((entry & kInPrompt) == 0 && count == 0) continue;
    float& value = row.at(i);
    float x = value;
    x = x > 0 ? RoundedDiv(x, slot.repetition_penalty) : RoundedMul(x, slot.repetition_penalty);
    if (count > 0) {
      x = RoundedSub(x, RoundedMul(slot.frequency_penalty, static_cast<float>(count)));
      x = RoundedSub(x, slot.presence_penalty);
    }
    value = x;
  }
  __syncthreads();
}

/// The key of the largest logit.
__device__ __forceinline__ uint64_t LargestKey(DrawRow& row) {
  uint64_t key = 0;
  row.ForTokens([&](int, int token, float value) { key = max(key, TokenKey(value, token)); });
  return row.Max(key);
}

/// Classes of values by their distance below the largest, for FindBound: nine to a unit.
struct ByDistance {
  float max;
  float factor;
  __device__ __forceinline__ int operator()(float value) const {
    if (!(value > -INFINITY)) return kDrawBins - 1;
    const float below = RoundedMul(RoundedSub(max, value), factor);
    return static_cast<int>(fminf(below * 9.0f, kDrawBins - 1));
  }
};

/// Which tokens of a row may be drawn (token_order.h).
struct Kept {
  float max;
  float inverse_temperature;
  uint64_t least_weight;  // 0: no min_p
  uint64_t bound;         // keys from it on

  __device__ __forceinline__ uint64_t Weight(float value) const {
    return TokenWeight(RoundedMul(RoundedSub(value, max), inverse_temperature));
  }
  __device__ __forceinline__ bool operator()(int token, float value) const {
    if (!(value > -INFINITY)) return false;
    if (bound != 0 && TokenKey(value, token) < bound) return false;
    return least_weight == 0 || Weight(value) >= least_weight;
  }
};

__device__ __forceinline__ void Cut(const SlotSampling& slot, int vocab_size, DrawRow& row,
                                    Kept& kept) {
  const ByDistance classes = {kept.max, kept.inverse_temperature};
  kept.least_weight = MinPWeight(slot.min_p);
  if (slot.top_k > 0 && slot.top_k < vocab_size) {
    kept.bound = row.FindBound(
        static_cast<uint64_t>(slot.top_k),
        [&](int token, float value) { return static_cast<uint64_t>(kept(token, value) ? 1 : 0); },
        classes);
  }
  if (slot.top_p < 1.0f) {
    uint64_t total = 0;
    row.ForTokens([&](int, int token, float value) {
      if (kept(token, value)) total += kept.Weight(value);
    });
    const uint64_t limit = TopPLimit(row.Sum(total), slot.top_p);
    kept.bound = row.FindBound(
        max(limit, uint64_t{1}),
        [&](int token, float value) { return kept(token, value) ? kept.Weight(value) : 0; },
        classes);
  }
}

/// The key of the race's winner: of its value, not of its logit.
template <bool kCut>
__device__ __forceinline__ uint64_t RunRace(const SlotSampling& slot, const DrawnRow& drawn,
                                            int favourite, const Kept& kept, DrawRow& row) {
  constexpr RandomStream kStream = RandomStream::kTarget;
  const float most = GumbelBound(0);  // no noise is larger
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  // The token with the largest logit sets the pace.
  float best = RoundedAdd(RoundedMul(kept.max, kept.inverse_temperature),
                          Gumbel(GumbelBits(slot.seed, drawn.position, kStream, favourite)));
  uint64_t winner = TokenKey(best, favourite);
#pragma unroll 1
  for (int i0 = warp * 128; i0 < row.count(); i0 += kDrawWarps * 128) {
    // Of every 32 tokens a lane has four whose words one call of Philox gives.
    const int i = i0 + lane / 8 * 32 + lane % 8;
    float scores[4];
    bool hopes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool exists = i + 8 * j < row.count();
      const float value = exists ? row.at(i + 8 * j) : -INFINITY;
      const bool enters = kCut ? exists && kept(row.first() + i + 8 * j, value) : value > -INFINITY;
      scores[j] = RoundedMul(value, kept.inverse_temperature);
      hopes[j] = enters && RoundedAdd(scores[j], most) >= best;
    }
    if (hopes[0] || hopes[1] || hopes[2] || hopes[3]) {
      const int token = row.first() + i;
      const std::array<uint32_t, 4> words =
          GumbelWords(slot.seed, drawn.position, kStream, GumbelBlock(token));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!hopes[j] || RoundedAdd(scores[j], GumbelBound(words[j])) < best) continue;
        const float value = RoundedAdd(scores[j], Gumbel(words[j]));
        winner = max(winner, TokenKey(value, token + 8 * j));
        best = fmaxf(best, value);
      }
    }
    __syncwarp();
    best = OfOrderKey(__reduce_max_sync(~0u, OrderKey(best)));
  }
  return row.Max(winner);
}

/// Log-probabilities of a row of view(token, value), as ComputeLogprobs (logprobs.h).
template <typename View>
__device__ __forceinline__ void WriteLogprobs(const DrawParams& params, const DrawResults& results,
                                              int row_index, int chosen, int num_top,
                                              DrawShared& shared, DrawRow& row, View view) {
  // In place: what follows sees the view alone.
  for (int i = static_cast<int>(threadIdx.x); i < row.count(); i += kDrawThreads) {
    row.at(i) = view(row.first() + i, row.at(i));
  }
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  const float max = OfOrderKey(static_cast<uint32_t>(LargestKey(row) >> 32));
  double sum = 0;
  row.ForTokens([&](int, int, float value) { sum += expf(value - max); });
  const double log_sum = static_cast<double>(max) + log(row.Sum(sum));
  const auto logprob = [&](uint64_t key) {
    return static_cast<float>(static_cast<double>(OfOrderKey(static_cast<uint32_t>(key >> 32))) -
                              log_sum);
  };
  uint64_t chosen_key = 0;
  const int chosen_at = chosen - row.first();
  if (chosen_at >= 0 && chosen_at < row.count()) chosen_key = TokenKey(row.at(chosen_at), chosen);
  chosen_key = row.Max(chosen_key);
  uint64_t better = 0;
  row.ForTokens(
      [&](int, int token, float value) { better += TokenKey(value, token) > chosen_key; });
  better = row.Sum(better);
  if (row.rank() == 0 && threadIdx.x == 0) {
    results.logprobs[row_index] = logprob(chosen_key);
    results.ranks[row_index] = static_cast<int32_t>(better) + 1;
  }
  const int count = min(num_top, params.vocab_size);
  if (count <= 0) return;
  const uint64_t bound = row.FindBound(
      static_cast<uint64_t>(count), [](int, float) { return uint64_t{1}; }, ByDistance{max, 1.0f});
  row.ForTokens([&](int, int token, float value) {
    const uint64_t key = TokenKey(value, token);
    if (key >= bound) shared.listed[atomicAdd(&shared.num_listed, 1)] = key;
  });
  DrawClusterSync();
  if (row.rank() != 0) return;
  // Block 0 collects the lists and puts every token where its rank says.
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < count) {
    int index = thread;
    uint32_t block = 0;
    for (;; ++block) {
      const int listed = static_cast<int>(LoadRemote32(&shared.num_listed, block));
      if (index < listed) break;
      index -= listed;
    }
    shared.total_amounts[thread] = LoadRemote64(&shared.listed[index], block);
  }
  __syncthreads();
  if (thread >= count) return;
  const uint64_t key = shared.total_amounts[thread];
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += shared.total_amounts[i] > key ? 1 : 0;
  const int64_t at = static_cast<int64_t>(row_index) * params.max_top_logprobs + rank;
  results.top_tokens[at] = KeyToken(key);
  results.top_logprobs[at] = logprob(key);
}

__global__ void __launch_bounds__(kDrawThreads, 2)
    DrawKernel(const DrawParams params, const DrawResults results, int slice) {
  extern __shared__ __align__(16) float values[];
  __shared__ DrawShared shared;
  LaunchDependents();
  WaitForPriorGrid();
  DrawnRow drawn;
  drawn.row = static_cast<int>(blockIdx.x) / kDrawBlocks;
  if (params.num_rows != nullptr && drawn.row >= *params.num_rows) return;
  DrawRow row(shared, values, slice, params.vocab_size);
  drawn.request = params.logit_requests[drawn.row];
  drawn.index = drawn.row - params.logit_start_loc[drawn.request];
  drawn.position = params.logit_positions[drawn.row];
  drawn.logits = params.logits + drawn.row * params.logits_stride;
  const int first_mask = params.masks != nullptr ? params.first_mask[drawn.request] : -1;
  const int words = (params.vocab_size + 31) / 32;
  drawn.mask = first_mask < 0
                   ? nullptr
                   : params.masks + static_cast<int64_t>(first_mask + drawn.index) * words;
  const SlotSampling slot = params.slots[params.requests[drawn.request].slot];

  LoadRow(row, drawn, drawn.mask != nullptr);
  if (slot.num_biases > 0) ApplyBiases(params, slot, row);
  if (slot.counts_row >= 0) ApplyPenalties(params, slot, drawn, row);
  const bool processed = drawn.mask != nullptr || slot.num_biases > 0 || slot.counts_row >= 0;

  uint64_t winner = LargestKey(row);
  const bool greedy = slot.temperature == 0.0f;
  Kept kept = {OfOrderKey(static_cast<uint32_t>(winner >> 32)),
               greedy ? 1.0f : InverseTemperature(slot.temperature), 0, 0};
  const bool cuts = !greedy && (slot.top_k > 0 || slot.top_p < 1.0f || slot.min_p > 0.0f);
  bool drawable = IsFiniteKey(winner);
  if (drawable && !greedy) {
    const int favourite = KeyToken(winner);
    if (cuts) {
      Cut(slot, params.vocab_size, row, kept);
      winner = RunRace<true>(slot, drawn, favourite, kept, row);
    } else {
      winner = RunRace<false>(slot, drawn, favourite, kept, row);
    }
    drawable = static_cast<uint32_t>(winner >> 32) > kMinusInfinityKey;
  }
  int token = KeyToken(winner);
  if (!drawable) {
    if (processed) {
      LoadRow(row, drawn, false);
      winner = LargestKey(row);
    }
    token = IsFiniteKey(winner) ? kDrawDeadEnd : kDrawOverflown;
  }
  if (row.rank() == 0 && threadIdx.x == 0) results.tokens[drawn.row] = token;

  if (token >= 0 && slot.top_logprobs >= 0) {
    const int num_top = min(slot.top_logprobs, params.max_top_logprobs);
    if (!params.processed_logprobs && processed) {
      __syncthreads();  // all have read the row
      LoadRow(row, drawn, false);
    }
    WriteLogprobs(params, results, drawn.row, token, num_top, shared, row,
                  [&](int id, float value) {
                    if (!params.processed_logprobs || greedy) return value;
                    if (cuts && !kept(id, value)) return -INFINITY;
                    return RoundedMul(value, kept.inverse_temperature);
                  });
  }
  DrawClusterSync();  // other blocks may still be reading this one's memory
}

void Check(const DrawParams& params) {
  if (params.max_rows < 0) {
    RefuseArgument("DrawTokens: max_rows is ", params.max_rows, ", it must not be negative");
  }
  if (params.vocab_size < 1 || params.vocab_size > kMaxVocab) {
    RefuseArgument("DrawTokens: vocab_size is ", params.vocab_size, ", it must be 1 to ",
                   kMaxVocab);
  }
  if (params.logits_stride < params.vocab_size || params.logits_stride % 4 != 0) {
    RefuseArgument("DrawTokens: logits_stride is ", params.logits_stride,
                   ", it must be a multiple of 4 and at least ", params.vocab_size);
  }
  if (params.max_top_logprobs < 0 || params.max_top_logprobs > kMaxTopLogprobs) {
    RefuseArgument("DrawTokens: max_top_logprobs is ", params.max_top_logprobs,
                   ", it must be 0 to ", kMaxTopLogprobs);
  }
}

}  // namespace

cudaError_t DrawTokens(const DrawParams& params, const DrawResults& results, cudaStream_t stream) {
  Check(params);
  if (params.max_rows == 0) return cudaSuccess;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(DrawKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           SliceOf(kMaxVocab) * static_cast<int>(sizeof(float)));
  if (allowed != cudaSuccess) return allowed;
  const int slice = SliceOf(params.vocab_size);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(params.max_rows * kDrawBlocks);
  config.blockDim = dim3(kDrawThreads);
  config.dynamicSmemBytes = slice * sizeof(float);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = kDrawBlocks;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, DrawKernel, params, results, slice);
}

}  // namespace outrider::cuda
