#include "outrider/engine/host_fit.h"

#include <fmt/format.h>

#include "outrider/base/byte_size.h"

namespace outrider {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLeastCache = 64 * kMiB;  // worth to be proposed

/// What the user can change so that `need` fits into `available` bytes.
std::string Advice(const HostNeed& need, int64_t available) {
  if (need.offloaded > 0) {
    const int64_t room = available - need.weights - need.kv_cache - kHostBaseBytes;
    return room >= kLeastCache
               ? fmt::format("use --kv-offload-memory-bytes {}M or less, or --kv-offload-dir",
                             room / kMiB)
               : "use --kv-offload-dir, or leave out --kv-offload-memory-bytes";
  }
  const int64_t left = available - need.weights - kHostBaseBytes;
  if (left >= kLeastCache) {
    return fmt::format("use --kv-cache-memory-bytes {}M or less", left / kMiB);
  }
  HostNeed int8 = need;
  int8.weights = need.int8_weights;
  const bool smaller = need.int8_weights > 0 && need.int8_weights < need.weights;
  if (smaller && int8.InAll() <= available) {
    return fmt::format("use --quantization int8, which needs {}", ByteSizeText(int8.InAll()));
  }
  const int64_t int8_left = available - int8.weights - kHostBaseBytes;
  if (smaller && int8_left >= kLeastCache) {
    return fmt::format("use --quantization int8 and --kv-cache-memory-bytes {}M or less",
                       int8_left / kMiB);
  }
  return "free memory or use a larger machine";
}

}  // namespace

int64_t HostNeed::InAll() const { return weights + kv_cache + offloaded + kHostBaseBytes; }

HostFit FitInHost(const HostNeed& need, const HostMemory& memory) {
  HostFit fit;
  fit.fits = need.InAll() <= memory.available;
  fit.text = fmt::format(
      "{} are needed ({} of weights, {} of KV cache{}), {} are {}", ByteSizeText(need.InAll()),
      ByteSizeText(need.weights), ByteSizeText(need.kv_cache),
      need.offloaded == 0
          ? ""
          : fmt::format(", {} of pages that leave it", ByteSizeText(need.offloaded)),
      ByteSizeText(memory.available), memory.limit);
  if (!fit.fits) fit.text += ": " + Advice(need, memory.available);
  return fit;
}

}  // namespace outrider
