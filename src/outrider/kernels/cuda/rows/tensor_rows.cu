// Copies: a thread moves four neighbouring values where addresses allow it, else one. The largest
// of a row: a block per row, every thread its columns in rising order, then a tree over
// (value, place) whose result does not depend on its shape.
#include <cmath>

#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"
#include "outrider/kernels/cuda/rows/tensor_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int64_t kMostRowBlocks = 8192;

unsigned BlocksFor(int64_t threads) {
  const int64_t blocks = (threads + kRowThreads - 1) / kRowThreads;
  return static_cast<unsigned>(blocks < kMostRowBlocks ? blocks : kMostRowBlocks);
}

__device__ __forceinline__ float LoadOne(const float* source) { return *source; }
__device__ __forceinline__ float LoadOne(const __nv_bfloat16* source) {
  return __bfloat162float(*source);
}
__device__ __forceinline__ void StoreOne(float* destination, float v) { *destination = v; }
__device__ __forceinline__ void StoreOne(__nv_bfloat16* destination, float v) {
  *destination = __float2bfloat16_rn(v);
}

/// The row number, also where it is kept.
__device__ __forceinline__ int64_t FromRow(const CopyRowsParams& params, int64_t from_row) {
  if (from_row < -1) {
    if (-2 - from_row >= params.num_kept) __trap();
    from_row = max(params.kept_tokens[-2 - from_row], 0);
  }
  if (from_row < 0 || from_row >= params.from_size) __trap();
  return from_row;
}

/// Row numbers that are in memory or follow from the place.
struct NumbersInMemory {
  static __device__ __forceinline__ int64_t From(const CopyRowsParams& params, int64_t row) {
    if (params.from_rows == nullptr) return row;
    return FromRow(params, params.from_rows[row]);
  }
  static __device__ __forceinline__ int64_t To(const CopyRowsParams& params, int64_t row) {
    if (params.to_rows == nullptr) return row;
    const int64_t to_row = params.to_rows[row];
    if (to_row < 0 || to_row >= params.to_size) __trap();
    return to_row;
  }
};

/// Row numbers that come with the launch.
struct ListedNumbers {
  int32_t from[kMostListedRows];
  int32_t to[kMostListedRows];

  __device__ __forceinline__ int64_t From(const CopyRowsParams& params, int64_t row) const {
    return FromRow(params, from[row]);
  }
  __device__ __forceinline__ int64_t To(const CopyRowsParams&, int64_t row) const {
    return to[row];
  }
};

template <typename From, typename To, int kWidth, typename Numbers>
__global__ void __launch_bounds__(kRowThreads)
    CopyRowsKernel(const __grid_constant__ CopyRowsParams params,
                   const __grid_constant__ Numbers numbers) {
  const int64_t groups = params.cols / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
       at < params.num_rows * groups; at += step) {
    const int64_t row = at / groups;
    const int64_t col = at % groups * kWidth;
    const From* from = static_cast<const From*>(params.from) +
                       numbers.From(params, row) * params.from_stride + col;
    To* to = static_cast<To*>(params.to) + numbers.To(params, row) * params.to_stride + col;
    const bool zero = params.zero_at != nullptr && params.zero_at[row] == 0;
    if constexpr (kWidth == 4) {
      StoreFour(to, zero ? make_float4(0, 0, 0, 0) : LoadFour(from));
    } else {
      StoreOne(to, zero ? 0.0F : LoadOne(from));
    }
  }
}

template <typename From, typename To, typename Numbers>
cudaError_t LaunchCopyRows(const CopyRowsParams& params, const Numbers& numbers,
                           cudaStream_t stream) {
  const auto aligned = [](const void* data, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % (4 * bytes) == 0;
  };
  const bool wide = (params.cols | params.from_stride | params.to_stride) % 4 == 0 &&
                    aligned(params.from, sizeof(From)) && aligned(params.to, sizeof(To));
  if (wide) {
    CopyRowsKernel<From, To, 4>
        <<<BlocksFor(params.num_rows * params.cols / 4), kRowThreads, 0, stream>>>(params, numbers);
  } else {
    CopyRowsKernel<From, To, 1>
        <<<BlocksFor(params.num_rows * params.cols), kRowThreads, 0, stream>>>(params, numbers);
  }
  return cudaGetLastError();
}

template <typename From, typename Numbers>
cudaError_t LaunchCopyRowsFrom(const CopyRowsParams& params, const Numbers& numbers,
                               cudaStream_t stream) {
  return params.to_dtype == DType::kF32
             ? LaunchCopyRows<From, float>(params, numbers, stream)
             : LaunchCopyRows<From, __nv_bfloat16>(params, numbers, stream);
}

bool IsRowType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

__global__ void __launch_bounds__(kRowThreads) AnglesKernel(const AngleParams params) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (at >= params.num_rows * params.count) return;
  const int64_t row = at / params.count;
  const float angle =
      __fmul_rn(static_cast<float>(params.positions[row]), params.frequencies[at % params.count]);
  params.cos[at] = __fmul_rn(cosf(angle), params.magnitude);
  params.sin[at] = __fmul_rn(sinf(angle), params.magnitude);
}

struct Largest {
  float value;
  int32_t place;  // -1: none yet
};

__device__ __forceinline__ Largest LargerOf(Largest a, Largest b) {
  if (b.place < 0) return a;
  if (a.place < 0 || b.value > a.value) return b;
  return b.value == a.value && b.place < a.place ? b : a;
}

__global__ void __launch_bounds__(kRowThreads)
    LargestKernel(const float* rows, int64_t cols, int64_t stride, int32_t* places) {
  __shared__ Largest warps[kRowThreads / 32];
  const float* row = rows + static_cast<int64_t>(blockIdx.x) * stride;
  Largest best = {-INFINITY, -1};
  for (int64_t col = threadIdx.x; col < cols; col += kRowThreads) {
    const float value = row[col] < INFINITY ? row[col] : INFINITY;  // NaN, too
    if (value > best.value) best = {value, static_cast<int32_t>(col)};
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Largest other = {__shfl_xor_sync(0xFFFFFFFFU, best.value, offset),
                           __shfl_xor_sync(0xFFFFFFFFU, best.place, offset)};
    best = LargerOf(best, other);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kRowThreads / 32; ++i) best = LargerOf(best, warps[i]);
  places[blockIdx.x] = isinf(best.value) ? -1 : best.place;
}

template <typename Numbers>
cudaError_t CopyRows(const CopyRowsParams& params, const Numbers& numbers, cudaStream_t stream) {
  if (!IsRowType(params.from_dtype) || !IsRowType(params.to_dtype)) {
    RefuseArgument("CopyRows: rows are float32 or bfloat16");
  }
  if (params.num_rows <= 0 || params.cols <= 0) return cudaSuccess;
  return params.from_dtype == DType::kF32
             ? LaunchCopyRowsFrom<float>(params, numbers, stream)
             : LaunchCopyRowsFrom<__nv_bfloat16>(params, numbers, stream);
}

}  // namespace

cudaError_t CopyRows(const CopyRowsParams& params, cudaStream_t stream) {
  return CopyRows(params, NumbersInMemory(), stream);
}

cudaError_t CopyListedRows(const CopyRowsParams& params, std::span<const int32_t> from_rows,
                           std::span<const int32_t> to_rows, cudaStream_t stream) {
  const auto count = static_cast<size_t>(params.num_rows);
  if (from_rows.size() != count || to_rows.size() != count || count > kMostListedRows) {
    RefuseArgument("CopyListedRows: ", params.num_rows, " rows, ", from_rows.size(), " and ",
                   to_rows.size(), " numbers: as many, and up to ", kMostListedRows);
  }
  ListedNumbers numbers;
  for (size_t i = 0; i < count; ++i) {
    numbers.from[i] = from_rows[i];
    numbers.to[i] = to_rows[i];
    const bool from_fits = from_rows[i] < 0
                               ? from_rows[i] < -1 && -2 - from_rows[i] < params.num_kept
                               : from_rows[i] < params.from_size;
    if (!from_fits || to_rows[i] < 0 || to_rows[i] >= params.to_size) {
      RefuseArgument("CopyListedRows: from row ", from_rows[i], " of ", params.from_size, " to ",
                     to_rows[i], " of ", params.to_size);
    }
  }
  return CopyRows(params, numbers, stream);
}

cudaError_t MakeAngles(const AngleParams& params, cudaStream_t stream) {
  if (params.count < 0 || params.count > kMaxFrequencies) {
    RefuseArgument("MakeAngles: ", params.count, " frequencies: there are up to ", kMaxFrequencies);
  }
  const int64_t angles = params.num_rows * params.count;
  if (angles <= 0) return cudaSuccess;
  AnglesKernel<<<static_cast<unsigned>((angles + kRowThreads - 1) / kRowThreads), kRowThreads, 0,
                 stream>>>(params);
  return cudaGetLastError();
}

cudaError_t FindLargest(const float* rows, int64_t num_rows, int64_t cols, int64_t stride,
                        int32_t* places, cudaStream_t stream) {
  if (num_rows <= 0) return cudaSuccess;
  LargestKernel<<<static_cast<unsigned>(num_rows), kRowThreads, 0, stream>>>(rows, cols, stride,
                                                                             places);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
