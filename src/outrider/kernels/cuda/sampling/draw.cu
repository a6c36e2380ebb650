// A cluster of eight blocks per row of logits.
//
// Where nothing but the likeliest token or the winner of the race (gumbel_noise.h) is asked for,
// one pass over the row in memory finds it. Skip random numbers for tokens that cannot win even
// with maximal noise, and logarithms for tokens whose own noise is too small to win.
//
// Else the row goes into the blocks' shared memory, and processors change it there. A cut (top-k,
// top-p) first finds between which two distances from the largest logit it ends, lists the tokens
// in between, which are few as a rule, and looks for its end among those (DrawRow::FindBound).
#include <algorithm>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/kernels/cuda/sampling/draw_cuts.cuh"
#include "outrider/kernels/cuda/sampling/draw_loads.cuh"
#include "outrider/kernels/cuda/sampling/draw_race.cuh"
#include "outrider/kernels/cuda/sampling/draw_row.cuh"

namespace outrider::cuda {
namespace {

constexpr int kMaxVocab = 400'000;
constexpr int kChooseThreads = 128;

int SliceOf(int vocab_size) {
  return ((vocab_size + kDrawBlocks - 1) / kDrawBlocks + 31) / 32 * 32;
}

/// True if this thread saw a logit that overflows.
__device__ __forceinline__ bool LoadRow(DrawRow& row, const DrawnRow& drawn, bool masked) {
  const float* from = drawn.logits + row.first();
  const uint32_t* mask = masked ? drawn.mask + row.first() / 32 : nullptr;
  const int count = row.count();
  bool overflown = false;
#pragma unroll 5
  for (int i = static_cast<int>(threadIdx.x) * 4; i < count; i += kDrawThreads * 4) {
    *reinterpret_cast<float4*>(&row.at(i)) = LoadFour(from, mask, i, count, overflown);
  }
  __syncthreads();
  return overflown;
}

/// What LogitsProcessors does after masks.
__device__ __forceinline__ void ApplyBiases(const DrawParams& params, const RequestSampling& slot,
                                            DrawRow& row) {
  for (int i = static_cast<int>(threadIdx.x); i < slot.num_biases; i += kDrawThreads) {
    const int at = params.bias_tokens[slot.first_bias + i] - row.first();
    if (at < 0 || at >= row.count()) continue;
    float& value = row.at(at);
    value = RoundedAdd(value, params.bias_values[slot.first_bias + i]);
  }
  __syncthreads();
}

__device__ __forceinline__ void ApplyPenalties(const DrawParams& params,
                                               const RequestSampling& slot, const DrawnRow& drawn,
                                               DrawShared& shared, DrawRow& row) {
  const int32_t* drafts = params.token_ids + params.logit_rows[drawn.row - drawn.index] + 1;
  const int thread = static_cast<int>(threadIdx.x);
  const auto in_slice = [&](int token) {
    return token >= row.first() && token < row.first() + row.count();
  };
  const auto penalise = [&](int token, uint32_t count) {
    float& value = row.at(token - row.first());
    float x = value;
    x = x > 0 ? RoundedDiv(x, slot.repetition_penalty) : RoundedMul(x, slot.repetition_penalty);
    if (count > 0) {
      x = RoundedSub(x, RoundedMul(slot.frequency_penalty, static_cast<float>(count)));
      x = RoundedSub(x, slot.presence_penalty);
    }
    value = x;
  };
  if (thread < drawn.index) shared.draft_is_listed[thread] = false;
  __syncthreads();
  for (int i = thread; i < slot.num_counts; i += kDrawThreads) {
    const int token = params.count_tokens[slot.first_count + i];
    if (!in_slice(token)) continue;
    uint32_t count = params.counts[slot.first_count + i] & ~kInPrompt;
    for (int j = 0; j < drawn.index; ++j) {
      if (drafts[j] != token) continue;
      ++count;
      shared.draft_is_listed[j] = true;
    }
    penalise(token, count);
  }
  __syncthreads();
  // Drafts that did not occur before: the first of equal ones stands for all.
  if (thread < drawn.index && in_slice(drafts[thread]) && !shared.draft_is_listed[thread]) {
    uint32_t count = 0;
    bool is_first = true;
    for (int j = 0; j < drawn.index; ++j) {
      if (drafts[j] != drafts[thread]) continue;
      ++count;
      if (j < thread) is_first = false;
    }
    if (is_first) penalise(drafts[thread], count);
  }
  __syncthreads();
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
  uint64_t better[1] = {0};
  row.ForTokens([&](int, int token, float value) {
    better[0] += TokenKey(value, token) > chosen_key ? 1 : 0;
  });
  row.Sum(better);
  if (row.rank() == 0 && threadIdx.x == 0) {
    results.logprobs[row_index] = logprob(chosen_key);
    results.ranks[row_index] = static_cast<int32_t>(better[0]) + 1;
  }
  const int count = min(num_top, params.vocab_size);
  if (count <= 0) return;
  const auto needed = static_cast<uint64_t>(count);
  const ByDistance classes = {max, 1.0f};
  int nearest = kDrawBins;
  row.ForTokens([&](int, int, float value) { nearest = min(nearest, classes(value)); });
  const int farthest = row.ClassOfCount(nearest, needed);
  row.List([&](int, float value) { return classes(value) <= farthest; });
  const uint64_t bound = row.FindBound(
      needed, [&](int, float value) -> uint64_t { return classes(value) <= farthest ? 1 : 0; },
      classes);
  row.ForCandidates([&](int, int token, float value) {
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

/// What stands for the token where none may follow.
__device__ __forceinline__ int NoToken(uint64_t largest) {
  return IsFiniteKey(largest) ? kDrawDeadEnd : kDrawOverflown;
}

__device__ __forceinline__ void WriteToken(const DrawResults& results, int row, int token) {
  results.tokens[results.places != nullptr ? results.places[row] : row] =
      results.ids != nullptr && token >= 0 ? results.ids[token] : token;
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
  if (params.moved_places != nullptr && params.moved_places[drawn.row] >= 0) {
    drawn.position -= results.tokens[params.moved_places[drawn.row]];
  }
  drawn.first_token = params.first_token;
  drawn.logits = params.logits + drawn.row * params.logits_stride;
  const int first_mask = params.masks != nullptr ? params.first_mask[drawn.request] : -1;
  const int words = (params.vocab_size + 31) / 32;
  drawn.mask = first_mask < 0
                   ? nullptr
                   : params.masks + static_cast<int64_t>(first_mask + drawn.index) * words;
  const RequestSampling slot = params.sampling[drawn.request];

  if (params.given_tokens != nullptr) {
    LoadRow(row, drawn, false);
    WriteLogprobs(params, results, drawn.row, params.given_tokens[drawn.row],
                  min(slot.top_logprobs, params.max_top_logprobs), shared, row,
                  [](int, float value) { return value; });
    DrawClusterSync();
    return;
  }
  const bool changes = slot.num_biases > 0 || slot.penalised;
  const bool processed = drawn.mask != nullptr || changes;
  const bool greedy = slot.temperature == 0.0f;
  const bool cuts = !greedy && (slot.top_k > 0 || slot.top_p < 1.0f || slot.min_p > 0.0f);
  const bool in_memory = !changes && !cuts && slot.top_logprobs < 0;
  Kept kept = {.max = 0.0f,
               .inverse_temperature = greedy ? 1.0f : InverseTemperature(slot.temperature)};
  uint64_t winner;
  if (in_memory) {
    winner = greedy ? LargestInMemory(drawn, drawn.mask != nullptr, row)
                    : RaceInMemory(slot, drawn, row);
  } else {
    const bool overflown = LoadRow(row, drawn, drawn.mask != nullptr);
    if (slot.num_biases > 0) ApplyBiases(params, slot, row);
    if (slot.penalised) ApplyPenalties(params, slot, drawn, shared, row);
    if (greedy || cuts) winner = LargestKey(row, overflown);
    if (cuts && IsFiniteKey(winner)) {
      kept.max = OfOrderKey(static_cast<uint32_t>(winner >> 32));
      Cut(slot, params.vocab_size, row, kept);
      winner = RunRace(slot, drawn, row, kept);
    } else if (!greedy && !cuts) {
      winner = RunRace(slot, drawn, row, [](int, float) { return true; }, overflown);
    }
  }
  int token = KeyToken(winner);
  bool drawable = IsFiniteKey(winner);
  if (!greedy && !drawable && static_cast<uint32_t>(winner >> 32) == kInfinityKey) {
    // The value is infinite: is the logit? A finite one may have been divided by very little.
    uint64_t key = 0;
    const int at = token - drawn.first_token - row.first();
    if (at >= 0 && at < row.count() && threadIdx.x == 0) {
      key = TokenKey(in_memory ? drawn.logits[row.first() + at] : row.at(at), token);
    }
    drawable = IsFiniteKey(row.Max(key));
  }
  const uint64_t largest = drawable ? winner : LargestInMemory(drawn, false, row);
  if (!drawable) token = NoToken(largest);
  if (row.rank() == 0 && threadIdx.x == 0) {
    if (results.shares != nullptr) {
      results.shares[drawn.row] = {winner, largest, drawable ? 1U : 0U};
    } else {
      WriteToken(results, drawn.row, token);
    }
  }

  if (results.shares == nullptr && token >= 0 && slot.top_logprobs >= 0) {
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

/// A thread a row.
__global__ void __launch_bounds__(kChooseThreads)
    ChooseKernel(const DrawnShare* shares, int rows, int parts, int64_t stride,
                 const DrawResults results) {
  LaunchDependents();
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x) * kChooseThreads + static_cast<int>(threadIdx.x);
  if (row >= rows) return;
  const DrawnShare* const of_row = shares + row * stride;
  DrawnShare best = of_row[0];
  for (int part = 1; part < parts; ++part) {
    const DrawnShare next = of_row[part];
    if (next.winner > best.winner) {
      best.winner = next.winner;
      best.drawable = next.drawable;
    }
    best.largest = max(best.largest, next.largest);
  }
  WriteToken(results, row, best.drawable != 0 ? KeyToken(best.winner) : NoToken(best.largest));
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
  if (params.first_token < 0 || params.first_token % 32 != 0) {
    RefuseArgument("DrawTokens: first_token is ", params.first_token,
                   ", it must be a multiple of 32");
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
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(DrawKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SliceOf(kMaxVocab) * static_cast<int>(sizeof(float)));
  });
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

cudaError_t ChooseAmongShares(const DrawnShare* shares, int rows, int parts, int64_t stride,
                              const DrawResults& results, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const int blocks = (rows + kChooseThreads - 1) / kChooseThreads;
  return LaunchDependent(ChooseKernel, dim3(blocks), dim3(kChooseThreads), 0, stream, shares, rows,
                         parts, stride, results);
}

}  // namespace outrider::cuda
