#include "outrider/engine/page_offload.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "outrider/base/byte_size.h"
#include "outrider/base/error.h"
#include "outrider/engine/engine_device.h"
#include "outrider/kv/file_page_store.h"
#include "outrider/kv/memory_page_store.h"

namespace outrider {

namespace {

constexpr const char* kBytesFlag = "--kv-offload-memory-bytes";
constexpr const char* kDirFlag = "--kv-offload-dir";

}  // namespace

void CheckOffloadOptions(const EngineOptions& options) {
  const std::string& directory = options.kv_offload_dir;
  if (!options.kv_offload_memory_bytes) {
    if (directory.empty()) return;
    throw InvalidArgument("{} says where pages of the KV cache go, but not how many: give {}, too",
                          kDirFlag, kBytesFlag);
  }
  if (*options.kv_offload_memory_bytes <= 0) {
    throw InvalidArgument("{} is {}: it must be at least 1", kBytesFlag,
                          *options.kv_offload_memory_bytes);
  }
  if (!options.enable_prefix_caching) {
    throw InvalidArgument(
        "{} keeps prefixes, which --no-enable-prefix-caching turns off: leave out one of them",
        kBytesFlag);
  }
  if (directory.empty()) return;
  if (!std::filesystem::is_directory(directory)) {
    throw InvalidArgument("{} {}: is no directory", kDirFlag, directory);
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    throw InvalidArgument("{} {}: no file can be made there: {}", kDirFlag, directory,
                          std::strerror(errno));
  }
}

int64_t OffloadBytesInMemory(const EngineOptions& options) {
  return options.kv_offload_dir.empty() ? options.kv_offload_memory_bytes.value_or(0) : 0;
}

std::string OffloadText(const EngineOptions& options) {
  if (!options.kv_offload_memory_bytes) return "none";
  return fmt::format("{} of {}", ByteSizeText(*options.kv_offload_memory_bytes),
                     options.kv_offload_dir.empty()
                         ? "host memory"
                         : fmt::format("a temporary file in {}", options.kv_offload_dir));
}

void CheckOffloadHolds(const EngineOptions& options, int64_t page_bytes) {
  if (!options.kv_offload_memory_bytes) return;
  if (PlacesIn(*options.kv_offload_memory_bytes, page_bytes) > 0) return;
  throw InvalidArgument("{} is {}, but a page of the KV cache has {} bytes: give it more",
                        kBytesFlag, *options.kv_offload_memory_bytes, page_bytes);
}

std::unique_ptr<PageStore> MakePageStore(const EngineOptions& options, int64_t page_bytes,
                                         DeviceKind device) {
  if (!options.kv_offload_memory_bytes) return nullptr;
  CheckOffloadHolds(options, page_bytes);
  const int32_t places = PlacesIn(*options.kv_offload_memory_bytes, page_bytes);
  if (options.kv_offload_dir.empty()) {
    return std::make_unique<MemoryPageStore>(
        places, page_bytes, [device](size_t bytes) { return AllocateHostMemory(device, bytes); });
  }
  return std::make_unique<FilePageStore>(options.kv_offload_dir, places, page_bytes);
}

}  // namespace outrider
