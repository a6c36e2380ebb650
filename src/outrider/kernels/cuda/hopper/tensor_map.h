// Tensor maps for the copy engine.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

inline EncodeFunction Encoder() {
  static const EncodeFunction function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<EncodeFunction>(entry) : nullptr;
  }();
  return function;
}

/// A tensor in four dimensions, the first of 128 bytes that lie together. L2 asks memory for 128
/// bytes at a time: with 256, every other row of 1152 bytes brings what is not wanted yet.
inline bool EncodeSwizzledMap(CUtensorMap* map, CUtensorMapDataType type, const void* data,
                              const cuuint64_t (&sizes)[4], const cuuint64_t (&strides)[3],
                              const cuuint32_t (&box)[4]) {
  if (Encoder() == nullptr) return false;
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  return Encoder()(map, type, 4, const_cast<void*>(data), sizes, strides, box, element_strides,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Of bf16, the first dimension of 64.
inline bool EncodeBf16Map(CUtensorMap* map, const void* data, const cuuint64_t (&sizes)[4],
                          const cuuint64_t (&strides)[3], const cuuint32_t (&box)[4]) {
  return EncodeSwizzledMap(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, sizes, strides, box);
}

/// Of bytes, the first dimension of 128.
inline bool EncodeByteMap(CUtensorMap* map, const void* data, const cuuint64_t (&sizes)[4],
                          const cuuint64_t (&strides)[3], const cuuint32_t (&box)[4]) {
  return EncodeSwizzledMap(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, sizes, strides, box);
}

}  // namespace outrider::cuda
