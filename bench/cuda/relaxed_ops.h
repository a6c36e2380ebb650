// CudaOps whose bf16 products are cuBLASLt's and whose decode attention is cut by the batch's load:
// what a step would take if its bits might depend on other rows. For times alone: a packed weight
// is read as if its rows lay one after the other, which makes other products of the same numbers.
#pragma once

#include <map>

#include "bench/cuda/matmul/cublaslt_oracle.h"
#include "outrider/base/error.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"

namespace outrider::cuda {

class RelaxedOps : public CudaOps {
 public:
  /// Throws Error where there is no cuBLASLt.
  RelaxedOps() {
    if (!CublasLt().ok()) throw InvalidArgument("--relaxed needs libcublasLt.so.13");
  }

  void Multiply(const Context& context, std::span<const Product> products) const override {
    for (size_t i = 0; i < products.size();) {
      const size_t count = i + 1 < products.size() && AreOne(products[i], products[i + 1]) ? 2 : 1;
      const std::span<const Product> together = products.subspan(i, count);
      if (!MultiplyByCublasLt(together)) CudaOps::Multiply(context, together);
      i += count;
    }
  }

 protected:
  bool relaxed_attention() const override { return true; }

 private:
  /// Products of the same rows whose results lie side by side: their weights do, too, and CudaOps
  /// makes one product of them.
  static bool AreOne(const Product& a, const Product& b) {
    const auto* const end =
        static_cast<const std::byte*>(a.y.data) + a.y.cols * DTypeSize(a.y.dtype);
    return a.x.data == b.x.data && a.y.dtype == b.y.dtype && b.y.data == end &&
           a.y.stride == b.y.stride;
  }

  /// False: its epilogue, its weight or its rows are none of cuBLASLt's here.
  bool MultiplyByCublasLt(std::span<const Product> products) const {
    const Product& p = products.front();
    const PackedWeight& w = Packed(*p.w);
    if (p.silu_mul || p.groups != 1 || w.format != WeightFormat::kBf16 ||
        p.x.dtype != DType::kBF16 || p.x.rows == 0) {
      return false;
    }
    int n = 0;
    for (const Product& product : products) n += Packed(*product.w).n;
    const CublasLt::Shape shape = {.rows = static_cast<int>(p.x.rows),
                                   .n = n,
                                   .k = w.k,
                                   .x_stride = p.x.stride,
                                   .y_stride = p.y.stride,
                                   .y_is_float = p.y.dtype == DType::kF32};
    auto found = products_.find(shape);
    if (found == products_.end()) {
      found = products_.try_emplace(shape).first;
      OUTRIDER_CHECK(found->second.Prepare(shape), "cuBLASLt: {} rows", shape.rows);
    }
    found->second.Run(p.x.data, w.data, p.y.data, stream(), p.accumulate ? 1.0F : 0.0F);
    return true;
  }

  mutable std::map<CublasLt::Shape, CublasLt> products_;
};

}  // namespace outrider::cuda
