// Rows of the arena as kernels want them: of one type, with 16-byte aligned rows.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/rows/tensor_rows.h"
#include "outrider/ops/context.h"

namespace outrider::cuda {

/// Uninitialised rows, their stride a multiple of 8 elements.
inline Tensor TakeRows(const Context& context, DType dtype, int64_t rows, int64_t cols) {
  const int64_t stride = (cols + 7) / 8 * 8;
  void* const data = dtype == DType::kBF16
                         ? static_cast<void*>(context.arena.Take<BFloat16>(rows * stride))
                         : static_cast<void*>(context.arena.Take<float>(rows * stride));
  return {data, dtype, rows, cols, stride};
}

inline void CopyTensor(Tensor from, Tensor to, cudaStream_t stream) {
  OUTRIDER_CHECK(from.rows == to.rows && from.cols == to.cols);
  CheckCuda(CopyRows({.num_rows = from.rows,
                      .cols = from.cols,
                      .from = from.data,
                      .from_dtype = from.dtype,
                      .from_stride = from.stride,
                      .to = to.data,
                      .to_dtype = to.dtype,
                      .to_stride = to.stride},
                     stream),
            "copying rows");
}

/// Whether kernels can read and write the rows as they are.
inline bool Fits(const Tensor& x, DType dtype) {
  return x.dtype == dtype && x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

/// x, or a copy that fits.
inline Tensor Readable(const Context& context, Tensor x, DType dtype, cudaStream_t stream) {
  if (Fits(x, dtype)) return x;
  const Tensor copy = TakeRows(context, dtype, x.rows, x.cols);
  CopyTensor(x, copy, stream);
  return copy;
}

/// The results of a kernel: rows that fit, copied to where they belong by Finish.
class ResultRows {
 public:
  ResultRows(const Context& context, Tensor target, DType dtype, cudaStream_t stream)
      : target_(target),
        rows_(Fits(target, dtype) ? target : TakeRows(context, dtype, target.rows, target.cols)),
        stream_(stream) {}

  const Tensor& rows() const { return rows_; }
  void Finish() const {
    if (rows_.data != target_.data) CopyTensor(rows_, target_, stream_);
  }

 private:
  Tensor target_;
  Tensor rows_;
  cudaStream_t stream_;
};

/// A copy of the host's values in the arena. They have been read when this returns.
template <typename T>
const T* Upload(const Context& context, std::span<const T> values, cudaStream_t stream) {
  T* const to = context.arena.Take<T>(static_cast<int64_t>(values.size()));
  if (values.empty()) return to;
  CheckCuda(cudaMemcpyAsync(to, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
            "copying to the device");
  return to;
}

}  // namespace outrider::cuda
