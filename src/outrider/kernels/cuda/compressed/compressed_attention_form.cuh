// The form of listed attention (sparse/listed_attention_walk.cuh) whose keys lie in two caches: the
// rows of a window, then compressed entries. A number of a key says which: window rows have
// kOfWindow set, the offsets of entries kOfEntries.
#pragma once

#include "outrider/kernels/cuda/compressed/compressed_attention.h"
#include "outrider/kernels/cuda/rows/row_rotation.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_walk.cuh"

namespace outrider::cuda {

/// Units of offsets: a key of 1024 bytes is 8, one of codes 4, a page a whole number of them.
inline constexpr int kWindowOffsetUnit = 128;

/// A cache of keys, by page.
struct PagedKeys {
  const uint8_t* data;
  const int* block_table;
  int block_table_stride;
  int block_table_mask;
  int page_shift;
  uint32_t page_units;
};

struct WindowArguments {
  // What folds and results need; rows are numbered from the call's first. block_table, cache and
  // visible are not used.
  MlaKernelArguments mla;
  const CompressedRow* rows;  // [rows]
  const int32_t* lists;       // [rows, lists_stride] or null
  int64_t lists_stride;
  PagedKeys window;
  PagedKeys entries;
  const float* cos;  // [rows, 32] or null
  const float* sin;
};

/// A load that stays where it is: early loads of all angles would take the registers of sums.
__device__ __forceinline__ float LoadInPlace(const float* source) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(source) : "memory");
  return value;
}

/// Rotates the last 64 of 512 columns.
struct RotatedResults {
  const float* cos;
  const float* sin;
  int heads;

  __device__ __forceinline__ uint32_t operator()(int64_t row, int half, int eight, __half2 columns,
                                                 float factor) const {
    constexpr int kFirst = kCompressedDim / 2 - kCompressedRotary;  // of the second half
    if (eight < kFirst || half == 0 || cos == nullptr) return OutputPair(columns, factor);
    const int pair = (eight - kFirst) / 2 + static_cast<int>(FreshThread() % 4);
    const int64_t at = row / heads * (kCompressedRotary / 2) + pair;
    const float c = LoadInPlace(cos + at);
    const float s = LoadInPlace(sin + at);
    const float2 wide = __half22float2(columns);
    // As OutputPair: no result is -0.
    const float x = __fadd_rn(__fmul_rn(wide.x, factor), 0.0F);
    const float y = __fadd_rn(__fmul_rn(wide.y, factor), 0.0F);
    return PackBf16(RotateFirst(x, y, c, s), RotateSecond(x, y, c, s));
  }
};

/// kHasCodes: of e4m3 codes, which are widened when they have been gathered.
template <bool kHasCodes>
struct WindowForm {
  using Arguments = WindowArguments;
  static constexpr bool kCodes = kHasCodes;
  static constexpr int kWidth = kCompressedDim;
  static constexpr uint32_t kEntryUnits = kWidth * (kCodes ? 1 : 2) / kWindowOffsetUnit;
  static constexpr int kOfWindow = 1 << 30;         // of a key's number
  static constexpr uint32_t kOfEntries = 1u << 31;  // of an offset

  struct Row {
    int request = 0;
    int window_begin = 0;
    int window_count = 0;
  };
  __device__ static Row Enter(const Arguments& args, int row) {
    const int4 at = __ldcg(reinterpret_cast<const int4*>(args.rows + row));
    return {at.x, at.y, at.z};
  }
  __device__ static int Find(const Arguments& args, const Row& list, int row, int place) {
    if (place < list.window_count) return (list.window_begin + place) | kOfWindow;
    const int entry = place - list.window_count;
    if (args.lists == nullptr) return entry;
    return __ldcg(args.lists + row * args.lists_stride + entry);
  }
  __device__ static int FindPage(const Arguments& args, const Row& list, int key) {
    const bool of_window = (key & kOfWindow) != 0;
    const PagedKeys& keys = of_window ? args.window : args.entries;
    const int page = ((key & ~kOfWindow) >> keys.page_shift) & keys.block_table_mask;
    return __ldcg(keys.block_table + static_cast<int64_t>(list.request) * keys.block_table_stride +
                  page);
  }
  __device__ static uint32_t Offset(const Arguments& args, int page, int key) {
    const bool of_window = (key & kOfWindow) != 0;
    const PagedKeys& keys = of_window ? args.window : args.entries;
    const int in_page = key & ~kOfWindow & ((1 << keys.page_shift) - 1);
    const uint32_t offset = static_cast<uint32_t>(page) * keys.page_units +
                            static_cast<uint32_t>(in_page) * kEntryUnits;
    return of_window ? offset : offset | kOfEntries;
  }
  __device__ static const uint8_t* At(const Arguments& args, uint32_t offset) {
    const uint8_t* data = (offset & kOfEntries) != 0 ? args.entries.data : args.window.data;
    return data + static_cast<uint64_t>(offset & ~kOfEntries) * kWindowOffsetUnit;
  }
  __device__ static RotatedResults Results(const Arguments& args) {
    return {args.cos, args.sin, args.mla.heads};
  }
};

}  // namespace outrider::cuda
