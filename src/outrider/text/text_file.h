// Reads the small files of a model directory whole, with a limit on their size.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace outrider {

/// The bytes of a regular file. Throws Error: kNotFound if there is none or it cannot be read,
/// kTooLarge if it has more than `max_bytes`.
std::string ReadTextFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace outrider
