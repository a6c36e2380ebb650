// Names that nobody can guess who was not told.
#pragma once

#include <string>

namespace outrider {

/// 128 random bits in hexadecimal.
std::string RandomId();

}  // namespace outrider
