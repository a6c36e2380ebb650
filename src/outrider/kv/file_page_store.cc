#include "outrider/kv/file_page_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// One whose name is gone already.
int MakeFile(const std::string& directory) {
  std::string path = directory + "/outrider-kv-XXXXXX";
  const int descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) {
    throw InvalidArgument("--kv-offload-dir {}: no file can be made there: {}", directory,
                          std::strerror(errno));
  }
  unlink(path.c_str());
  return descriptor;
}

PageStoreError FailedTo(const char* what, const std::string& directory, const std::string& why) {
  return PageStoreError(fmt::format("{} the file in {} failed: {}", what, directory, why));
}

uint64_t Mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9E3779B97F4A7C15U;
  return sum ^ (sum >> 29);
}

}  // namespace

uint64_t PageChecksum(int32_t place, std::span<const std::byte> page) {
  // Four chains, which a processor computes side by side.
  uint64_t sums[4] = {static_cast<uint64_t>(place), 1, 2, 3};
  size_t at = 0;
  for (; at + sizeof sums <= page.size(); at += sizeof sums) {
    uint64_t words[4];
    std::memcpy(words, page.data() + at, sizeof words);
    for (int i = 0; i < 4; ++i) sums[i] = Mixed(sums[i], words[i]);
  }
  for (; at < page.size(); ++at) sums[0] = Mixed(sums[0], static_cast<uint64_t>(page[at]));
  uint64_t sum = page.size();
  for (const uint64_t part : sums) sum = Mixed(sum, part);
  return sum;
}

FilePageStore::FilePageStore(std::string directory, int32_t num_places, int64_t page_bytes)
    : directory_(std::move(directory)),
      checksums_(static_cast<size_t>(num_places)),
      page_(static_cast<size_t>(page_bytes)) {
  OUTRIDER_CHECK(num_places > 0 && page_bytes > 0);
  descriptor_ = MakeFile(directory_);
}

FilePageStore::~FilePageStore() { close(descriptor_); }

void FilePageStore::Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) {
  fill(page_);
  const auto start = static_cast<off_t>(place * page_bytes());
  for (size_t done = 0; done < page_.size();) {
    const ssize_t count = pwrite(descriptor_, page_.data() + done, page_.size() - done,
                                 start + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw FailedTo("writing", directory_, std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  checksums_.at(static_cast<size_t>(place)) = PageChecksum(place, page_);
}

void FilePageStore::Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) {
  const auto start = static_cast<off_t>(place * page_bytes());
  for (size_t done = 0; done < page_.size();) {
    const ssize_t count = pread(descriptor_, page_.data() + done, page_.size() - done,
                                start + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FailedTo("reading", directory_, std::strerror(errno));
    if (count == 0) throw FailedTo("reading", directory_, "it ends early");
    done += static_cast<size_t>(count);
  }
  if (PageChecksum(place, page_) != checksums_.at(static_cast<size_t>(place))) {
    throw FailedTo("reading", directory_, "it gives other bytes than were written");
  }
  take(page_);
}

void FilePageStore::Clear() {
  if (ftruncate(descriptor_, 0) != 0) {
    throw FailedTo("emptying", directory_, std::strerror(errno));
  }
}

}  // namespace outrider
