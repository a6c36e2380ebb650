#include "outrider/base/byte_size.h"

#include <fmt/format.h>

namespace outrider {

std::string ByteSizeText(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (size < 1023.95) break;  // would print as 1024.0
    size /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", size, unit);
}

}  // namespace outrider
