// A block per row; a thread has the same four columns of every kChunk. Of few rows
// everything is asked for at once: the time is one trip to memory and one sum over the block.
#include <utility>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 4 * kThreads;
constexpr int kMaxChunks = 8;
// From this number of rows on, a multiprocessor has several blocks at a time. Another block then
// gains more than loading several terms together.
constexpr int kManyRows = 128;

/// How many terms a thread loads together, and how many blocks a multiprocessor has registers
/// for.
struct Occupancy {
  int together;
  int blocks;
};
constexpr Occupancy OccupancyOf(int chunks, bool many_rows) {
  // Short rows have registers for a whole router's terms.
  if (!many_rows) return chunks <= 2 ? Occupancy{9, 2} : Occupancy{4, 1};
  return chunks <= 2 ? Occupancy{2, 3} : chunks <= 5 ? Occupancy{2, 2} : Occupancy{1, 2};
}

/// x += the weighted terms of row `row`, asked for kTogether at a time.
template <int kChunks, int kTogether, typename Term>
__device__ __forceinline__ void AddTerms(const NormRowsParams& params, int64_t row,
                                         float4 (&x)[kChunks]) {
  const int64_t first = row * params.num_terms;
  const auto* terms = static_cast<const Term*>(params.terms) + first * params.hidden;
  float4 sums[kChunks] = {};
#pragma unroll 1
  for (int begin = 0; begin < params.num_terms; begin += kTogether) {
    float4 values[kTogether][kChunks] = {};
    float weights[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int j = begin + i;
      weights[i] = 1.0f;
      if (j >= params.num_terms) continue;
      if (params.term_weights != nullptr) weights[i] = params.term_weights[first + j];
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int column = chunk * kChunk + static_cast<int>(threadIdx.x) * 4;
        if (column < params.hidden) {
          values[i][chunk] = LoadFour(terms + static_cast<int64_t>(j) * params.hidden + column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i >= params.num_terms) break;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        sums[chunk] = MultiplyAdd(values[i][chunk], weights[i], sums[chunk]);
      }
    }
  }
  if (params.last_term != nullptr) {
    const float* const last = params.last_term + row * params.hidden;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = chunk * kChunk + static_cast<int>(threadIdx.x) * 4;
      if (column < params.hidden) sums[chunk] = sums[chunk] + LoadFour(last + column);
    }
  }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) x[chunk] = x[chunk] + sums[chunk];
}

template <int kChunks, bool kMany>
__global__ void __launch_bounds__(kThreads, OccupancyOf(kChunks, kMany).blocks)
    NormRowsKernel(const NormRowsParams params) {
  constexpr int kTogether = OccupancyOf(kChunks, kMany).together;
  __shared__ float parts[kThreads / 32];
  LaunchDependents();
  const int thread_column = static_cast<int>(threadIdx.x) * 4;
  auto for_columns = [&](auto body) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = chunk * kChunk + thread_column;
      if (column < params.hidden) body(chunk, column);
    }
  };
  // Weights do not change while a step runs.
  float4 weight[kChunks] = {};
  if (params.norm_weight != nullptr) {
    for_columns(
        [&](int chunk, int column) { weight[chunk] = LoadFour(params.norm_weight + column); });
  }
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x);
  if (params.true_rows != nullptr && row >= *params.true_rows) return;

  const int source_row = params.x_rows != nullptr ? params.x_rows[row] : row;
  float* const source = params.x + source_row * params.x_stride;
  float4 x[kChunks] = {};
  if (params.embedding != nullptr) {
    const int token = params.tokens != nullptr ? params.tokens[row] : row;
    if (params.tokens != nullptr && (token < 0 || token >= params.vocab_size)) __trap();
    const auto* entry = static_cast<const __nv_bfloat16*>(params.embedding) +
                        static_cast<int64_t>(token) * params.embedding_stride;
    if (params.zero_at == nullptr || params.zero_at[row] != 0) {
      for_columns([&](int chunk, int column) { x[chunk] = LoadFour(entry + column); });
    }
  } else {
    for_columns([&](int chunk, int column) { x[chunk] = LoadFour(source + column); });
  }
  if (params.num_terms > 0) {
    if (params.terms_dtype == DType::kF32) {
      AddTerms<kChunks, kTogether, float>(params, row, x);
    } else {
      AddTerms<kChunks, kTogether, __nv_bfloat16>(params, row, x);
    }
  }
  if (params.x != nullptr && (params.embedding != nullptr || params.num_terms > 0)) {
    for_columns([&](int chunk, int column) { StoreFour(source + column, x[chunk]); });
  }
  if (params.norm_weight == nullptr) return;
  float squares = 0.0f;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) squares = AddSquares(x[chunk], squares);
  const float factor =
      NormFactor(BlockSum<kThreads>(squares, parts), params.hidden, params.epsilon);
  auto* out = static_cast<__nv_bfloat16*>(params.out) + row * params.out_stride;
  for_columns(
      [&](int chunk, int column) { StoreFour(out + column, weight[chunk] * (x[chunk] * factor)); });
}

void Check(const NormRowsParams& params) {
  if (params.num_rows < 0) {
    RefuseArgument("NormRows: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.hidden <= 0 || params.hidden % 4 != 0 || params.hidden > kMaxChunks * kChunk) {
    RefuseArgument("NormRows: hidden is ", params.hidden, ", it must be a multiple of 4 up to ",
                   kMaxChunks * kChunk);
  }
  if (params.num_terms < 0 || (params.num_terms > 0 && params.terms_dtype != DType::kF32 &&
                               params.terms_dtype != DType::kBF16)) {
    RefuseArgument("NormRows: ", params.num_terms, " terms of ", DTypeName(params.terms_dtype),
                   ": they must be float32 or bfloat16");
  }
  if (params.x_rows != nullptr && (params.embedding != nullptr || params.num_terms > 0)) {
    RefuseArgument("NormRows: x_rows goes with neither embedding nor terms");
  }
  if (params.last_term != nullptr && params.num_terms == 0) {
    RefuseArgument("NormRows: last_term goes with terms");
  }
  if (params.x == nullptr && params.embedding == nullptr) {
    RefuseArgument("NormRows: x is null: only with embedding need there be none");
  }
  if (params.zero_at != nullptr && params.tokens == nullptr) {
    RefuseArgument("NormRows: zero_at goes with tokens");
  }
  for (const auto& [name, stride] : {std::pair("out_stride", params.out_stride),
                                     std::pair("embedding_stride", params.embedding_stride)}) {
    if (stride < params.hidden || stride % 4 != 0) {
      RefuseArgument("NormRows: ", name, " is ", stride,
                     ", it must be a multiple of 4 that is at least ", params.hidden);
    }
  }
}

template <int kChunks>
cudaError_t Launch(const NormRowsParams& params, cudaStream_t stream) {
  const auto kernel =
      params.num_rows < kManyRows ? NormRowsKernel<kChunks, false> : NormRowsKernel<kChunks, true>;
  return LaunchDependent(kernel, dim3(params.num_rows), dim3(kThreads), 0, stream, params);
}

}  // namespace

cudaError_t NormRows(const NormRowsParams& given, cudaStream_t stream) {
  NormRowsParams params = given;
  if (params.x_stride == 0) params.x_stride = params.hidden;
  if (params.out_stride == 0) params.out_stride = params.hidden;
  if (params.embedding_stride == 0) params.embedding_stride = params.hidden;
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  switch ((params.hidden + kChunk - 1) / kChunk) {
    case 1:
      return Launch<1>(params, stream);
    case 2:
      return Launch<2>(params, stream);
    case 3:
    case 4:
      return Launch<4>(params, stream);
    case 5:
      return Launch<5>(params, stream);
    case 6:
    case 7:
      return Launch<7>(params, stream);
    default:
      return Launch<kMaxChunks>(params, stream);
  }
}

}  // namespace outrider::cuda
