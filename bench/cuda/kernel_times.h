// Times of kernels, one by one, as CUPTI records them: also those of a graph.
#pragma once

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider::cuda {

/// A kernel that ran, or a memset.
struct TimedKernel {
  std::string name;  // with template arguments, without namespaces and parameters
  uint64_t begin = 0;
  uint64_t end = 0;  // ns
  int blocks = 0;
  int threads = 0;  // of a block

  std::string Title() const {
    return blocks == 0
               ? name
               : name + " <<<" + std::to_string(blocks) + ", " + std::to_string(threads) + ">>>";
  }
};

/// Records kernels from its construction on, which comes before the first call of CUDA. One at a
/// time. It makes a step of few rows about a tenth slower.
class KernelTimes {
 public:
  /// Throws Error where there is no CUPTI of CUDA 13.
  KernelTimes() {
    void* library = nullptr;
    for (const char* name : {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                             "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW);
    }
    if (library == nullptr) throw InvalidArgument("--kernels needs libcupti.so.13");
    const auto find = [&](auto* call, const char* name) {
      return reinterpret_cast<decltype(call)>(dlsym(library, name));
    };
    next_ = find(&cuptiActivityGetNextRecord, "cuptiActivityGetNextRecord");
    flush_ = find(&cuptiActivityFlushAll, "cuptiActivityFlushAll");
    auto* const take = find(&cuptiActivityRegisterCallbacks, "cuptiActivityRegisterCallbacks");
    auto* const enable = find(&cuptiActivityEnable, "cuptiActivityEnable");
    const bool found =
        next_ != nullptr && flush_ != nullptr && take != nullptr && enable != nullptr;
    recorder = this;
    if (!found || take(GiveBuffer, TakeBuffer) != CUPTI_SUCCESS ||
        enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        enable(CUPTI_ACTIVITY_KIND_MEMSET) != CUPTI_SUCCESS) {
      throw InvalidArgument("--kernels: CUPTI does not record here");
    }
  }
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  /// What has run since the last call, in order. The device is idle.
  std::vector<TimedKernel> Take() {
    flush_(1);
    std::ranges::sort(kernels_, {}, &TimedKernel::begin);
    return std::exchange(kernels_, {});
  }

 private:
  static constexpr size_t kBufferBytes = size_t{8} << 20;

  static void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
    *bytes = kBufferBytes;
    *most_records = 0;
  }
  static void TakeBuffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                         size_t /*bytes*/, size_t valid_bytes) {
    CUpti_Activity* record = nullptr;
    while (recorder->next_(buffer, valid_bytes, &record) == CUPTI_SUCCESS) recorder->Add(*record);
    std::free(buffer);
  }

  void Add(const CUpti_Activity& record) {
    if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto& memset = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      kernels_.push_back({"memset", memset.start, memset.end});
      return;
    }
    const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
    kernels_.push_back({NameOf(kernel.name), kernel.start, kernel.end,
                        kernel.gridX * kernel.gridY * kernel.gridZ,
                        kernel.blockX * kernel.blockY * kernel.blockZ});
  }

  static std::string NameOf(const char* mangled) {
    char* const whole = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
    std::string name = whole != nullptr ? whole : mangled;
    std::free(whole);
    for (const std::string part : {"void ", "outrider::cuda::", "(anonymous namespace)::"}) {
      for (size_t at = 0; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
    }
    int depth = 0;  // of template arguments
    for (size_t i = 0; i < name.size(); ++i) {
      if (name[i] == '<') ++depth;
      if (name[i] == '>') --depth;
      if (name[i] == '(' && depth == 0) return name.substr(0, i);
    }
    return name;
  }

  inline static KernelTimes* recorder = nullptr;  // CUPTI's callbacks have no argument of ours
  decltype(&cuptiActivityGetNextRecord) next_ = nullptr;
  decltype(&cuptiActivityFlushAll) flush_ = nullptr;
  std::vector<TimedKernel> kernels_;
};

/// Prints what a stretch of work took: by kernel and grid, the longest first. A kernel's share is
/// counted from the end of those before it, so that the shares add up to the whole; "own" is from
/// its start, which may be before that.
inline void PrintKernels(const std::vector<TimedKernel>& kernels, const std::string& title) {
  struct Sum {
    int count = 0;
    double us = 0;
    double own_us = 0;
  };
  std::map<std::string, Sum> sums;
  double whole = 0;
  uint64_t before = kernels.empty() ? 0 : kernels.front().begin;
  for (const TimedKernel& kernel : kernels) {
    Sum& sum = sums[kernel.Title()];
    ++sum.count;
    if (kernel.end > before) {
      sum.us += static_cast<double>(kernel.end - before) * 1e-3;
      whole += static_cast<double>(kernel.end - before) * 1e-3;
      before = kernel.end;
    }
    sum.own_us += static_cast<double>(kernel.end - kernel.begin) * 1e-3;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  std::printf("%s: %zu launches, %.0f us; count, us each, own us each, us of all\n", title.c_str(),
              kernels.size(), whole);
  for (const auto& [name, sum] : rows) {
    std::printf("%4d %7.2f %7.2f %8.1f  %s\n", sum.count, sum.us / sum.count,
                sum.own_us / sum.count, sum.us, name.c_str());
  }
  std::fflush(stdout);
}

}  // namespace outrider::cuda
