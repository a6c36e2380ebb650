// Pages in a temporary file. The file has no name, so nothing of it is left when the process ends,
// however it ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/kv/page_store.h"

namespace outrider {

class FilePageStore : public PageStore {
 public:
  /// A new file in `directory`, which grows as places are written. Throws Error where none can be
  /// made.
  FilePageStore(std::string directory, int32_t num_places, int64_t page_bytes);
  ~FilePageStore() override;
  FilePageStore(const FilePageStore&) = delete;
  FilePageStore& operator=(const FilePageStore&) = delete;

  std::string name() const override { return "a file in " + directory_; }
  int32_t num_places() const override { return static_cast<int32_t>(checksums_.size()); }
  int64_t page_bytes() const override { return static_cast<int64_t>(page_.size()); }
  void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) override;
  void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) override;
  void Clear() override;

  /// The open file's, for tests that spoil it.
  int descriptor() const { return descriptor_; }

 private:
  std::string directory_;
  int descriptor_ = -1;
  std::vector<uint64_t> checksums_;  // by place, of what was written last
  std::vector<std::byte> page_;      // on its way to the file, or from it
};

/// A checksum that sees any few changed bytes, and places that were taken for one another.
uint64_t PageChecksum(int32_t place, std::span<const std::byte> page);

}  // namespace outrider
