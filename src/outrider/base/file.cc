#include "outrider/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

std::string SystemMessage(int code) { return std::generic_category().message(code); }

}  // namespace

File::File(std::filesystem::path path) : path_(std::move(path)) {
  // Not blocking, so that a pipe put in a file's place is refused instead of waited for.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    throw NotFound("{}: cannot be opened: {}", path_.string(), SystemMessage(errno));
  }
  struct stat status{};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw InvalidArgument("{}: is not a regular file", path_.string());
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

File::~File() { close(descriptor_); }

void File::ReadAt(uint64_t offset, uint64_t bytes, void* out) const {
  constexpr uint64_t kLargestRead = uint64_t{1} << 30;  // Linux reads at most 2 GiB - 4 KiB at once
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got =
        pread(descriptor_, to, std::min(bytes, kLargestRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw InvalidArgument("{}: cannot be read at byte {}: {}", path_.string(), offset,
                            SystemMessage(errno));
    }
    if (got == 0) {
      throw InvalidArgument("{}: ends at byte {}, {} bytes early; was it cut off?", path_.string(),
                            offset, bytes);
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file(path);
  if (file.size() > max_bytes) {
    throw Error(ErrorCode::kTooLarge, fmt::format("{}: has {} bytes, at most {} are read",
                                                  path.string(), file.size(), max_bytes));
  }
  std::string text(file.size(), '\0');
  file.ReadAt(0, text.size(), text.data());
  return text;
}

}  // namespace outrider
