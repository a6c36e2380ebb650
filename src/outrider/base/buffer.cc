#include "outrider/base/buffer.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/processors.h"

namespace outrider {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

void Unmap(std::byte* data, size_t size) { munmap(data, size); }
}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes), release_(Unmap) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("cannot allocate {} bytes of memory: {}", bytes, std::strerror(errno)));
  }
  // Only whole huge pages: rounding a small buffer up to 2 MiB would waste what it saves.
  if (bytes >= 4 * kHugePage) {
    madvise(p, bytes, MADV_HUGEPAGE);
    static const std::vector<int> all = UsableMemoryNodes();
    const std::vector<int>& own = MemoryNodes::OfThisThread();
    const std::vector<int>& nodes = own.empty() ? all : own;
    if (all.size() > 1 && !InterleavePages(p, bytes, nodes)) {
      spdlog::warn("{} bytes of memory could not be spread over {} NUMA nodes", bytes,
                   nodes.size());
    }
  }
  data_ = static_cast<std::byte*>(p);
}

Buffer::~Buffer() {
  if (data_ != nullptr) release_(data_, size_);
}

}  // namespace outrider
