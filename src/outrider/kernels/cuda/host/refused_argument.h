// Throws Error from host code that nvcc compiles, which base/error.h is not made for: the fmt of
// Debian 12 does not compile with it.
#pragma once

#include <sstream>
#include <string>

namespace outrider::cuda {

/// Throws InvalidArgument(message).
[[noreturn]] void ThrowInvalidArgument(const std::string& message);

/// Refuses with a message of parts, written one after another.
template <typename... Parts>
[[noreturn]] void RefuseArgument(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  ThrowInvalidArgument(message.str());
}

}  // namespace outrider::cuda
