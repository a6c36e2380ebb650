#include "outrider/text/text_file.h"

#include <fstream>
#include <system_error>

#include "outrider/base/error.h"

namespace outrider {

std::string ReadTextFile(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code failure;
  const bool regular = std::filesystem::is_regular_file(path, failure);
  if (!regular) throw NotFound("{}: no such file", path.string());
  const auto size = std::filesystem::file_size(path, failure);
  if (failure) throw NotFound("{}: {}", path.string(), failure.message());
  if (size > max_bytes) {
    throw Error(ErrorCode::kTooLarge, fmt::format("{}: has {} bytes, over the limit of {}",
                                                  path.string(), size, max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw NotFound("{}: cannot be read", path.string());
  }
  return bytes;
}

}  // namespace outrider
