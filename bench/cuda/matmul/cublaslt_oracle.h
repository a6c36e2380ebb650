// bf16 matrix products of cuBLASLt, loaded when asked for: what the speed of ours is held against.
// Its bits are no oracle.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <compare>
#include <cstdint>
#include <cstdio>

namespace outrider::cuda {

class CublasLt {
 public:
  CublasLt() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW);
    }
    if (library_ == nullptr) {
      std::fprintf(stderr, "no cuBLASLt: %s\n", dlerror());
      return;
    }
    ok_ = Find(create_, "cublasLtCreate") && Find(matmul_, "cublasLtMatmul") &&
          Find(desc_create_, "cublasLtMatmulDescCreate") &&
          Find(desc_set_, "cublasLtMatmulDescSetAttribute") &&
          Find(layout_create_, "cublasLtMatrixLayoutCreate") &&
          Find(preference_create_, "cublasLtMatmulPreferenceCreate") &&
          Find(preference_set_, "cublasLtMatmulPreferenceSetAttribute") &&
          Find(heuristic_, "cublasLtMatmulAlgoGetHeuristic") &&
          create_(&handle_) == CUBLAS_STATUS_SUCCESS &&
          cudaMalloc(&workspace_, kWorkspace) == cudaSuccess;
  }
  bool ok() const { return ok_; }

  /// y [rows, n] = x [rows, k] W^T, bf16 but for y where told.
  struct Shape {
    int rows = 0;
    int n = 0;
    int k = 0;
    int64_t x_stride = 0;  // of rows, in elements
    int64_t y_stride = 0;
    bool y_is_float = false;

    auto operator<=>(const Shape&) const = default;
  };

  bool Prepare(int rows, int n, int k) {
    return Prepare({.rows = rows, .n = n, .k = k, .x_stride = k, .y_stride = n});
  }

  /// False if it knows no way.
  bool Prepare(const Shape& shape) {
    const auto [rows, n, k, x_stride, y_stride, y_is_float] = shape;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference;
    int found = 0;
    const size_t workspace = kWorkspace;
    return desc_create_(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           desc_set_(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) ==
               CUBLAS_STATUS_SUCCESS &&
           layout_create_(&w_, CUDA_R_16BF, k, n, k) == CUBLAS_STATUS_SUCCESS &&
           layout_create_(&x_, CUDA_R_16BF, k, rows, x_stride) == CUBLAS_STATUS_SUCCESS &&
           layout_create_(&y_, y_is_float ? CUDA_R_32F : CUDA_R_16BF, n, rows, y_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           preference_create_(&preference) == CUBLAS_STATUS_SUCCESS &&
           preference_set_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                           sizeof(workspace)) == CUBLAS_STATUS_SUCCESS &&
           heuristic_(handle_, operation_, w_, x_, y_, y_, preference, 1, &algorithm_, &found) ==
               CUBLAS_STATUS_SUCCESS &&
           found == 1;
  }

  /// y = product + beta y.
  void Run(const void* x, const void* w, void* y, cudaStream_t stream, float beta = 0) const {
    const float one = 1;
    if (matmul_(handle_, operation_, &one, w, w_, x, x_, &beta, y, y_, y, y_, &algorithm_.algo,
                workspace_, kWorkspace, stream) != CUBLAS_STATUS_SUCCESS) {
      std::fprintf(stderr, "cuBLASLt failed\n");
    }
  }

 private:
  static constexpr size_t kWorkspace = size_t{64} << 20;

  template <typename Function>
  bool Find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    return function != nullptr;
  }

  void* library_ = nullptr;
  bool ok_ = false;
  void* workspace_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_ = {};
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;
};

}  // namespace outrider::cuda
