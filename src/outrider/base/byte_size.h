// Sizes in bytes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace outrider {

/// "512 B", "6.8 KiB", "1.0 GiB": powers of 1024, one decimal from KiB on.
std::string ByteSizeText(int64_t bytes);

}  // namespace outrider
