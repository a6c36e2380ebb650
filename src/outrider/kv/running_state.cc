#include "outrider/kv/running_state.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

int64_t RunningStateSpec::LeastPageBytes() const {
  return heads == 0 ? 0 : std::max(StateNumbers(), RowNumbers()) * int64_t{sizeof(float)};
}

int32_t RunningStateSpec::PagesOf(int64_t numbers, int64_t page_bytes) const {
  if (heads == 0) return 0;
  const int64_t in_page = page_bytes / (numbers * int64_t{sizeof(float)});
  OUTRIDER_CHECK(in_page > 0);
  return static_cast<int32_t>((heads + in_page - 1) / in_page);
}

}  // namespace outrider
