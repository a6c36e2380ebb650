// A cache of one request for tests of operations on the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "outrider/kv/layer_cache.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {

/// A cache of one request, whose blocks lie in any order: of token rows (group 0) or of entries of
/// four tokens (group 1).
struct TestCache {
  TestCache(int32_t group, int32_t width, int32_t entries, DType dtype = DType::kF32)
      : bytes(static_cast<size_t>(entries + kBlock) * static_cast<size_t>(width) * 4) {
    cache = {.data = bytes.data(),
             .dtype = dtype,
             .block_size = kBlock,
             .width = width,
             .block_stride = int64_t{kBlock} * width,
             .group = group};
    const int32_t blocks = (entries + kBlock - 1) / kBlock;
    for (int32_t b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);
  }
  int64_t Offset(int32_t entry) const {
    return cache.SlotOffset(int64_t{table[static_cast<size_t>(entry / kBlock)]} * kBlock +
                            entry % kBlock);
  }
  const float* At(int32_t entry) const {
    return reinterpret_cast<const float*>(bytes.data()) + Offset(entry);
  }
  /// Entries 0, 1, ...
  void Fill(TestMatrix& rows) {
    for (int32_t e = 0; e < rows.view_rows; ++e) {
      for (int32_t i = 0; i < cache.width; ++i) {
        const float value = rows.view().row(e)[i];
        if (cache.dtype == DType::kF32) {
          reinterpret_cast<float*>(bytes.data())[Offset(e) + i] = value;
        } else if (cache.dtype == DType::kF8E4M3) {
          bytes[static_cast<size_t>(Offset(e) + i)] = std::byte{ToFloat8E4M3(value)};
        } else {
          reinterpret_cast<BFloat16*>(bytes.data())[Offset(e) + i] = ToBFloat16(value);
        }
      }
    }
  }

  static constexpr int32_t kBlock = 8;
  std::vector<std::byte> bytes;
  LayerCache cache;
  std::vector<int32_t> table;
};

}  // namespace outrider
