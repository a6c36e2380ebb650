// A file opened for positioned reads, and small text files read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace outrider {

/// An open regular file. Reading is thread-safe.
class File {
 public:
  /// Throws Error{kNotFound} when `path` cannot be opened, Error{kInvalidArgument} when it is not a
  /// regular file.
  explicit File(std::filesystem::path path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }

  /// Reads exactly `bytes` bytes from `offset`. Throws Error on a read error or an early end.
  void ReadAt(uint64_t offset, uint64_t bytes, void* out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// The content of a text file. Throws Error{kTooLarge} when it has more than `max_bytes` bytes.
std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace outrider
