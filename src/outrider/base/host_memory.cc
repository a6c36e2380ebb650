#include "outrider/base/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

namespace outrider {

namespace {

namespace fs = std::filesystem;

/// The number behind `name` in a file with a line "name number" for each; nothing without one.
std::optional<int64_t> NumberAfter(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find_first_of(" :");
    if (line.substr(0, end) != name || end == std::string::npos) continue;
    const size_t digit = line.find_first_of("0123456789", end);
    if (digit != std::string::npos) return std::stoll(line.substr(digit));
  }
  return std::nullopt;
}

/// The number that a file holds; nothing for "max" and without the file.
std::optional<int64_t> NumberIn(const fs::path& file) {
  std::ifstream in(file);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// The files of a version of control groups.
struct GroupFiles {
  const char* folder;  // below sys/fs/cgroup
  const char* limit;
  const char* usage;
  const char* inactive_cache;  // of memory.stat
  const char* active_cache;
};
constexpr GroupFiles kVersion1 = {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};
constexpr GroupFiles kVersion2 = {"", "memory.max", "memory.current", "inactive_file",
                                  "active_file"};

/// What the limit of one group leaves, its name included; nothing without a limit.
std::optional<HostMemory> LeftIn(const fs::path& group, const GroupFiles& files,
                                 std::string_view name) {
  const std::optional<int64_t> limit = NumberIn(group / files.limit);
  const std::optional<int64_t> usage = NumberIn(group / files.usage);
  // No limit is a number close to the largest in version 1.
  if (!limit || !usage || *limit > (int64_t{1} << 60)) return std::nullopt;
  const fs::path stat = group / "memory.stat";
  const int64_t cached = NumberAfter(stat, files.inactive_cache).value_or(0) +
                         NumberAfter(stat, files.active_cache).value_or(0);
  return HostMemory{
      std::clamp<int64_t>(*limit - *usage + cached, 0, *limit),
      fmt::format("left by the control group {} ({})", name.empty() ? "/" : name, files.limit)};
}

void KeepLess(std::optional<HostMemory>& least, std::optional<HostMemory> other) {
  if (other && (!least || other->available < least->available)) least = std::move(other);
}

/// Of the process's groups and their parents. In a container the name of a group may be one of the
/// outside: what is mounted there is the container's group.
std::optional<HostMemory> LeftByGroups(const fs::path& root) {
  std::optional<HostMemory> least;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:memory:/a/b", "0::/a/b"
    const size_t controllers = line.find(':') + 1;
    const size_t path = line.find(':', controllers) + 1;
    if (controllers == 0 || path == 0) continue;
    const std::string list = ',' + line.substr(controllers, path - 1 - controllers) + ',';
    const bool version2 = list == ",,";
    if (!version2 && list.find(",memory,") == std::string::npos) continue;
    const GroupFiles& files = version2 ? kVersion2 : kVersion1;
    const fs::path top = root / "sys/fs/cgroup" / files.folder;
    for (std::string name = line.substr(path);; name.erase(name.rfind('/'))) {
      while (name.ends_with('/')) name.pop_back();
      KeepLess(least, LeftIn(top / name.substr(name.empty() ? 0 : 1), files, name));
      if (name.find('/') == std::string::npos) break;
    }
  }
  return least;
}

std::optional<HostMemory> LeftOfAddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const int64_t pages = NumberIn("/proc/self/statm").value_or(0);
  return HostMemory{
      std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE), 0),
      "left by the limit of the address space (ulimit -v)"};
}

}  // namespace

std::optional<HostMemory> AvailableHostMemoryIn(const fs::path& root) {
  std::optional<HostMemory> least;
  if (const auto kib = NumberAfter(root / "proc/meminfo", "MemAvailable")) {
    least = HostMemory{*kib * 1024, "free on this machine"};
  }
  KeepLess(least, LeftByGroups(root));
  return least;
}

std::optional<HostMemory> AvailableHostMemory() {
  std::optional<HostMemory> least = AvailableHostMemoryIn("/");
  KeepLess(least, LeftOfAddressSpace());
  return least;
}

}  // namespace outrider
