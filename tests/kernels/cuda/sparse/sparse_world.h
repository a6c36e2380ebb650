// Requests with paged caches for the tests of sparse attention: entries by request and number, laid
// out in pages in any order, among bytes that are NaN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kernels/cuda/sparse/paged_entries.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"

namespace outrider::cuda {

/// Positions begin .. end - 1 of a request, as the rows of a step.
struct Window {
  int request;
  int begin;
  int end;
};

/// The last `rows` positions of each of some requests.
inline std::vector<Window> LastWindows(const std::vector<int>& lengths, int rows) {
  std::vector<Window> windows;
  for (size_t r = 0; r < lengths.size(); ++r) {
    windows.push_back({static_cast<int>(r), std::max(0, lengths[r] - rows), lengths[r]});
  }
  return windows;
}

/// A step's row: which request and position.
struct SparseRow {
  int request;
  int position;
};

inline std::vector<SparseRow> RowsOf(const std::vector<Window>& windows) {
  std::vector<SparseRow> rows;
  for (const Window& window : windows) {
    for (int p = window.begin; p < window.end; ++p) rows.push_back({window.request, p});
  }
  return rows;
}

/// Entries of `width` bf16 numbers of some requests.
class SparseEntries {
 public:
  SparseEntries(std::mt19937& random, const std::vector<int>& counts, int width, float size)
      : width_(width) {
    for (const int count : counts) {
      values_.push_back(NormalBf16(random, static_cast<size_t>(count) * width, size));
    }
  }
  int width() const { return width_; }
  int count(int request) const { return static_cast<int>(of(request).size()) / width_; }
  const std::vector<uint16_t>& of(int request) const {
    return values_[static_cast<size_t>(request)];
  }
  std::vector<float> Floats(int request) const { return ToFloats(of(request)); }
  std::vector<uint16_t>& of(int request) { return values_[static_cast<size_t>(request)]; }

  /// Rounds all numbers to such as e4m3 codes stand for.
  void RoundToCodes() {
    for (std::vector<uint16_t>& values : values_) {
      for (uint16_t& value : values) {
        value = ToBFloat16(Float8E4M3ToFloat(ToFloat8E4M3(Bf16ToFloat(value)))).bits;
      }
    }
  }
  /// Makes e4m3 codes of the entries, two in what counts as a number.
  SparseEntries AsCodes() const {
    SparseEntries codes(*this);
    codes.width_ = width_ / 2;
    for (std::vector<uint16_t>& values : codes.values_) {
      for (size_t i = 0; i < values.size() / 2; ++i) {
        const uint8_t low = ToFloat8E4M3(Bf16ToFloat(values[2 * i]));
        const uint8_t high = ToFloat8E4M3(Bf16ToFloat(values[2 * i + 1]));
        values[i] = static_cast<uint16_t>(low | high << 8);
      }
      values.resize(values.size() / 2);
    }
    return codes;
  }

 private:
  int width_;
  std::vector<std::vector<uint16_t>> values_;
};

/// The entries of a step's requests on the device: pages in random order, with `gap` numbers of
/// something else behind each.
class DevicePages {
 public:
  DevicePages(std::mt19937& random, const SparseEntries& entries,
              const std::vector<Window>& windows, int page_size, int gap) {
    const auto pages_of = [&](const Window& window) {
      return (entries.count(window.request) + page_size - 1) / page_size;
    };
    int pages = 1;
    for (const Window& window : windows) {
      table_stride_ = std::max(table_stride_, pages_of(window));
      pages += pages_of(window);
    }
    std::vector<int> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const int64_t stride = int64_t{page_size} * entries.width() + gap;
    std::vector<uint16_t> memory(static_cast<size_t>(stride * pages), 0xFFFF);  // NaN
    // Entries of the table past a request's length may hold anything.
    std::vector<int> table(windows.size() * table_stride_, 1 << 30);
    int next = 0;
    for (size_t w = 0; w < windows.size(); ++w) {
      const std::vector<uint16_t>& values = entries.of(windows[w].request);
      for (int i = 0; i < pages_of(windows[w]); ++i) {
        const int page = order[static_cast<size_t>(next++)];
        table[w * table_stride_ + i] = page;
        const int64_t begin = int64_t{i} * page_size * entries.width();
        const int64_t end = std::min<int64_t>(begin + int64_t{page_size} * entries.width(),
                                              static_cast<int64_t>(values.size()));
        std::copy(values.begin() + begin, values.begin() + end, memory.begin() + page * stride);
      }
    }
    memory_ = DeviceArray<uint16_t>(memory);
    table_ = DeviceArray<int>(table);
    pages_.data = memory_.data();
    pages_.num_pages = pages;
    pages_.page_size = page_size;
    pages_.page_stride = stride * 2;
    scale_free_bytes_ = int64_t{page_size} * entries.width() * 2;
    pages_.block_table = table_.data();
    pages_.block_table_stride = table_stride_;
  }
  const PagedEntries& pages() const { return pages_; }

  /// Lays the entries' scales behind those of each page: `scales` [request][entry].
  void AddScales(const std::vector<Window>& windows,
                 const std::vector<std::vector<float>>& scales) {
    const std::vector<uint16_t> old = memory_.Download();
    const std::vector<int> table = table_.Download();
    const int64_t bytes = pages_.page_stride + int64_t{pages_.page_size} * 4 + kScaleGap;
    std::vector<uint16_t> memory(static_cast<size_t>(bytes / 2 * pages_.num_pages), 0xFFFF);
    const int64_t codes = scale_free_bytes_;
    for (int page = 0; page < pages_.num_pages; ++page) {
      std::copy_n(old.begin() + page * pages_.page_stride / 2, codes / 2,
                  memory.begin() + page * bytes / 2);
    }
    for (size_t w = 0; w < windows.size(); ++w) {
      const std::vector<float>& of = scales[static_cast<size_t>(windows[w].request)];
      for (size_t i = 0; i < of.size(); ++i) {
        const int64_t page = table[w * table_stride_ + i / pages_.page_size];
        std::memcpy(reinterpret_cast<std::byte*>(memory.data()) + page * bytes + codes +
                        i % pages_.page_size * 4,
                    &of[i], sizeof(float));
      }
    }
    memory_ = DeviceArray<uint16_t>(memory);
    pages_.data = memory_.data();
    pages_.page_stride = bytes;
  }

 private:
  static constexpr int64_t kScaleGap = 32;  // bytes of something else behind a page's scales
  int64_t scale_free_bytes_ = 0;            // of a page's entries
  int table_stride_ = 1;
  DeviceArray<uint16_t> memory_;
  DeviceArray<int> table_;
  PagedEntries pages_;
};

/// A step's rows on the device, planned; `padding` rows behind the true ones belong to nobody.
class DeviceRows {
 public:
  DeviceRows(const std::vector<Window>& windows, SparseRowsParams params, int padding = 0) {
    std::vector<int> starts = {0};
    std::vector<int> lens;
    for (const Window& window : windows) {
      starts.push_back(starts.back() + window.end - window.begin);
      lens.push_back(window.end);
    }
    starts_ = DeviceArray<int>(starts);
    lens_ = DeviceArray<int>(lens);
    params.num_rows = starts.back() + padding;
    params.num_requests = static_cast<int>(windows.size());
    params.query_start_loc = starts_.data();
    params.seq_lens = lens_.data();
    params_ = params;
    memory_ = DeviceArray<uint8_t>(SparseRowsBytes(params.num_rows));
    rows_ = CarveSparseRows(memory_.data(), params.num_rows);
  }
  void Plan(cudaStream_t stream) const { CudaOk(PlanSparseRows(params_, rows_, stream), "plan"); }
  const SparseRows& rows() const { return rows_; }
  int num_rows() const { return params_.num_rows; }

 private:
  DeviceArray<int> starts_;
  DeviceArray<int> lens_;
  SparseRowsParams params_;
  DeviceArray<uint8_t> memory_;
  SparseRows rows_;
};

template <typename T>
std::vector<T> DownloadFrom(const T* data, size_t count) {
  std::vector<T> values(count);
  CudaOk(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return values;
}

}  // namespace outrider::cuda
