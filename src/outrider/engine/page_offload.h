// The prefix cache's second tier, as an engine's options ask for it: the memory or file that takes
// pages which leave the device's pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outrider/engine/engine_options.h"
#include "outrider/kv/page_store.h"

namespace outrider {

/// Throws Error for options that do not go together, and for a directory that no file can be
/// written to.
void CheckOffloadOptions(const EngineOptions& options);

/// Bytes of the host's memory that the tier may take; 0 where it is a file.
int64_t OffloadBytesInMemory(const EngineOptions& options);

/// Where it is, for `outrider explain`: "4.0 GiB of host memory".
std::string OffloadText(const EngineOptions& options);

/// Throws Error where the options' bytes do not hold a page of `page_bytes`.
void CheckOffloadHolds(const EngineOptions& options, int64_t page_bytes);

/// Makes a store for pages of `page_bytes`, for an engine on this device; null: the options ask for
/// none. Throws Error as the functions above do, and where the system refuses a file.
std::unique_ptr<PageStore> MakePageStore(const EngineOptions& options, int64_t page_bytes,
                                         DeviceKind device);

}  // namespace outrider
