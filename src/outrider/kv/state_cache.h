// Where the running state of linear attention lies in the memory of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "outrider/kv/running_state.h"

namespace outrider {

/// Pages of the cache as linear attention uses them: pieces of states, or of kept rows, one behind
/// the other, as many as a page holds whole. Heads count over all layers.
struct StateCache {
  std::byte* data = nullptr;
  int64_t page_bytes = 0;
  RunningStateSpec spec = {};

  /// The piece of a head: spec.StateNumbers() numbers.
  float* State(const std::vector<int32_t>& pages, int32_t head) const {
    return Piece(pages, head, spec.StateNumbers());
  }
  /// spec.RowNumbers() numbers.
  float* Rows(const std::vector<int32_t>& pages, int32_t head) const {
    return Piece(pages, head, spec.RowNumbers());
  }

 private:
  float* Piece(const std::vector<int32_t>& pages, int32_t head, int64_t numbers) const {
    const int64_t bytes = numbers * int64_t{sizeof(float)};
    const int64_t in_page = page_bytes / bytes;
    const int64_t page = pages[static_cast<size_t>(head / in_page)];
    return reinterpret_cast<float*>(data + page * page_bytes + head % in_page * bytes);
  }
};

}  // namespace outrider
