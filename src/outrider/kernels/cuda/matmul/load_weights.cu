#include <cuda_bf16.h>

#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/matmul/load_weights.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 4096;

unsigned Blocks(int64_t threads) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// A thread writes four values at a time.
__global__ void __launch_bounds__(kThreads) FillKernel(const DummyPart part, ushort4* out) {
  const int64_t row_groups = part.cols / 4;
  const int64_t groups = part.rows * row_groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < groups;
       at += step) {
    const int64_t row = part.first_row + at / row_groups;
    const int64_t col = part.first_col + at % row_groups * 4;
    const uint64_t bits =
        DummyBits(part.stream, static_cast<uint64_t>(row * part.tensor_cols + col) / 4);
    uint16_t values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = __bfloat16_as_ushort(__float2bfloat16_rn(DummyValue(part.stream, bits, i)));
    }
    out[at] = make_ushort4(values[0], values[1], values[2], values[3]);
  }
}

__device__ __forceinline__ uint32_t Int4Code(float x) { return static_cast<int>(rintf(x)) + 8; }

/// e2m1 in steps of 1/2 up to 2, of 1 up to 4, then of 2. An even code has a mantissa of 0, so that
/// rounding to even holds within a step and at its end.
__device__ __forceinline__ uint32_t Fp4Code(float x) {
  const float magnitude = fabsf(x);
  const float code = magnitude < 2   ? rintf(magnitude * 2)
                     : magnitude < 4 ? rintf(magnitude) + 2
                                     : fminf(rintf(magnitude / 2) + 4, 7);
  return static_cast<uint32_t>(code) | (signbit(x) ? 8 : 0);
}

/// A thread writes eight codes at a time.
__global__ void __launch_bounds__(kThreads)
    FillCodesKernel(const DummyPart part, float scale, bool integers, uint32_t* out) {
  const int64_t row_words = part.cols / 8;
  const int64_t words = part.rows * row_words;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < words;
       at += step) {
    const int64_t row = part.first_row + at / row_words;
    const int64_t col = part.first_col + at % row_words * 8;
    const int64_t group = (row * part.tensor_cols + col) / 4;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint64_t bits = DummyBits(part.stream, static_cast<uint64_t>(group + i / 4));
      const float value =
          __bfloat162float(__float2bfloat16_rn(DummyValue(part.stream, bits, i % 4)));
      const float x = __fdiv_rn(value, scale);
      word |= (integers ? Int4Code(x) : Fp4Code(x)) << (4 * i);
    }
    out[at] = word;
  }
}

/// A thread per value; loading is all that waits for it.
__global__ void __launch_bounds__(kThreads) SplitKernel(const KvUpSplit split) {
  const auto* kv_up = static_cast<const uint16_t*>(split.kv_up);
  auto* key_up_t = static_cast<uint16_t*>(split.key_up_t);
  auto* value_up = static_cast<uint16_t*>(split.value_up);
  const int64_t head_rows = split.nope + split.value;
  const int64_t values = split.heads * head_rows * split.latent;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < values;
       at += step) {
    const int64_t column = at % split.latent;
    const int64_t head = at / split.latent / head_rows;
    const int64_t row = at / split.latent % head_rows;
    if (row < split.nope) {
      key_up_t[(head * split.latent + column) * split.nope + row] = kv_up[at];
    } else {
      value_up[(head * split.value + row - split.nope) * split.latent + column] = kv_up[at];
    }
  }
}

}  // namespace

cudaError_t FillDummyPart(const DummyPart& part, void* out, cudaStream_t stream) {
  if (part.tensor_cols % 4 != 0 || part.first_col % 4 != 0 || part.cols % 4 != 0) {
    RefuseArgument("FillDummyPart: columns ", part.first_col, " + ", part.cols, " of ",
                   part.tensor_cols, ": they must be multiples of 4");
  }
  if (part.rows <= 0 || part.cols <= 0) return cudaSuccess;
  FillKernel<<<Blocks(part.rows * part.cols / 4), kThreads, 0, stream>>>(
      part, static_cast<ushort4*>(out));
  return cudaGetLastError();
}

cudaError_t FillDummyCodes(const DummyPart& part, float scale, bool integers, void* out,
                           cudaStream_t stream) {
  if (part.tensor_cols % 4 != 0 || part.first_col % 8 != 0 || part.cols % 8 != 0) {
    RefuseArgument("FillDummyCodes: columns ", part.first_col, " + ", part.cols, " of ",
                   part.tensor_cols, ": they must be multiples of 8, of 4 the tensor's");
  }
  if (part.rows <= 0 || part.cols <= 0) return cudaSuccess;
  FillCodesKernel<<<Blocks(part.rows * part.cols / 8), kThreads, 0, stream>>>(
      part, scale, integers, static_cast<uint32_t*>(out));
  return cudaGetLastError();
}

cudaError_t SplitKvUp(const KvUpSplit& split, cudaStream_t stream) {
  const int64_t values =
      static_cast<int64_t>(split.heads) * (split.nope + split.value) * split.latent;
  if (values <= 0) return cudaSuccess;
  SplitKernel<<<Blocks(values), kThreads, 0, stream>>>(split);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
