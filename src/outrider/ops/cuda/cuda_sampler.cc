#include "outrider/ops/cuda/cuda_sampler.h"

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_rows.h"

namespace outrider::cuda {

void CudaSampler::MakeLogits(const Context& context, const HeadRows& rows,
                             MatrixView<float> logits) {
  const auto& ops = static_cast<const CudaOps&>(context.ops);
  const Scratch::Frame frame(context.arena);
  const Tensor on_device = TakeRows(context, DType::kF32, logits.rows, logits.cols);
  ops.Head(context, rows.x, rows.rows, rows.head, on_device);
  CheckCuda(
      cudaMemcpy2DAsync(logits.data, static_cast<size_t>(logits.stride) * sizeof(float),
                        on_device.data, static_cast<size_t>(on_device.stride) * sizeof(float),
                        static_cast<size_t>(logits.cols) * sizeof(float),
                        static_cast<size_t>(logits.rows), cudaMemcpyDeviceToHost, ops.stream()),
      "copying logits to the host");
  ops.Synchronize();
}

}  // namespace outrider::cuda
