// How much memory the system would still give this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace outrider {

struct HostMemory {
  int64_t available = 0;  // bytes, what caches of files hold included; no swap space
  std::string limit;      // what ends it: "free on this machine"
};

/// The least of what the machine has free, the memory limits of the process's control groups
/// (versions 1 and 2, those of their parents too) leave, and the limit of its address space leaves.
/// Nothing where the system does not tell.
std::optional<HostMemory> AvailableHostMemory();

/// The memory of a system whose files are below `root`, without the limit of the address space.
std::optional<HostMemory> AvailableHostMemoryIn(const std::filesystem::path& root);

}  // namespace outrider
